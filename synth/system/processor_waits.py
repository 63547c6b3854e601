"""The time that processes wait for a processor which other programs have, as Linux counts it.

    /proc/PID/task/*/schedstat   nanoseconds that a thread ran, and was ready but had no processor
    /proc/PID/stat               ticks that all threads of a process ran, ended ones included
    /proc/stat                   ticks that each processor was busy, with any program

Threads of a program also wait for each other if they are more than the processors. Therefore at
most the time counts that others had these processors for.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# Share of the time without a processor above which results are told to depend on it.
WORTH_TELLING = 0.1

# Seconds between two looks; what a thread waits after the last look before its end is not counted.
_LOOK_S = 0.5

# Places in /proc/PID/stat behind the name of the process, and in a line of /proc/stat.
_PROCESS_TICKS = slice(11, 13)
_IDLE = slice(3, 5)
_GUEST = 8

_NS_PER_S = 1e9


class ProcessorTimes(NamedTuple):
    """Seconds that processes ran and waited, and that any program had their processors."""

    ran_s: float
    waited_s: float
    busy_s: float


def lost_s(times: Sequence[ProcessorTimes]) -> list[float]:
    """Return the seconds that each process waited because others had the processors.

    Args:
        times: of all own processes on a machine, in the same period.
    """
    waited_s = sum(each.waited_s for each in times)
    busy_s = max((each.busy_s for each in times), default=0.0)
    others_s = max(0.0, busy_s - sum(each.ran_s for each in times))
    share = min(1.0, others_s / waited_s) if waited_s else 0.0
    return [share * each.waited_s for each in times]


class ProcessorWatch:
    """Counts the processor time of this process and its descendants, from when it is made.

    Args:
        proc: the folder of the kernel's counters.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc, self._pid = proc, os.getpid()
        # By process what it ran, and by thread what it waited: at the beginning, and as last seen.
        self._before = self._seen = _Counters({}, {}, 0.0)
        self._is_known = True
        self.look()
        self._before = self._seen

    def look(self) -> ProcessorTimes | None:
        """Read all counters, and return the times until now; see `times`.

        Those of threads and processes that are gone stay as they were.
        """
        try:
            found = self._read()
        except (OSError, ValueError):
            self._is_known = False
            return None
        seen = self._seen
        self._seen = _Counters(seen.ran | found.ran, seen.waited | found.waited, found.busy)
        return self.times

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look again and again during the `with` block, as threads and processes come and go."""
        is_over = threading.Event()

        def look() -> None:
            while not is_over.wait(_LOOK_S):
                self.look()

        thread = threading.Thread(target=look, name="processor watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self.look()

    @property
    def times(self) -> ProcessorTimes | None:
        """The times until the last look; None if the system does not count them."""
        if not self._is_known:
            return None
        before, seen = self._before, self._seen
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        return ProcessorTimes(
            (sum(seen.ran.values()) - sum(before.ran.values())) / ticks_per_s,
            (sum(seen.waited.values()) - sum(before.waited.values())) / _NS_PER_S,
            (seen.busy - before.busy) / ticks_per_s,
        )

    @property
    def share(self) -> float | None:
        """The share of their time that these processes waited for others; None if not known."""
        times = self.times
        if times is None:
            return None
        (lost,) = lost_s([times])
        return round(lost / (times.ran_s + lost), 4) if times.ran_s else None

    def _read(self) -> "_Counters":
        """Read the counters of all processes that there are.

        Raises:
            OSError: the system has no such files.
        """
        ran: dict[int, int] = {}
        waited: dict[tuple[int, int], int] = {}
        left = [self._pid]
        while left:
            pid = left.pop()
            folder = self._proc / str(pid)
            try:
                behind_name = (folder / "stat").read_text().rpartition(")")[2].split()
                ran[pid] = sum(map(int, behind_name[_PROCESS_TICKS]))
                for task in (folder / "task").iterdir():
                    left += _numbers(task / "children")
                    for ns in _numbers(task / "schedstat")[1:2]:
                        waited[pid, int(task.name)] = ns
            except OSError:
                if pid == self._pid:
                    raise
        if not waited:
            raise OSError("no thread has a file schedstat")
        return _Counters(ran, waited, self._busy_ticks())

    def _busy_ticks(self) -> int:
        names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        busy = 0
        for line in (self._proc / "stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in names:
                counted = list(map(int, ticks[:_GUEST]))
                busy += sum(counted) - sum(counted[_IDLE])
        return busy


class _Counters(NamedTuple):
    """Ticks that processes ran, nanoseconds that threads waited, ticks of busy processors."""

    ran: dict[int, int]
    waited: dict[tuple[int, int], int]
    busy: float


def _numbers(path: Path) -> list[int]:
    """Return the integers of a file of a thread; none if the thread has ended."""
    try:
        return list(map(int, path.read_text().split()))
    except OSError:
        return []
