"""Files are written whole, and never over what is not a file; wrong outputs are refused before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from synth.errors import SynthError
from synth.records.safe_write import (
    check_folder,
    check_outputs,
    check_writable,
    write_atomically,
    write_together,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_written_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    synced = []

    def sync(handle: int) -> None:
        synced.append((os.pread(handle, 100, 0), path.read_text()))

    monkeypatch.setattr(os, "fsync", sync)
    write_atomically(path, "new")
    assert synced == [(b"new", "old")]
    assert path.read_text() == "new"


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


def test_an_open_file_is_written_to_where_it_stands_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "output"
    code = (
        "import sys; from synth.records.safe_write import Path, write_atomically as w\n"
        "print('one')\n"
        "for name in '/dev/stdout', '/dev/fd/1', '/proc/self/fd/1': w(Path(name), 'two\\n')\n"
        "print('three')"
    )
    with path.open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert path.read_text() == "one\ntwo\ntwo\ntwo\nthree\n"
    assert [found.name for found in tmp_path.iterdir()] == ["output"]


def test_an_output_that_would_replace_what_is_read_or_written_is_refused(tmp_path: Path) -> None:
    read, link, other = tmp_path / "read", tmp_path / "link", tmp_path / "other"
    read.write_text("kept")
    link.symlink_to(read)
    check_outputs(other, None, inputs=[read, None, "a-shipped-profile"])
    check_outputs(Path("/dev/null"), Path("/dev/null"))
    for outputs, message in (((read,), "is read"), ((link,), "is read"), ((other,) * 2, "written")):
        with pytest.raises(SynthError, match=message):
            check_outputs(*outputs, inputs=[str(read)])
    assert read.read_text() == "kept"


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    in_ascii = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = (
        "from synth.records.safe_write import Path, write_atomically as w; "
        f"w(Path({str(path)!r}), '\\xb5')"
    )
    subprocess.run([sys.executable, "-c", code], env=in_ascii, check=True)
    assert path.read_bytes() == "µ".encode()


def test_a_folder_that_is_a_file_or_in_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (None, tmp_path, tmp_path / "new" / "folder"):
        check_folder("--save", path)
    for path in (file, file / "inner" / "folder"):
        with pytest.raises(SynthError, match=r"--save .*file is a file; give a folder"):
            check_folder("--save", path)


def test_a_folder_without_permission_is_refused_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *arguments: False)  # tests may run as root
    with pytest.raises(SynthError, match="may not be written to; give another folder"):
        check_folder("--save", tmp_path / "new")


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


def test_folders_that_refuse_what_permissions_allow_are_noticed_beforehand() -> None:
    for path in (Path("/proc/x"), Path("/proc/x/y")):
        with pytest.raises(SynthError, match=r"--save /proc/x.*: No such file .*another folder"):
            check_folder("--save", path)
    with pytest.raises(SynthError, match="no file can be made in folder /proc: No such file"):
        check_writable(Path("/proc/plan.json"))


def test_a_dash_is_no_file_and_no_folder() -> None:
    with pytest.raises(SynthError, match="cannot write -: - as a name would mean stdout"):
        check_outputs(Path("-"))
    with pytest.raises(SynthError, match="--save -: - as a name would mean stdout"):
        check_folder("--save", Path("-"))


def test_checks_leave_nothing_behind(tmp_path: Path) -> None:
    check_folder("--save", tmp_path / "new")
    check_writable(tmp_path / "plan.json")
    assert not any(tmp_path.iterdir())


def test_files_take_their_names_together_or_not_at_all(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "missing" / "second"
    first.write_text("old")
    with pytest.raises(SynthError, match=r"second: No such file"):
        write_together({first: "new", second: "new"})
    assert first.read_text() == "old" and [*tmp_path.iterdir()] == [first]
    write_together({first: "new", tmp_path / "third": b"3"})
    assert (first.read_text(), (tmp_path / "third").read_bytes()) == ("new", b"3")
