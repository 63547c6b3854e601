"""`synth solve --weights`: candidates, answers, and options that do not go together."""

import json
from pathlib import Path

import pytest

from synth.schedule.files.plan_file import Plan
from synth.schedule.weight_flow import Route
from tests.cli.conftest import NAME, Synth

SOLVE = (
    *("solve", NAME, "--ranks", "4", "--micro-batches", "4", "--link", "10us,25GB/s"),
    # A wide gap ends each search after its first schedules, however slow the machine.
    *("--time-limit", "60s", "--gap", "80%"),
)


@pytest.mark.parametrize(("weights", "route"), [("ring", Route.CHAIN), ("gather", Route.GATHER)])
def test_a_plan_with_weight_passing_is_written_shown_and_its_bound_is_proven_again(
    synth: Synth, tmp_path: Path, weights: str, route: Route
) -> None:
    path = tmp_path / "plan.json"
    solved = synth(*SOLVE, "--weights", weights, "--mem-limit", "60GB", "-o", path)
    assert solved.code == 0, solved.stderr
    assert f"{weights}, all-stages:1" in solved.stdout
    plan = Plan.load(path)
    flow = plan.schedule().weights
    assert flow is not None and flow.weights == route
    assert plan.arguments["weights"] == weights
    assert max(plan.claim.peak_bytes) <= 60e9
    assert synth("show", path).code == 0
    proven = synth("check", path, "--prove")
    assert proven.code == 0 and "proven again" in proven.stdout


def test_auto_answers_with_all_places_of_weights_and_data_parallelism(synth: Synth) -> None:
    ended = synth(*SOLVE, "--weights", "auto", "--format", "json")
    found = json.loads(ended.stdout)
    names = {one["name"] for one in found["candidates"]}
    assert {"ring, all-stages:1", "gather, all-stages:1", "data-parallel", "linear"} <= names
    values = [one["value_us"] for one in found["candidates"] if one["value_us"] is not None]
    assert found["value_us"] == min(values)
    assert found["lower_bound_us"] <= min(one["lower_bound_us"] for one in found["candidates"])


def test_the_least_need_is_shown_without_a_search_and_less_is_refused(synth: Synth) -> None:
    ended = synth(*SOLVE, "--weights", "gather", "--dry-run", "--format", "json")
    need = min(one["needed_bytes"] for one in json.loads(ended.stdout)["candidates"])
    refused = synth(*SOLVE, "--weights", "gather", "--mem-limit", f"{need // 2}B")
    assert refused.code == 3 and "no schedule with weight passing by gather fits" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ring", "--placement", "v"), "--placement v and --weights ring, with which every rank"),
        (("auto", "--placement", "v"), "leave it out, or give all-stages:N with ring or gather"),
        (("gather", "--partition", "auto"), "--partition auto and --weights gather"),
        (("ring", "--recompute", "all"), "or layers such as layers:0-3"),
        (("gather", "--hint", "zero3"), "as the search begins from the published schedules"),
        (("gather", "--offload"), "--offload and --weights gather"),
        (
            ("ring", "--mem-limit", "min", "--target", "steady"),
            "--target steady and --weights ring, with which every rank runs",
        ),
        (
            ("auto", "--mem-limit", "min", "--target", "200%", "--partition", "auto"),
            "--partition auto and --weights auto",
        ),
        (
            ("auto", "--mem-limit", "min", "--target", "200%", "--placement", "auto"),
            "name the placement (linear, looped:2, v, …)",
        ),
        (("ring", "--solver", "milp"), "its model is of weights that stay"),
        (("ring", "--micro-batches", "6"), "given 6 for 4 ranks; give a multiple of 4"),
        (("ring", "--ranks", "1"), "needs at least two ranks, given 1"),
    ],
)
def test_options_that_do_not_go_with_weight_passing_are_refused(
    synth: Synth, arguments: tuple[str, ...], words: str
) -> None:
    ended = synth(*SOLVE, "--weights", *arguments)
    assert ended.code == 2 and words in ended.stderr


def test_the_least_limit_for_a_target_is_found_with_a_lower_bound(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    least = ("--mem-limit", "min", "--target", "300%")
    ended = synth(*SOLVE, "--weights", "auto", "--placement", "looped:2", *least, "-o", path)
    assert ended.code == 0, ended.stderr
    assert "for all candidates that were tried: " in ended.stdout
    Plan.load(path).check()
    alone = synth(*SOLVE, "--weights", "gather", *least, "--format", "json")
    found = json.loads(alone.stdout)
    assert found["not_below_bytes"] <= found["cap_bytes"]
    assert found["value_us"] <= found["target_us"]


@pytest.mark.usefixtures("kept_workers")
def test_a_curve_with_weight_passing_names_it_and_is_of_no_other_problem(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "curve.json"
    problem = ("frontier", NAME, "--ranks", "4", "--micro-batches", "4", "--link", "10us,25GB/s")
    asked = (*problem, "--time-limit", "1s", "--gap", "80%", "--jobs", "1", "-o", path)
    ended = synth(*asked, "--points", "2", "--weights", "gather", "--format", "json")
    assert ended.code == 0, ended.stderr
    curve = json.loads(ended.stdout)
    assert curve["candidates"][0] == "gather, all-stages:1"
    assert {point["weights"] for point in curve["points"]} == {"gather"}
    assert curve["never_below_bytes"] <= curve["points"][0]["cap_bytes"]
    # A curve of an earlier version has the placement's earlier name, and is continued.
    path.write_text(path.read_text().replace("all-stages:", "replicated:"))
    shown = synth(*asked, "--points", "2", "--weights", "gather")
    assert "by a closed form" in shown.stdout
    other = synth(*asked, "--points", "2", "--weights", "ring")
    assert other.code == 2 and "weights: gather, all-stages:1; " in other.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gather", "--partition", "auto"), "a curve has one partition for each candidate"),
        (("ring", "--placement", "v"), "--placement v and --weights ring"),
        (("ring", "--recompute", "layers:0-3"), "lists layers, which `synth solve` takes"),
        (("auto", "--micro-batches", "6"), "weights can only stay with 6 micro-batches on 4 ranks"),
    ],
)
def test_options_that_do_not_go_with_such_a_curve_are_refused(
    synth: Synth, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    problem = ("frontier", NAME, "--ranks", "4", "--micro-batches", "4")
    ended = synth(*problem, "-o", tmp_path / "curve.json", "--weights", *arguments)
    assert ended.code == 2 and words in ended.stderr


def test_compare_has_a_row_of_the_solver_with_weight_passing(synth: Synth) -> None:
    problem = ("compare", NAME, "--ranks", "4", "--micro-batches", "4", "--link", "10us,25GB/s")
    only = ("--only", "zero3", "--placement", "linear", "--time-limit", "30s", "--gap", "80%")
    ended = synth(*problem, *only, "--weights", "gather", "--format", "json")
    found = {one["name"]: one for one in json.loads(ended.stdout)["schedules"]}
    assert found["solved gather"]["makespan_us"] <= found["zero3"]["makespan_us"]
    assert found["solved gather"]["lower_bound_us"] <= found["solved gather"]["makespan_us"]
    refused = synth(*problem, "--weights", "star")
    assert refused.code == 2 and "give ring or gather" in refused.stderr
