"""Objects that ranks send each other are unpickled only if a rank of the same run signed them."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from synth.errors import RunFailure
from synth.runtime.execution.transport.objects import packed, unpacked
from synth.runtime.run_folder import named_to_ranks, run_folder, run_key


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def test_objects_come_through(tmp_path: Path) -> None:
    with named_to_ranks(tmp_path):
        assert unpacked(packed({"a": [1, None]})) == {"a": [1, None]}


@pytest.mark.parametrize("signed", ["not", "without a key", "by another run"])
def test_what_no_rank_signed_is_refused_and_runs_no_code(tmp_path: Path, signed: str) -> None:
    bomb, ours, others = Bomb(tmp_path / "exploded"), tmp_path / "ours", tmp_path / "others"
    ours.mkdir()
    others.mkdir()
    message = as_tensor(bytes(32) + pickle.dumps(bomb))
    if signed == "without a key":
        message = packed(bomb)
    if signed == "by another run":
        with named_to_ranks(others):
            message = packed(bomb)
    with named_to_ranks(ours), pytest.raises(RunFailure, match="no rank of this run has sent"):
        unpacked(message)
    assert not bomb.path.exists()


def test_the_key_is_of_the_block_and_its_file_of_the_user(tmp_path: Path) -> None:
    assert run_folder() is None and run_key() == b""
    with named_to_ranks(tmp_path):
        assert run_folder() == tmp_path and len(run_key()) == 32
        assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert run_folder() is None
