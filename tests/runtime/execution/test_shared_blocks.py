"""Blocks of memory that ranks share are opened such that nobody else can put his in their place."""

import os
from pathlib import Path

import pytest

from synth.errors import SynthError
from synth.runtime.execution.transport.host.shared_host import SharedHost


def shared(folder: Path) -> SharedHost:
    """The memory of a lone rank; its signals are mapped."""
    return SharedHost(f"{folder}/synth-host-", 0, 1, (), timeout_s=5)


def test_ranks_that_open_a_block_of_one_name_share_it(tmp_path: Path) -> None:
    one, other = shared(tmp_path), shared(tmp_path)
    one.block("weights", 4)[2] = 7
    assert other.block("weights", 4).tolist() == [0, 0, 7, 0]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_link_in_the_place_of_a_block_is_refused_and_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"kept")
    (tmp_path / "synth-host-weights").symlink_to(precious)
    with pytest.raises(SynthError, match="cannot give 64 bytes"):
        shared(tmp_path).block("weights", 64)
    assert precious.read_bytes() == b"kept"


def test_a_dangling_link_in_the_place_of_a_block_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "synth-host-weights").symlink_to(tmp_path / "made")
    with pytest.raises(SynthError, match="cannot give 64 bytes"):
        shared(tmp_path).block("weights", 64)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("case", ["others may write", "hard link", "pipe"])
def test_a_file_that_no_rank_has_made_is_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "synth-host-weights"
    if case == "pipe":
        os.mkfifo(path, 0o600)
    else:
        path.write_bytes(b"planted")
        path.chmod(0o666 if case == "others may write" else 0o600)
    if case == "hard link":
        os.link(path, tmp_path / "other-name")
    with pytest.raises(SynthError, match="was not made by a rank of this run"):
        shared(tmp_path).block("weights", 64)
