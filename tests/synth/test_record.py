"""Files are written whole or not at all, and never over what is no file."""

import os
from pathlib import Path

import pytest

from synth.errors import SynthError
from synth.record import check_writable, write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_is_written_to_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_an_output_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path, message in (
        (tmp_path, "it is a folder"),
        (tmp_path / "missing" / "file", "is missing"),
        (file / "inner", "is a file, not a folder"),
    ):
        with pytest.raises(SynthError, match=message):
            check_writable(path)
