"""`import synth`: the functions and classes for users, without the command line."""

import base64
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import synth
from synth.api.front import named_as_arguments
from synth.op_kinds import OpKind
from synth.options.solve_task import SolveTask
from synth.plan.memory_curve.curve_file import empty_curve
from synth.profiles import find
from synth.schedule.model import Placement

NAME = "zb-1.5b-p8-m24"
SIZE: dict[str, Any] = {"ranks": 4, "micro_batches": 8}
SHORT: dict[str, Any] = {"time_limit": 5, "workers": 1, "placement": "linear", "partition": "even"}


def test_importing_synth_loads_neither_torch_nor_the_solver() -> None:
    code = "import sys, synth; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "ortools", "numpy", "pydantic"} & set(run.stdout.split())


def test_every_name_of_the_package_is_there() -> None:
    assert set(synth.__all__) <= set(dir(synth))
    for name in synth.__all__:
        assert getattr(synth, name).__doc__ or name == "__version__"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'solved'"):
        synth.solved  # noqa: B018


def test_solve_returns_a_plan_that_is_true_within_the_limit() -> None:
    found: list[synth.Plan] = []
    plan = synth.solve(
        NAME, **SIZE, **SHORT, mem_limit="20GB", recompute="none", on_improvement=found.append
    )
    _, timeline = plan.check()
    assert plan.claim.makespan_us == timeline.makespan_us
    assert max(plan.claim.peak_bytes) <= 20 * 10**9
    assert found[-1].claim.makespan_us == plan.claim.makespan_us


def test_solve_takes_bytes_numbers_and_profiles_as_well_as_texts() -> None:
    profile = synth.Profile.load(find(NAME))
    plan = synth.solve(
        profile,
        ranks=2,
        micro_batches=2,
        mem_limit=[60 * 10**9, 50 * 10**9],
        partition=(13, 11),
        placement="linear",
        recompute="none",
        link="10us,25GB/s",
        gap=0.5,
        time_limit=5,
    )
    assert plan.partition == (13, 11)
    assert plan.caps_bytes == (60 * 10**9, 50 * 10**9)
    assert plan.costs.links.default.latency_us == 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: synth.solve(NAME, **SIZE, mem_limit="40G"), "no clear unit"),
        (lambda: synth.solve(NAME, **SIZE, mem_limit=[1, 2]), "^mem_limit gives 2 sizes for 4"),
        (lambda: synth.solve(NAME, **SIZE, **SHORT, mem_limit=10**9), "no schedule fits"),
        (lambda: synth.solve("nothing", **SIZE), "neither a file nor shipped"),
        (lambda: synth.simulate("1f1b", NAME), "needs ranks and micro_batches"),
        (lambda: synth.simulate("1f2b", NAME, **SIZE), "family '1f2b' is unknown"),
        (lambda: synth.simulate("1f1b", NAME, **SIZE, mem_limit="20GB"), "rank 0"),
        (lambda: synth.compare(NAME, **SIZE, recompute="all"), "^recompute 'all' is for one"),
        (lambda: synth.frontier(NAME, **SIZE, points=1), "^points=1 .* give 2 or more"),
    ],
)
def test_mistakes_are_told_in_the_words_of_python(call: Callable[[], object], message: str) -> None:
    with pytest.raises(synth.SynthError, match=message) as caught:
        call()
    assert "--" not in str(caught.value)


