"""`synth profile` compares a whole step with its parts, in words and for scripts."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from synth.profile import Profile
from synth.profile.whole_step import WholeStep
from synth.runtime.profiling.whole_step import WholeStepRun
from tests.cli.conftest import Synth

SMALL = (
    "profile", "gpt", "--arg", "width=16", "--arg", "num_blocks=3", "--arg", "num_heads=2",
    "--arg", "vocabulary_size=32", "--arg", "context_length=8", "--seq-len", "8", "--iters", "2",
    "--warmup", "1", "--device", "cpu",
)  # fmt: skip


def test_a_profile_for_scripts_has_the_whole_step_and_its_file_has_not(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    ended = synth(*SMALL, "-o", path, "--json")
    assert ended.code == 0, ended.stderr
    found = json.loads(ended.stdout)
    step = found.pop("whole_step")
    assert step["layers"] == ["embedding", "block.0", "block.1", "head"]
    assert [peak["micro_batches"] for peak in step["peaks"]] == [1, 2, 4]
    profile = Profile.load(path)
    assert found == profile.to_data()
    kinds = ("embedding", "block.0", "block.0", "head")
    parts_us = sum(profile.layer_profiles[kind].work_us() for kind in kinds)
    assert abs(step["parts_us"] - parts_us) < 0.01


def test_an_interrupt_of_the_whole_step_leaves_the_profile(
    synth: Synth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "profile.json", list[Profile]()

    def interrupted(*_: Any, **__: Any) -> WholeStep:
        kept.append(Profile.load(path))
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("SIGINT was ignored")

    monkeypatch.setattr(WholeStepRun, "measure", interrupted)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ended = synth(*SMALL, "-o", path)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.code == 0
    assert "no whole step is compared with its parts, as it was interrupted\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert kept == [Profile.load(path)]
