"""What is written to a folder of weights, and what becomes of it when the disk refuses."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from synth.errors import SynthError
from synth.run_options.weight_files import WeightFiles
from synth.runtime.pretrained import safetensors_files, saving
from synth.runtime.pretrained.safetensors_files import ShardWriter


def layers() -> dict[str, nn.Module]:
    return {"0": nn.Linear(2, 2), "1": nn.Linear(2, 2)}


def test_of_the_source_what_belongs_to_a_model_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    kept = ["tokenizer.json", "tokenizer_config.json", "merges.txt", "spiece.model", "LICENSE.txt"]
    kept += ["preprocessor_config.json", "generation_config.json", "chat_template.jinja"]
    left = ["trainer_state.json", "secrets.json", "notes.txt", "config.json"]
    for name in (*kept, *left):
        (source / name).write_text("{}")
    (source / "tokenizer_files").mkdir()
    os.mkfifo(source / "vocab.pipe")
    saving.save_weights(tmp_path / "out", layers(), source=source)
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == {"model.safetensors", *kept}


def test_a_disk_that_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **keywords: Any) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors_files, "save_file", full)
    with pytest.raises(SynthError, match="cannot be written: No space left"):
        saving.save_weights(tmp_path / "out", layers())
    assert not list(tmp_path.iterdir())


def test_complete_weights_that_cannot_be_renamed_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path.name == ".out.partial":
            raise OSError(16, "Device or resource busy")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(SynthError, match=r"complete in .*/\.out\.partial, which cannot be renamed"):
        saving.save_weights(tmp_path / "out", layers())
    assert (tmp_path / ".out.partial" / "model.safetensors").exists()


def test_a_mount_point_is_refused_before_work_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path)
    with pytest.raises(SynthError, match="is a mount point; give a new folder in it"):
        WeightFiles(export_weights=tmp_path).check_folders()
    WeightFiles(export_weights=tmp_path / "new").check_folders()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_folder_beside_it_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(SynthError, match="may not be written to"):
            WeightFiles(export_weights=tmp_path / "out").check_folders()
    finally:
        tmp_path.chmod(0o700)


def test_after_a_failure_other_ranks_get_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = []

    def full_tensor(tensor: Tensor) -> Tensor:
        gathered.append(tensor)
        return tensor

    def refused(*given: Any) -> None:
        raise OSError(28, "No space left on device", "out")

    monkeypatch.setattr(saving, "is_sharded", lambda tensor: True)
    monkeypatch.setattr(torch.Tensor, "full_tensor", full_tensor, raising=False)
    monkeypatch.setattr(ShardWriter, "add", refused)
    with pytest.raises(SynthError, match="No space left on device"):
        saving.save_weights(tmp_path / "out", layers())
    assert len(gathered) == 4  # of both layers the weight and the bias
