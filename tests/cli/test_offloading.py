"""From a profile to a run under a schedule that moves what forwards save."""

import json
from pathlib import Path

import pytest

from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import Timing
from synth.profile.links import Link
from synth.report.explain.overlay import overlay
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.programs import Transfer
from synth.schedule.measured.trace_file import Trace
from tests.cli.conftest import TINY, Synth

TINY_MODEL = [f"--arg={name}={value}" for name, value in TINY.items()]
SHAPE = ("--micro-batch-size", "2", "--seq-len", "16", "--device", "cpu")


def profiled(synth: Synth, folder: Path) -> Path:
    """A profile of this machine, but for times and the host's link: what moves depends on them."""
    path = folder / "profile.json"
    measured = ("--warmup", "0", "--iters", "2", "-o", path)
    ended = synth("profile", "gpt", *TINY_MODEL, *SHAPE, *measured)
    assert ended.code == 0, ended.stderr
    assert "link to the host's memory: latency" in ended.stdout
    assert "links.host is a copy within the CPU's own memory" in ended.stdout
    profile = Profile.load(path)
    assert profile.links.host is not None and profile.links.host.bandwidth_bytes_per_s
    host = Link(latency_us=10.0, bandwidth_bytes_per_s=5e9)
    layers = {
        name: layer.replace(time_us=dict.fromkeys(layer.time_us, Timing.exactly(1000)))
        for name, layer in profile.layer_profiles.items()
    }
    profile.replace(links=profile.links.replace(host=host), layer_profiles=layers).save(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_ranks"), [("pipeoffload:2,full", 2), ("bpipe", 4)], ids=["host", "ranks"]
)
def test_a_row_of_compare_that_moves_is_run_to_the_end(
    synth_on_pool: Synth, tmp_path: Path, text: Path, name: str, num_ranks: int
) -> None:
    synth = synth_on_pool
    profile, plans, path = profiled(synth, tmp_path), tmp_path / "plans", tmp_path / "trace.json"
    size = ("--ranks", num_ranks, "--micro-batches", 2 * num_ranks)
    rows = ("--only", name, "--no-solve", "--save", plans)
    assert synth("compare", profile, *map(str, size), *rows).code == 0
    file = plans / f"{name.replace(':', '-').replace(',', '-')}.json"
    plan = Plan.load(file)
    assert any(op.kind == OpKind.OFFLOAD for ops in plan.schedule().programs for op in ops)

    common = ("--data", text, "--steps", 4, "--device", "cpu", "--format", "json")
    ran = synth("run", file, *common, "--trace", path)
    assert ran.code == 0, ran.stderr
    comparison = json.loads(ran.stdout)["comparison"]
    peaks = comparison["predicted_peak_bytes"], comparison["measured_peak_bytes"]
    for predicted, measured in zip(*peaks, strict=True):
        assert 0.9 * predicted < measured <= predicted

    lowered, _ = plan.check()
    execution = Trace.load(path).steps[-1].execution()
    moved = {
        span.communication
        for span in execution.communications
        if isinstance(span.communication, Transfer)
    }
    assert moved == set(lowered.transfers)
    assert overlay(plan, lowered, path).difference is not None
    shown = synth("show", file, "--measured", path, "--perfetto", tmp_path / "both.json")
    assert (
        shown.code == 0 and "\n        out  " in shown.stdout and "\n        back" in shown.stdout
    )
    if name != "bpipe":
        assert '"to the host, measured"' in (tmp_path / "both.json").read_text()


@pytest.mark.slow
def test_a_plan_whose_offloads_were_chosen_learns_as_one_without(
    synth_on_pool: Synth, tmp_path: Path, text: Path
) -> None:
    """Two stages on each of two ranks, in four fifths of the memory of the plan without a limit."""
    synth, profile = synth_on_pool, profiled(synth_on_pool, tmp_path)
    size = (
        "--ranks",
        "2",
        "--micro-batches",
        "4",
        "--placement",
        "looped:2",
        "--partition",
        "even",
    )
    asked = (*size, "--recompute", "none", "--time-limit", "6s", "--workers", "1")
    losses, plans = [], []
    limit = "none"
    for name in ("without", "with"):
        file, output = tmp_path / f"{name}.json", tmp_path / f"{name}-run.json"
        offload = ("--offload",) if name == "with" else ()
        ended = synth("solve", profile, *asked, "--mem-limit", limit, *offload, "-o", file)
        assert ended.code == 0, ended.stderr
        plan = Plan.load(file)
        plans.append(plan)
        limit = f"{round(0.8 * max(plan.claim.peak_bytes))}B"
        ran = synth("run", file, "--data", text, "--steps", 4, "--device", "cpu", "-o", output)
        assert ran.code == 0, ran.stderr
        losses.append(json.loads(output.read_text())["losses"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    kept, moved = (plan.schedule() for plan in plans)
    assert moved.offloads and not kept.offloads
    checked = synth("check", tmp_path / "with.json", "--prove", "--profile", profile)
    assert checked.code == 0 and "proven again" in checked.stdout, checked.stdout
    explained = synth("explain", tmp_path / "with.json")
    assert explained.code == 0, explained.stderr
    shown = synth("show", tmp_path / "with.json")
    assert "saved values leave" in shown.stdout
    compared = synth(
        *("compare", profile, *size[:4], "--only", "pipeoffload:2", "--offload"),
        *("--mem-limit", limit, "--time-limit", "1s", "--format", "json"),
    )
    assert compared.code == 0, compared.stderr