PLAN: Any = synth.simulate("1f1b", NAME, **SIZE)
NOTHING: Any = None
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ranks": "4"}, "^ranks='4' is not understood; give a whole number"),
    ({"ranks": 4.5}, r"^ranks=4\.5 is not understood"),
    ({"ranks": True}, "^ranks=True is not understood"),
    ({"micro_batches": "8"}, "^micro_batches='8' is not understood"),
    ({"mem_limit": 0.5}, r"^mem_limit=0\.5 is not understood; give a size"),
    ({"mem_limit": {}}, r"^mem_limit=\{\} is not understood; give a size"),
    ({"mem_limit": float("inf")}, "^mem_limit=inf is not understood"),
    ({"mem_limit": -5}, "^mem_limit=-5 is not understood; give a size"),
    ({"mem_limit": "1GB", "mem_reserve": -5}, "^mem_reserve=-5 is not understood; give a size"),
    ({"gap": 2}, "^gap=2.* give at most 1"),
    ({"time_limit": float("inf")}, "^time_limit=inf is not understood; give seconds"),
    ({"mem_limit": []}, r"^mem_limit=\[\] is not understood"),
    ({"partition": 6}, "^partition=6 is not understood; give layers per stage"),
    ({"link": 10}, "^link=10 is not understood; give a text such as '10us"),
    ({"workers": 0}, "^workers=0 is too small; give 1 or more"),
    ({"time_limit": 0}, "^time_limit 0s leaves no time"),
    ({"time_limit": None}, "^time_limit=None is not understood"),
    ({"gap": None}, "^gap=None is not understood"),
    ({"hint": PLAN.schedule()}, "^hint=Schedule 1f1b.*give a Plan"),
    ({"ranks": None}, "^ranks=None is not understood; give a whole number"),
    ({"seed": None}, "^seed=None is not understood"),
    ({"placement": 3}, "^placement=3 is not understood; give a text: 'linear'"),
    ({"objective": None}, "^objective=None is not understood; give a text: 'makespan'"),
    ({"recompute": [0, 1]}, r"^recompute=\[0, 1\] is not understood; give a text: 'none'"),
    ({"weights": None}, "^weights=None is not understood; give 'stay'"),
    ({"deterministic": "false"}, "^deterministic='false' is not understood; give True or False"),
    ({"on_improvement": 3}, "^on_improvement=3 is not understood; give a function"),
]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((partial(synth.solve, NAME, **SIZE | wrong), message) for wrong, message in WRONG),
        *(
            (
                partial(call, NAME, **SIZE, mem_limit="min"),
                "^mem_limit min .* only synth solve",
            )
            for call in (synth.compare, partial(synth.simulate, "1f1b"))
        ),
        (
            partial(synth.solve, NAME, **SIZE, mem_limit="min"),
            "^mem_limit min is given without ",
        ),
        (partial(synth.solve, NAME, **SIZE, target=0.85), "^target is given without"),
        (partial(synth.compare, NAME, ranks=4, micro_batches=0), "^micro_batches=0 is too small"),
        (partial(synth.compare, NAME, **SIZE | {"only": 3}), "^only=3 is not understood"),
        (partial(synth.simulate, PLAN, NAME), r"give plan\.schedule\(\)"),
        (partial(synth.simulate, NOTHING, NAME, **SIZE), "^schedule=None is not understood"),
        (partial(synth.solve, PLAN, **SIZE), "made from .zb-1.5b-p8-m24"),
        (partial(synth.solve, NOTHING, **SIZE), "^profile=None is not understood; give a Profile"),
        (partial(synth.compare, NAME, **SIZE | {"objective": 3}), "^objective=3 is not understood"),
        (partial(synth.compare, NAME, **SIZE | {"recompute": [0]}), r"^recompute=\[0\] is not"),
        (partial(synth.frontier, NAME, **SIZE, placement="auto"), "one curve is of one placement"),
        (partial(synth.frontier, NAME, **SIZE | {"placement": 3}), "^placement=3 is not"),
        (partial(synth.frontier, NAME, **SIZE | {"points": None}), "^points=None is not"),
        (partial(synth.frontier, NAME, **SIZE | {"begun": PLAN}), "^begun=Plan 1f1b.*give a curve"),
        (partial(synth.frontier, NAME, **SIZE | {"on_point": 3}), "^on_point=3 is not"),
    ],
)
def test_values_of_the_wrong_kind_are_told(call: Callable[[], object], message: str) -> None:
    with pytest.raises(synth.SynthError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "limit", [40e9, np.int64(40 * 10**9), ["40GB"] * 4, np.full(4, 40 * 10**9), ("40GB", 4e10) * 2]
)
def test_numbers_of_any_type_are_numbers(limit: Any) -> None:
    sizes: dict[str, Any] = {"ranks": np.int32(4), "micro_batches": 8.0}
    partition: Any = np.full(4, 6)
    plan = synth.simulate("1f1b", NAME, **sizes, mem_limit=limit, partition=partition)
    assert plan.caps_bytes == (40 * 10**9,) * 4
    assert (plan.num_ranks, plan.num_micro_batches, plan.partition) == (4, 8, (6, 6, 6, 6))


def test_one_published_schedule_is_compared_by_its_name() -> None:
    found = synth.compare(NAME, **SIZE, only="1f1b", placement=None)
    assert [entry.name for entry in found.ranked()] == ["1f1b"]


def test_the_least_memory_for_a_time_is_searched_as_by_the_command() -> None:
    fast = synth.simulate("1f1b", NAME, **SIZE)
    target_us = 1.02 * fast.claim.makespan_us
    less: list[synth.Plan] = []
    plan = synth.solve(
        NAME,
        **SIZE,
        mem_limit="min",
        target=target_us / 1e6,
        placement="linear",
        recompute="none",
        time_limit=60,
        gap=0.3,  # in memory
        on_improvement=less.append,
    )
    assert plan.claim.makespan_us <= target_us
    assert plan.caps_bytes == (max(plan.claim.peak_bytes),) * 4
    assert max(plan.claim.peak_bytes) <= max(fast.claim.peak_bytes)
    assert less and less[-1].caps_bytes == plan.caps_bytes
    with pytest.raises(synth.SynthError, match="however much memory there is"):
        synth.solve(NAME, **SIZE, mem_limit="min", target="1ms", placement="linear", time_limit=60)


