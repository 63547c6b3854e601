"""`synth run` as a user meets it: with processes of its own, and on a pool's where losses count."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from synth.families import generate
from synth.plan.reason import reason_of
from synth.profile.workload import Workload
from synth.report.explain.difference import Difference
from synth.runtime.profiling.profile_model import profile_model
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.program_text import program_text
from synth.schedule.measured.trace_file import Source, Trace
from tests.cli.conftest import Synth
from tests.cli.forked_command import run_forked
from tests.tied_model import TIED


def test_a_run_learns_and_keeps_the_planned_memory(
    run_plan: Path, text: Path, tmp_path: Path
) -> None:
    output, trace_path = tmp_path / "run.json", tmp_path / "trace.json"
    html = tmp_path / "run.html"
    drawing = ("--html", html, "--picture", html.with_suffix(".svg"))
    tracing = ("--trace", trace_path, "--trace-every", 5, *drawing)
    options = ("--data", text, "--steps", 20, "--device", "cpu", "-o", output, *tracing)
    command = [sys.executable, "-m", "synth", "run", run_plan, *options]
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)

    assert ended.returncode == 0, ended.stderr
    assert "planned" in ended.stdout and "measured" in ended.stdout
    found = json.loads(output.read_text())
    assert len(found["losses"]) == 20
    assert found["losses"][-1] < 0.8 * found["losses"][0]
    tokens_per_step = 4 * 2 * 32  # micro-batches of two sequences
    per_second = tokens_per_step / statistics.median(found["step_seconds"][2:])
    assert found["tokens_per_second"] == pytest.approx(per_second)
    assert f"median step, all ranks together: {per_second:,.0f} tokens/s" in ended.stdout
    comparison = found["comparison"]
    for predicted, measured in zip(
        comparison["predicted_peak_bytes"], comparison["measured_peak_bytes"], strict=True
    ):
        assert 0.9 * predicted < measured <= predicted
    assert comparison["measured_us"] > 0
    measured_ops = {(op["stage"], op["kind"]) for op in comparison["ops"]}
    assert measured_ops == {(stage, kind) for stage in (0, 1) for kind in ("F", "B", "W", "STEP")}
    difference = Difference.model_validate(comparison["difference"])
    assert difference.total_us == pytest.approx(difference.measured_us - difference.predicted_us)
    _check_trace(Trace.load(trace_path), Plan.load(run_plan))
    picture = html.with_suffix(".svg").read_text()
    assert picture.count("measured</text>") == 1 + 2
    plan = Plan.load(run_plan)
    said = " ".join(re.findall(r">([^<]*)</text>", picture))
    assert reason_of(plan, *plan.check()) in said  # with one device per rank
    assert '"title": "planned"' in html.read_text() and '"title": "measured"' in html.read_text()


def _check_trace(trace: Trace, plan: Plan) -> None:
    """One step in five is traced, and holds every op and transfer of the plan."""
    trace.check_of(plan)
    assert (trace.source, [step.step for step in trace.steps]) == (Source.MEASURED, [2, 7, 12, 17])
    lowered, _ = plan.check()
    for step in trace.steps:
        execution = step.execution()
        assert [[span.op for span in rank] for rank in execution.ops] == [
            list(r) for r in lowered.ops
        ]
        assert {span.communication for span in execution.communications} == set(lowered.transfers)
        assert all(0 <= span.start_us <= span.end_us for rank in execution.ops for span in rank)


def test_pipelines_side_by_side_learn_what_one_learns_from_as_many_mini_batches(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    found = {}
    for option in ("--data-parallel", "--accumulate"):
        output = tmp_path / f"run{option}.json"
        common = ("--data", text, "--steps", 6, "--device", "cpu", "-o", output)
        ended = synth_on_pool("run", run_plan, option, 2, *common)
        assert ended.code == 0, ended.stderr
        found[option] = json.loads(output.read_text())
    side_by_side, one = found["--data-parallel"], found["--accumulate"]
    assert side_by_side["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert (side_by_side["data_parallel"], one["data_parallel"]) == (2, 1)
    comparison = side_by_side["comparison"]
    for predicted, measured in zip(
        comparison["predicted_peak_bytes"], comparison["measured_peak_bytes"], strict=True
    ):
        assert 0.9 * predicted < measured <= predicted
    per_second = 2 * 4 * 2 * 32 / statistics.median(side_by_side["step_seconds"][2:])
    assert side_by_side["tokens_per_second"] == pytest.approx(per_second)


@pytest.mark.slow
def test_a_run_of_several_pipelines_goes_on_from_the_checkpoint_of_one(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    saved = ("--checkpoint", tmp_path / "saved")
    common = ("--data", text, "--device", "cpu")
    output = tmp_path / "run.json"
    ended = synth_on_pool("run", run_plan, "--accumulate", 2, *common, "--steps", 2, *saved)
    assert ended.code == 0, ended.stderr
    resumed = (*saved, "--resume", "-o", output)
    ended = synth_on_pool("run", run_plan, "--data-parallel", 2, *common, "--steps", 4, *resumed)
    assert ended.code == 0, ended.stderr
    assert "resumed from" in ended.stderr
    parts = json.loads(output.read_text())["losses"]
    whole = tmp_path / "whole.json"
    ended = synth_on_pool("run", run_plan, "--accumulate", 2, *common, "--steps", 4, "-o", whole)
    assert parts == pytest.approx(json.loads(whole.read_text())["losses"][2:], rel=1e-5)


@pytest.mark.slow
def test_a_rank_that_looks_ahead_learns_the_same(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    losses = []
    for number in (0, 2):
        output = tmp_path / f"run-{number}.json"
        asked = ("--steps", 5, "--device", "cpu", "-o", output, "--look-ahead", number)
        ended = synth_on_pool("run", run_plan, "--data", text, *asked)
        assert ended.code == 0, ended.stderr
        assert ("ops that ran early" in ended.stdout) == (number > 0)
        losses.append(json.loads(output.read_text())["losses"])
    assert losses[0] == losses[1]


def test_epochs_are_gone_through_to_their_end_and_nothing_is_left_to_do_then(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    data, output = tmp_path / "data.txt", tmp_path / "run.json"
    data.write_bytes(text.read_bytes()[: 32 * 8 * 3 + 1])  # eight sequences in a step
    arguments = (run_plan, "--data", data, "--epochs", 2, "--device", "cpu", "-o", output)
    ended = synth_on_pool("run", *arguments, "--checkpoint", tmp_path / "saved", "--resume")
    assert ended.code == 0, ended.stderr
    assert "the data ended after 6 steps (2 epoch(s) of 24 sequences)" in ended.stderr
    written = output.read_text()
    assert len(json.loads(written)["losses"]) == 6

    # The pool's processes are still there, and with them their lock on the folder.
    copied = shutil.copytree(tmp_path / "saved", tmp_path / "copied")
    again = run_forked("run", *arguments, "--checkpoint", copied, "--resume", "--restarts", 1)
    assert (again.returncode, again.stdout) == (0, "")
    assert "nothing is left to do: the checkpoint holds all 6 steps of this run" in again.stderr
    assert output.read_text() == written


@pytest.mark.slow
def test_two_copies_of_the_stages_learn_what_one_copy_learns(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    plan = Plan.load(run_plan)
    copied = generate("chimera", 2, 4)
    costs = plan.costs
    other = plan.replace(
        name=copied.name,
        placement=copied.placement.ranks,
        receive_ahead=copied.buffering.receive_ahead,
        send_behind=copied.buffering.send_behind,
        programs=tuple(map(program_text, copied.programs)),
        claim=Claim.of(copied, costs),
    )
    other.save(tmp_path / "copied.json")
    losses = []
    for path in (run_plan, tmp_path / "copied.json"):
        output = tmp_path / "run.json"
        options = ("--steps", 6, "--device", "cpu", "-o", output)
        ended = synth_on_pool("run", path, "--data", text, *options)
        assert ended.code == 0, ended.stderr
        found = json.loads(output.read_text())
        losses.append(found["losses"])
        comparison = found["comparison"]
        for predicted, measured in zip(
            comparison["predicted_peak_bytes"], comparison["measured_peak_bytes"], strict=True
        ):
            assert measured <= predicted
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_an_embedding_and_a_head_stay_tied_across_ranks(
    synth_on_pool: Synth, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(TIED)
    model = f"{tmp_path / 'model.py'}:layers"
    workload = Workload(model=model, micro_batch_size=2, sequence_length=16)
    profile = profile_model(workload, torch.device("cpu"), warmup=0, iterations=1)
    losses = []
    for name, sizes in (("gpipe", [4]), ("zb-h1", [2, 2]), ("chimera", [2, 2])):
        plan, output = tmp_path / "plan.json", tmp_path / "run.json"
        Plan.of(profile, sizes, generate(name, len(sizes), 4)).save(plan)
        options = ("--steps", 5, "--lr", 0.01, "--clip", 0.5, "--device", "cpu", "-o", output)
        ended = synth_on_pool("run", plan, "--data", text, "--model", model, *options)
        assert ended.code == 0, ended.stderr
        losses.append(json.loads(output.read_text())["losses"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)


def test_inside_torchrun_a_wrong_world_size_is_named(run_plan: Path, text: Path) -> None:
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    ended = run_forked(
        "run", run_plan, "--data", text, "--device", "cpu", env=os.environ | environment
    )
    assert ended.returncode == 2
    assert "the plan is for 2 ranks, this run has 1 processes" in ended.stderr
    assert "--ranks 1" in ended.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"short", "has 5 tokens; one sequence of this profile needs 33"), (None, "cannot read data")],
    ids=["too small", "missing"],
)
def test_bad_data_is_refused_before_any_process_starts(
    synth: Synth, run_plan: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    data = tmp_path / "data.txt"
    if content is not None:
        data.write_bytes(content)
    ended = synth("run", run_plan, "--data", data, "--device", "cpu")
    assert ended.code == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_published_profiles_plan_has_nothing_to_run(
    synth: Synth, plan_file: Path, text: Path
) -> None:
    ended = synth("run", plan_file, "--data", text)
    assert ended.code == 2
    assert "profile without a model" in ended.stderr
