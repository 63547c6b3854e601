"""Processes of this machine: a living one never counts as ended, whatever /proc shows."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from synth.runtime import processes
from synth.runtime.execution.base.failure import tells_of_a_closed_connection
from synth.runtime.execution.transport.host.block_names import new_prefix, remove_leftovers
from synth.runtime.processes import ProcessIdentity, namespace_key, seen_from_here, stat_fields

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def ended() -> ProcessIdentity:
    """A process that has ended, with the identity that it had."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fields = stat_fields(process.pid)
    assert fields is not None
    process.communicate(b"\n")
    return ProcessIdentity(namespace_key(), process.pid, fields[19])


def test_only_a_process_that_has_ended_counts_as_ended() -> None:
    own, other = ProcessIdentity.own(), ended()
    assert not own.has_ended
    assert other.has_ended
    assert own._replace(started="1").has_ended  # its number has gone to another process
    assert seen_from_here({0: own, 1: other}) == {0: own}


def test_a_process_that_cannot_be_read_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ProcessIdentity.own()

    def refuse(*_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert not own.has_ended
    assert not own._replace(started="").has_ended


def test_a_name_that_is_cut_off_inside_a_character_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_bytes(b"7 (abcdefghijklmn\xc3) S 1 2")
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert stat_fields(7) == ["S", "1", "2"]


def test_the_proc_of_another_namespace_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("one\n")
    (tmp_path / "self").symlink_to(str(os.getpid() + 1))
    monkeypatch.setattr(processes, "PROC", tmp_path)
    own = ProcessIdentity.own()
    assert not own.has_ended
    assert seen_from_here({0: own}) == {}
    assert namespace_key() == namespace_key() != "one"


def test_leftovers_are_blocks_of_ended_processes_and_nothing_else(tmp_path: Path) -> None:
    living = Path(f"{new_prefix(tmp_path)}block")
    tag = living.name.split("-")[2]
    gone = ended()
    dead = tmp_path / f"synth-host-{tag}-{gone.pid}-{gone.started}-00-block"
    strange = [tmp_path / f"synth-host-{tag}-{rest}" for rest in ("x", "7", "7-", "-1-2")]
    for path in (living, dead, *strange):
        path.touch()
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, *strange])


@pytest.mark.parametrize(
    "message",
    [
        "Connection closed by peer [127.0.0.1]:1",
        "NCCL: Connection closed by remote peer host<1>",
        "Failed to recv, got 0 bytes. Connection was likely closed.",
        "Broken pipe",
    ],
)
def test_a_closed_connection_is_told_by_its_message(message: str) -> None:
    assert tells_of_a_closed_connection(RuntimeError(message))
    assert not tells_of_a_closed_connection(RuntimeError("wrong shape"))
