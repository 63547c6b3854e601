"""`synth profile` compares a whole step with its parts, in words and for scripts."""

import json
from pathlib import Path

from synth.profile import Profile
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
