"""Processes of this machine as Linux shows them in /proc: their identity, and their end.

Without /proc nothing is known of other processes, and none counts as ended.
"""

import os
from collections.abc import Mapping
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
        machine: equal for processes that can see each other's numbers.
        pid: its number.
        started: the time of its start, in ticks of the system.
    """

    machine: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> Self:
        """Identify this process."""
        fields = stat_fields(os.getpid())
        return cls(machine_key(), os.getpid(), fields[_START_TIME] if fields else "")

    @property
    def has_ended(self) -> bool:
        """True if a process that can be seen from here has ended, or begins to.

        The kernel marks a process before it closes its files. So whoever finds a connection closed
        by the death of a process finds the process ended.
        """
        fields = stat_fields(self.pid)
        if fields is None or fields[_START_TIME] != self.started:
            return True
        return fields[_STATE] in "ZX" or bool(int(fields[_FLAGS]) & _PF_EXITING)


def visible(
    processes: Mapping[int, ProcessIdentity],
) -> dict[int, ProcessIdentity]:
    """Those of some ranks' processes whose state can be read here."""
    here = machine_key() if PROC.is_dir() else None
    return {rank: process for rank, process in processes.items() if process.machine == here}


def stat_fields(pid: int) -> list[str] | None:
    """The fields of a process's /proc/PID/stat from its state on; None: it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def machine_key() -> str:
    """A key that is equal for processes that share process ids."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return f"process-{os.getpid()}"
