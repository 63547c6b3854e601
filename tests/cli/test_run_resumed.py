"""`synth run` resumes from checkpoints that are damaged, of other data, or of another optimizer."""

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import Synth


def numbers(path: Path) -> tuple[int, list[float]]:
    found = json.loads(path.read_text())
    return found["first_step"], found["losses"]


def test_a_damaged_last_checkpoint_is_refused_with_the_way_on_which_works(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    common: tuple[Any, ...] = (run_plan, "--data", text, "--device", "cpu", "--checkpoint", folder)
    ended = synth_on_pool(
        "run", *common, "--steps", 4, "--checkpoint-every", 2, "-o", tmp_path / "1.json"
    )
    assert ended.code == 0, ended.stderr
    damaged = folder / "step-4" / "rank-0.safetensors"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    refused = synth_on_pool("run", *common, "--steps", 4, "--resume")
    assert refused.code == 5
    assert "rank-0.safetensors is damaged: the checksum of" in refused.stderr
    assert "--resume-from last-good continues from the last intact one" in refused.stderr
    assert "Traceback" not in refused.stderr

    again = ("--resume-from", "last-good", "-o", tmp_path / "2.json")
    ended = synth_on_pool("run", *common, "--steps", 4, *again)
    assert ended.code == 0, ended.stderr
    first_step, losses = numbers(tmp_path / "2.json")
    assert first_step == 2
    assert losses == numbers(tmp_path / "1.json")[1][2:]
    assert {path.name for path in folder.iterdir()} == {
        *("step-2", "step-4", "step-4.set-aside", ".lock")
    }


def test_other_data_and_another_optimizer_are_refused_in_one_line_each(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data.txt"
    data.write_text(text.read_text())
    saved = ("--checkpoint", tmp_path / "saved", "--device", "cpu")
    ended = synth_on_pool("run", run_plan, "--data", data, "--steps", 2, *saved)
    assert ended.code == 0, ended.stderr
    resumed = (run_plan, "--data", data, "--steps", 3, *saved, "--resume")

    refused = synth_on_pool("run", *resumed, "--optimizer", "sgd")
    assert refused.code == 2
    assert "made with optimizer adamw, this run has sgd" in refused.stderr
    data.write_text(text.read_text().upper())
    refused = synth_on_pool("run", *resumed)
    assert refused.code == 2
    assert "trained on other data" in refused.stderr
    assert refused.stderr.strip().count("\n") == 0

    ended = synth_on_pool(
        "run", *resumed, "--ignore-data", "--ignore-optimizer", "--optimizer", "sgd"
    )
    assert ended.code == 0, ended.stderr
