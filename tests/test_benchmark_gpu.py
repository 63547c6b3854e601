"""The check of a GPU, tried on the CPU: no step may die of a mistake that a CPU can show."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.gpu import __main__ as check
from benchmarks.gpu.step import Step, Where, run_apart

SMALL = Where("cpu", small=True)


def found_by(name: str) -> dict[str, Any]:
    step = next(step for step in check.STEPS if step.name == name)
    found = step.run(SMALL)
    assert json.loads(json.dumps(found)) == found
    return found


def test_ranks_on_one_device_have_the_gradients_of_autograd() -> None:
    for name in ("threads", "nccl"):
        found = found_by(name)["largest_relative_difference"]
        worst = max(found.values()) if isinstance(found, dict) else found
        assert worst < 1e-5


@pytest.mark.slow
def test_rehearsed_ranks_take_what_was_planned() -> None:
    plans = found_by("rehearsal")["plans"]
    assert len(plans) == 4
    for plan in plans:
        assert all(0.9 < share <= 1 for share in plan["peak_over_planned"]), plan


@pytest.mark.slow
def test_steps_are_timed_beside_those_of_pytorch() -> None:
    rows = found_by("executor")["rows"]
    compared = {(row["order"], row["split"], row["against"]) for row in rows}
    assert len(compared) == len(rows) == 8
    assert ("interleaved", True, "native") in compared
    assert all(0 < row["step"] < 10 and row["peak"] > 0 for row in rows), rows


@pytest.mark.slow
def test_training_on_the_device_is_that_on_the_cpu() -> None:
    found = found_by("training")
    assert found["float32"]["largest_relative_difference"] == 0
    losses = found_by("optimizers")["losses"]
    assert set(losses) == {"adamw", "sgd:0.9", "adamw+master", "adamw+post-validation"}
    processes = found_by("processes")
    assert processes["largest_difference"] == 0


@pytest.mark.slow
def test_kernels_and_profiles_are_measured() -> None:
    zoo = found_by("zoo")
    assert zoo["bit_for_bit"] + len(zoo["to_rounding"]) == zoo["cases"] and not zoo["wrong"]
    rows = found_by("split-cost")["rows"]
    assert min(row["deferred_share"] for row in rows) > 0.85
    profiles = found_by("profile")
    assert all(0.85 < profiles[name]["waits_for_w"] <= 1 for name in ("llama", "moe"))
    assert found_by("offload")["seconds"]["both"] > 0


def test_a_step_that_fails_or_hangs_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "gpu.json"
    answers = iter([{"seconds": 1.0, "failed": "no such kernel"}, {"seconds": 2.0, "found": {}}])
    monkeypatch.setattr(check, "run_apart", lambda step, where, left_s: next(answers))
    asked = ["--device", "cpu", "--only", "machine", "--only", "tests", "--json", str(written)]
    assert check.main(asked) == 1
    said = capsys.readouterr().out
    assert "machine (1.0 s): FAILED\nno such kernel" in said and "failed: machine" in said
    assert set(json.loads(written.read_text())["steps"]) == {"machine", "tests"}


def test_numbers_are_shown_in_short() -> None:
    rows = [{"name": "1f1b", "step_ms": [7.665501, 8.25]}]
    assert check._text("executor", {"seconds": 2, "found": {"rows": rows}}).splitlines() == [
        "executor (2 s)",
        "  rows: ",
        "    name 1f1b, step_ms [7.666, 8.25]",
    ]


@pytest.mark.slow
def test_a_step_is_a_process_that_is_ended_in_time() -> None:
    machine = next(step for step in check.STEPS if step.name == "machine")
    assert run_apart(machine, SMALL, 600)["found"]["python"]
    began = time.monotonic()
    ended = run_apart(Step(machine.name, 600, machine.run), SMALL, 1)
    assert ended["failed"].startswith("ended after 1 s") and time.monotonic() - began < 30
