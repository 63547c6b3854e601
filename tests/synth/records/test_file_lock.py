"""Locks between processes: taken by one, lost with it, and never of a file that is gone."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.errors import SynthError
from synth.records.file_lock import only_writer, take

HOLD = """
import sys, time
from pathlib import Path
from synth.records.file_lock import take
take(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of `out`."""
    lock = str(tmp_path / ".out.lock")
    command = [sys.executable, "-c", HOLD, lock]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_what_another_process_writes_is_refused_and_says_who_it_is(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    with (
        pytest.raises(
            SynthError, match=f"out is being written by process {holder.pid} on .*; wait"
        ),
        only_writer(tmp_path / "out", "wait"),
    ):
        raise AssertionError("two at once")


def test_a_lock_ends_with_its_process(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.kill()
    holder.wait()
    with only_writer(tmp_path / "out", "wait"):
        # Asked from another process: opening and closing the file in this one would let go.
        command = [sys.executable, "-c", HOLD, str(tmp_path / ".out.lock")]
        refused = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
        assert f"Taken: process {os.getpid()} on " in refused.stderr
    assert not list(tmp_path.iterdir())


def test_through_a_link_the_same_file_is_locked(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "out")
    with pytest.raises(SynthError), only_writer(tmp_path / "elsewhere" / "link", "wait"):
        raise AssertionError("two at once")


def test_a_lock_that_its_holder_has_just_taken_away_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking the holder ends: two could else hold locks of two files."""
    lock, opened = tmp_path / "lock", []
    really_open = os.open

    def open_then_lose(path: Path, *arguments: int) -> int:
        opened.append(really_open(path, *arguments))
        if len(opened) == 1:
            lock.unlink()
        return opened[-1]

    monkeypatch.setattr(os, "open", open_then_lose)
    handle = take(lock)
    assert handle is not None and os.path.samestat(os.fstat(handle), os.stat(lock))
    assert len(opened) == 2
    os.close(handle)


def test_what_is_no_file_is_not_locked(tmp_path: Path) -> None:
    with only_writer(Path("/dev/null"), "wait"), only_writer(Path("/dev/null"), "wait"):
        assert not Path("/dev/.null.lock").exists()


def test_a_folder_in_which_nothing_can_be_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "out"
    with (
        pytest.raises(SynthError, match=r"cannot write .*\.out\.lock: "),
        only_writer(path, "wait"),
    ):
        raise AssertionError("not locked")


def test_a_lock_file_that_may_not_be_opened_says_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".out.lock").write_text("")

    def refuse(*arguments: object) -> int:  # tests may run as root
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with (
        pytest.raises(SynthError, match=r"Permission denied; if nobody writes out any more, del"),
        only_writer(tmp_path / "out", "wait"),
    ):
        raise AssertionError("not locked")


@pytest.mark.parametrize("where", ["lockf", "stat"])
def test_a_file_handle_that_went_stale_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """This happens on NFS, when a holder on another machine has removed the file."""
    module = fcntl if where == "lockf" else os
    really, calls = getattr(module, where), []

    def stale_once(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return really(*arguments, **options)

    monkeypatch.setattr(module, where, stale_once)
    handle = take(tmp_path / "lock")
    assert handle is not None and len(calls) == 2
    os.close(handle)


def test_where_there_are_no_locks_it_goes_on_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.warns(UserWarning, match=r"lock cannot be locked \(No locks available\)"):
        assert take(tmp_path / "lock") is None


def test_an_open_pipe_is_not_locked_and_is_written_to(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from synth.records.file_lock import only_writer; "
        "from synth.records.safe_write import check_writable, write_atomically\n"
        "p = Path('/dev/stdout')\ncheck_writable(p)\n"
        "with only_writer(p, ''): write_atomically(p, 'text')"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"text"
