"""Profiles from a busy machine and plans that were changed: one warning line, and the work is
done."""

import json
from pathlib import Path
from typing import Any

import pytest

from synth.profile import Profile
from synth.profile.measurement_conditions import Conditions
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import NAME, TINY, Ended, Synth

BUSY = Conditions(load_start=1.7, waiting_share=0.31, spread=0.1)
SIGNS = "on a busy machine (load 1.7 per processor, 31 % of the time without a processor)"
SIZES = ("--ranks", "2", "--micro-batches", "2")


def warnings(ended: Ended) -> list[str]:
    """Return the warnings on stderr of a command that succeeded."""
    assert ended.code == 0, ended
    return [line for line in ended.stderr.splitlines() if line.startswith("warning: ")]


def changed(plan_file: Path, folder: Path) -> Path:
    """A plan under another name than its fingerprint says."""
    data = json.loads(plan_file.read_text())
    path = folder / "changed.json"
    path.write_text(json.dumps(data | {"name": "another"}))
    return path


@pytest.fixture
def busy_profile(tmp_path: Path) -> Path:
    profile = Profile.load(find(NAME))
    path = tmp_path / "busy.json"
    profile.replace(provenance=profile.provenance.replace(conditions=BUSY)).save(path)
    return path


@pytest.fixture
def busy_plan(run_plan: Path, tmp_path: Path) -> Path:
    path = tmp_path / "busy-plan.json"
    Plan.load(run_plan).replace(conditions=BUSY).save(path)
    return path


def test_profile_warns_of_a_busy_machine(
    synth: Synth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from synth.runtime.profiling import machine_watch

    senses = machine_watch.Senses(load=lambda: 9.0 * 1024)
    monkeypatch.setattr(machine_watch, "Senses", lambda: senses)
    words = [f"--arg={name}={value}" for name, value in TINY.items()]
    output = tmp_path / "profile.json"
    sizes = ("--seq-len", "16", "--iters", "2", "--device", "cpu")
    ended = synth("profile", "gpt", *words, *sizes, "-o", output)
    [warning] = warnings(ended)
    assert warning.startswith("warning: this profile was measured on a busy machine (load ")
    conditions = Profile.load(output).provenance.conditions
    assert conditions is not None and conditions.load_start is not None


def test_solve_warns_of_a_profile_from_a_busy_machine(
    synth: Synth, busy_profile: Path, tmp_path: Path
) -> None:
    output = tmp_path / "plan.json"
    limits = ("--time-limit", "2s", "--gap", "50%", "--format", "json")
    ended = synth("solve", busy_profile, *SIZES, *limits, "-o", output)
    [warning] = warnings(ended)
    assert warning.startswith(f"warning: profile {NAME} was measured {SIGNS}")
    assert json.loads(ended.stdout)["conditions"] == BUSY.model_dump(exclude_none=True)
    assert Plan.load(output).conditions == BUSY


def test_run_warns_of_a_plan_for_such_a_profile(
    synth_on_pool: Synth, busy_plan: Path, text: Path, tmp_path: Path
) -> None:
    steps = ("--steps", "1", "--device", "cpu", "-o", tmp_path / "run.json")
    [warning] = warnings(synth_on_pool("run", busy_plan, "--data", text, *steps))
    assert warning.startswith(f"warning: profile gpt of this plan was measured {SIGNS}")
    written: dict[str, Any] = json.loads((tmp_path / "run.json").read_text())
    assert written["conditions"] == BUSY.model_dump(exclude_none=True)


@pytest.mark.parametrize("command", ["show", "export", "emulate"])
def test_a_plan_that_was_changed_is_warned_of(
    synth_on_pool: Synth, plan_file: Path, tmp_path: Path, command: str
) -> None:
    more = ("--steps", "3", "--times", "0.02", "--sizes", "1e-6") if command == "emulate" else ()
    path = changed(plan_file, tmp_path)
    told = warnings(synth_on_pool(command, path, *more))
    assert told[0] == (
        f"warning: {path}: the file was changed after it was written: its fingerprint does not "
        f"fit name; make it again with `synth solve`"
    )
    assert sum("fingerprint" in line for line in told) == 1


def test_run_warns_of_a_plan_that_was_changed_once(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    steps = ("--steps", "1", "--device", "cpu")
    told = warnings(synth_on_pool("run", changed(run_plan, tmp_path), "--data", text, *steps))
    assert sum("fingerprint" in line for line in told) == 1


def test_a_broken_fingerprint_is_warned_of(synth: Synth, plan_file: Path, tmp_path: Path) -> None:
    data = json.loads(plan_file.read_text())
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(data | {"fingerprint": 3}))
    [warning] = warnings(synth("show", path))
    assert "'fingerprint' in the file is not a fingerprint" in warning


def test_a_plan_without_a_fingerprint_is_not_warned_of(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    data = json.loads(plan_file.read_text())
    del data["fingerprint"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    assert warnings(synth("show", path)) == []
