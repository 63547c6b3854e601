"""Processes of this machine as Linux shows them in /proc: their identity, and their end.

Where /proc is missing, or belongs to another namespace of process ids, nothing is known of other
processes, and none counts as ended.
"""

import os
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

PROC = Path("/proc")

# Places in the fields of /proc/PID/stat after the name, and a flag there (proc_pid_stat(5); the
# kernel's include/linux/sched.h).
_STATE, _FLAGS, _START_TIME = 0, 6, 19
_PF_EXITING = 0x4


class ProcessIdentity(NamedTuple):
    """A process that is not confused with another one of the same number.

    Attributes:
        namespace: equal for processes that can see each other's numbers.
        started: the time of its start, in ticks of the system; empty if it is not known.
    """

    namespace: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> Self:
        """Identify this process."""
        fields = stat_fields(os.getpid())
        return cls(namespace_key(), os.getpid(), fields[_START_TIME] if fields else "")

    @property
    def has_ended(self) -> bool:
        """True if a process of this namespace has ended, or begins to; False if that is not known.

        The kernel marks a process before it closes its files. So whoever finds a connection closed
        by the death of a process finds the process ended.
        """
        if not self.started:
            return False
        try:
            fields = _read_stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return PROC.is_dir()
        except OSError:  # such as too many open files of this process
            return False
        if fields[_START_TIME] != self.started:
            return True
        return fields[_STATE] in "ZX" or bool(int(fields[_FLAGS]) & _PF_EXITING)


def seen_from_here(processes: Mapping[int, ProcessIdentity]) -> dict[int, ProcessIdentity]:
    """Return those of some ranks' living processes whose end would be seen here.

    A process that is not found although it lives is on another machine with an equal key, such as a
    virtual machine that was cloned while it ran.
    """
    here = namespace_key()
    return {
        rank: process
        for rank, process in processes.items()
        if process.namespace == here and process.started and not process.has_ended
    }


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None: the process cannot be read."""
    try:
        return _read_stat(pid)
    except OSError:
        return None


@cache
def _unknown_namespace(pid: int) -> str:
    return f"process-{pid}-{secrets.token_hex(8)}"


def namespace_key() -> str:
    """Return a key that is equal for processes that share a namespace of process ids."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        if os.readlink(PROC / "self") == str(os.getpid()):
            return f"{boot}-{os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        pass
    return _unknown_namespace(os.getpid())


def _read_stat(pid: int) -> list[str]:
    # A name may be cut off inside a character.
    text = (PROC / str(pid) / "stat").read_text(errors="replace")
    return text.rsplit(")", 1)[1].split()