def test_the_least_memory_without_a_bubble_is_searched_as_by_the_command() -> None:
    plan = synth.solve(
        NAME,
        ranks=2,
        micro_batches=6,
        mem_limit="min",
        target="steady",
        placement="linear",
        partition="even",
        recompute="none",
        time_limit=60,
        gap=0.5,
    )
    assert plan.caps_bytes is not None and plan.arguments["target"] == "steady"
    assert max(plan.claim.peak_bytes) <= plan.caps_bytes[0]
    gpipe = synth.simulate("gpipe", NAME, ranks=2, micro_batches=6)
    assert plan.caps_bytes[0] < max(gpipe.claim.peak_bytes)


def test_the_cross_check_can_be_asked_for() -> None:
    times_us = {
        synth.solve(
            NAME,
            ranks=2,
            micro_batches=3,
            placement="linear",
            partition="even",
            recompute="none",
            gap=0,
            time_limit=20,
            solver=name,
        ).claim.makespan_us
        for name in ("milp", "cpsat")
    }
    assert len(times_us) == 1


def test_a_search_begins_from_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[SolveTask] = []

    def search(asked: SolveTask, *_: object) -> None:
        begun.append(asked)
        raise synth.SynthError("begun")

    monkeypatch.setattr(SolveTask, "search", search)
    plan = synth.simulate("zb-h1", NAME, **SIZE)
    with pytest.raises(synth.SynthError, match="begun"):
        synth.solve(NAME, **SIZE, hint=plan)
    assert begun[0].request.options.hint == plan.schedule()
    assert begun[0].request.arguments["hint"] == "zb-h1"
    with pytest.raises(synth.SynthError, match=r"^hint zb-h1 is for 4 ranks and 8 micro-batches"):
        synth.solve(NAME, ranks=4, micro_batches=9, hint=plan)


def test_an_error_has_the_options_that_it_is_about() -> None:
    def fail() -> None:
        raise synth.SynthError("§mem_limit: see `synth solve --mem-limit`, or §runtime $x {y}")

    for call, said in (
        (named_as_arguments(fail), "mem_limit: see `synth solve --mem-limit`, or runtime $x {y}"),
        (fail, "--mem-limit: see `synth solve --mem-limit`, or --for $x {y}"),
    ):
        with pytest.raises(synth.SynthError) as caught:
            call()
        assert (str(caught.value), caught.value.fields) == (said, ("mem_limit", "runtime"))


def test_without_torch_all_but_the_pipeline_can_be_imported() -> None:
    code = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *given: None if name == "torch" else found(name, *given)
import synth
from synth import *
print(solve.__name__, "Pipeline" in dir(synth))
try:
    from synth import Pipeline
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, error = run.stdout.splitlines()
    assert names == "solve False" and "pip install 'synth-pipeline[torch]'" in error


def test_simulate_adds_up_the_work_of_one_rank() -> None:
    profile = synth.Profile.load(find(NAME))
    plan = synth.simulate("1f1b", profile, ranks=1, micro_batches=3)
    layers = [profile.layer_profile(i).time_us for i in range(len(profile.layers))]
    per_layer = ((3, OpKind.F), (3, OpKind.BW), (1, OpKind.STEP))
    work_us = sum(n * us[kind].median_us for us in layers for n, kind in per_layer)
    assert plan.claim.makespan_us == pytest.approx(work_us, abs=7)  # each op is rounded


def test_simulate_takes_a_schedule_of_ones_own() -> None:
    made = synth.simulate("zb-h1", NAME, **SIZE)
    again = synth.simulate(made.schedule(), NAME)
    assert again.claim.makespan_us == made.claim.makespan_us
    assert Placement(again.placement) == Placement.linear(4)
    with pytest.raises(synth.SynthError, match="9 micro-batches are asked for"):
        synth.simulate(made.schedule(), NAME, micro_batches=9)


def test_compare_ranks_schedules_and_makes_their_plans() -> None:
    found = synth.compare(NAME, **SIZE, only=["1f1b", "zb-h1", "gpipe"], placement=None)
    assert found.ranked()[0].name == "zb-h1"
    plan = found.plan(found.ranked()[0])
    assert plan.claim.makespan_us == synth.simulate("zb-h1", NAME, **SIZE).claim.makespan_us


