"""`synth emulate` as a user meets it: a published profile's plan, run without a model."""

import json
from pathlib import Path

import pytest

from synth.families import generate
from synth.report.explain.overlay import overlay
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.program_text import program_text
from synth.schedule.files.weight_records import Versions
from synth.schedule.measured.trace_file import Source, Trace
from tests.cli.conftest import Synth
from tests.cli.forked_command import run_forked


def test_a_published_profiles_plan_runs_and_is_laid_beside_its_simulation(
    plan_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    fast = ("--times", "0.1", "--steps", "4")
    ended = run_forked("emulate", plan_file, *fast, "--trace", path, "--width", "100")

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("EMULATED DEVICES")
    # 48 boundaries of 28 MB in 91 ms would be 15 GB/s.
    assert "all sizes are multiplied by 0.01 (--sizes 1 keeps them)" in ended.stderr
    assert "rank 3  planned" in ended.stdout and "measured − predicted" in ended.stdout
    trace, plan = Trace.load(path), Plan.load(plan_file)
    trace.check_of(plan)
    assert (trace.source, [step.step for step in trace.steps]) == (Source.EMULATED, [2, 3])
    assert all(step.step_us >= 0.1 * plan.claim.makespan_us for step in trace.steps)
    overlaid = overlay(plan, plan.check()[0], path)
    assert overlaid.difference is not None
    assert overlaid.difference.predicted_us == pytest.approx(0.1 * plan.claim.makespan_us, rel=0.02)


def test_as_json_it_says_that_it_is_emulated_and_keeps_the_planned_memory(
    synth_on_pool: Synth, plan_file: Path
) -> None:
    small = ("--times", "0.1", "--sizes", "0.001", "--steps", "3", "--format", "json")
    ended = synth_on_pool("emulate", plan_file, *small)
    assert ended.code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["emulated"] is True
    assert found["measured_peak_bytes"] == found["predicted_peak_bytes"]
    assert found["measured_us"] >= found["predicted_us"]


def test_reductions_within_ranks_are_left_out_and_the_answer_says_so(
    synth_on_pool: Synth, plan_file: Path, tmp_path: Path
) -> None:
    plan, path = Plan.load(plan_file), tmp_path / "plan.json"
    stages = tuple(stage.replace(reduce_us=10**4) for stage in plan.costs.stages)
    costs = plan.costs.replace(stages=stages)
    plan.replace(costs=costs, claim=Claim.of(plan.schedule(), costs)).save(path)
    small = ("--times", "0.1", "--sizes", "0.001", "--steps", "3")
    ended = synth_on_pool("emulate", path, *small)
    assert ended.code == 0, ended.stderr
    line = "left out: reductions of gradients among the devices of a rank"
    assert sum(one.startswith(line) for one in ended.stdout.splitlines()) == 1
    found = json.loads(synth_on_pool("emulate", path, *small, "--json").stdout)
    assert line.removeprefix("left out: ") in found["left_out"]
    without = json.loads(synth_on_pool("emulate", plan_file, *small, "--json").stdout)
    assert without["left_out"] is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("--sizes", "0"), "give a factor above 0"),
        (("--times", "0"), "give a factor above 0"),
        (("--times", "nan"), "--times nan is no finite number"),
    ],
)
def test_a_factor_that_is_none_is_refused(
    synth: Synth, plan_file: Path, wrong: tuple[str, str], message: str
) -> None:
    ended = synth("emulate", plan_file, *wrong)
    assert (ended.code, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1  # and no word of what would then be moved


def test_what_is_not_replayed_is_refused_before_processes_start(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    plan = Plan.load(plan_file)
    schedule = generate("pipedream", plan.num_ranks, 8)
    path = tmp_path / "plan.json"
    plan.replace(
        versions=Versions.of(schedule.versions),
        num_micro_batches=8,
        caps_bytes=None,
        programs=tuple(map(program_text, schedule.programs)),
        claim=Claim.of(schedule, plan.costs),
    ).save(path)
    ended = synth("emulate", path, "--post-validation", "--sizes", "0.001")
    assert (ended.code, ended.stdout) == (2, "")
    assert "leave out --post-validation" in ended.stderr