def test_objects_fit_a_screen_and_are_drawn_in_notebooks() -> None:
    plan = synth.simulate("1f1b", NAME, ranks=8, micro_batches=24)
    compared = synth.compare(NAME, **SIZE, placement=None)
    objects = (plan, plan.schedule(), compared, synth.Profile.load(find(NAME)))
    for one in objects:
        lines = repr(one).splitlines()
        assert len(lines) <= 20 and max(map(len, lines)) <= 130
    for drawn in (plan, compared, objects[-1]):
        html = drawn._repr_html_()
        assert html is not None and html.startswith("<")
    html = plan._repr_html_()
    assert html is not None
    found = re.search(r"svg\+xml;base64,([^']+)", html)
    assert found is not None
    svg = base64.b64decode(found[1]).decode()
    ElementTree.fromstring(svg)
    assert "rank 7" in svg and "forward" in svg
    assert 'role="img" aria-label="1f1b"' in svg and "<img alt='1f1b' " in html
    named = plan.replace(name="<'a'>")._repr_html_()
    assert named is not None and "<img alt='&lt;&#x27;a&#x27;&gt;' " in named


@pytest.mark.slow
def test_frontier_traces_plans_under_rising_limits(tmp_path: Path) -> None:
    (tmp_path / "trace.py").write_text(
        "import synth\n"
        "if __name__ == '__main__':\n"
        f"    curve = synth.frontier({NAME!r}, ranks=4, micro_batches=4, points=3, time_limit=1)\n"
        "    assert '<table>' in curve._repr_html_()\n"
        "    print(curve)\n"
    )
    run = subprocess.run(
        [sys.executable, "trace.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert len(run.stdout.splitlines()) == 4


def test_files_are_saved_and_loaded_by_paths_of_any_kind(tmp_path: Path) -> None:
    profile = synth.Profile.load(find(NAME))
    plan = synth.simulate("1f1b", profile, ranks=2, micro_batches=2)
    for each in (profile, plan):
        each.save(str(tmp_path / "x.json"))
        assert type(each).load(str(tmp_path / "x.json")) == type(each).load(tmp_path / "x.json")


def test_dir_lists_what_programs_use_and_nothing_else() -> None:
    listed = {name for name in dir(synth) if not name.startswith("__")}
    assert listed == {name for name in synth.__all__ if not name.startswith("__")}


def test_prove_proves_the_bound_of_a_plan_or_of_its_file_again(tmp_path: Path) -> None:
    plan = synth.solve(NAME, ranks=2, micro_batches=2, **SHORT, recompute="none", gap=0)
    proof = synth.prove(plan, time_limit=60, workers=1)
    assert proof.is_proven and proof.reached_us >= plan.claim.lower_bound_us
    plan.save(tmp_path / "plan.json")
    again = synth.prove(tmp_path / "plan.json", profile=NAME, time_limit="60s", workers=1)
    assert (again.verdict, again.holds_for) == (proof.verdict, proof.holds_for)


def test_prove_finds_a_bound_that_is_false() -> None:
    plan = synth.simulate("gpipe", NAME, ranks=2, micro_batches=4)
    claim = plan.claim.replace(
        lower_bound_us=plan.claim.makespan_us, gap=0.0, stopped_by="optimal", certificate=None
    )
    proof = synth.prove(plan.replace(claim=claim), workers=1)
    assert proof.verdict == "false" and not proof.is_proven
    assert proof.witness_us is not None and proof.witness_us < plan.claim.makespan_us


def test_prove_refuses_what_is_no_plan() -> None:
    with pytest.raises(synth.SynthError, match="plan=3 is not understood"):
        synth.prove(3)  # type: ignore[arg-type]


def test_ctrl_c_ends_a_comparison_and_a_curve_with_what_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("synth.plan.compare._Comparing.add_solved", interrupted)
    found = synth.compare(NAME, **SIZE, only="1f1b", placement="linear", time_limit=5)
    assert [entry.name for entry in found.entries] == ["1f1b"]
    with pytest.raises(KeyboardInterrupt):
        synth.compare(NAME, ranks=3, micro_batches=3, only="chimera", placement="linear")

    def first_point(*given: Any) -> None:
        given[-1](empty_curve(given[0], given[1]))
        raise KeyboardInterrupt

    monkeypatch.setattr("synth.api.curves.trace", first_point)
    assert synth.frontier(NAME, **SIZE).num_micro_batches == SIZE["micro_batches"]
    monkeypatch.setattr("synth.api.curves.trace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        synth.frontier(NAME, **SIZE)
