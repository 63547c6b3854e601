"""The watchdog: ends a rank that is stopped or hangs, instead of waiting for a time-out.

A process that SIGSTOP or a debugger holds answers no signal but SIGKILL. Its neighbours on the same
machine see its state in /proc. Ranks that are stopped together, as by Ctrl-Z, do not watch, and
none of them is ended. `hang_detector` tells which ranks hang.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ..execution.transport.objects import gather_objects
from ..processes import PROC, namespace_key, stat_fields

# Seconds for which a rank may be stopped: a debugger's or the system's short stop ends no run.
PATIENCE_S = 5.0

# Interval between two looks at the other ranks: one reads a small file per rank.
_POLL_S = 0.5

_STOPPED = ("T", "t")

# The variable with the processes of the ranks that were forked, in their order.
_SIBLINGS = "SYNTH_RANK_PROCESSES"

# Variables that are the same for all ranks of one start by torchrun or its engine.
_OF_ONE_START = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")


class ProcessWatchdog:
    """A thread that looks at the other ranks of this machine twice a second."""

    def __init__(
        self,
        pids: Mapping[int, int],
        own: int,
        on_end: Callable[[int, str], None],
        hanging: Callable[[], Mapping[int, float]] = dict,
    ) -> None:
        """Prepare to watch.

        Args:
            pids: the pids of this machine's ranks.
            own: this rank.
            on_end: called with the rank that is about to be ended, and its state.
            hanging: returns the ranks that hang, and for how many seconds.
        """
        self._pids, self._own, self._on_end = dict(pids), own, on_end
        self._hanging = hanging
        self._patience = {rank: 0 for rank in pids}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="synth-watch", daemon=True)
        if PROC.is_dir() and len(pids) > 1:
            self._thread.start()

    def close(self) -> None:
        """Stop watching: a rank that has done its work may end at any time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_S):
            self.look()

    def look(self) -> None:
        """Count how long ranks have been stopped, and end those that exceed the patience or hang.

        Only the first rank that is neither stopped nor hanging ends others.
        """
        stopped = {rank for rank, pid in self._pids.items() if is_stopped(pid)}
        for rank in list(self._pids):
            self._patience[rank] = self._patience[rank] + 1 if rank in stopped else 0
        hanging = {rank: s for rank, s in self._hanging().items() if rank in self._pids}
        if self._own != min(self._pids.keys() - stopped - hanging.keys(), default=None):
            return
        for rank in stopped:
            if self._patience[rank] * _POLL_S >= PATIENCE_S:
                self._end(rank, f"had been stopped for {PATIENCE_S:.0f} s")
        for rank, seconds in hanging.items():
            if rank not in stopped:
                self._end(rank, f"had stood still for {seconds:.0f} s, with all it needs there,")

    def _end(self, rank: int, why: str) -> None:
        self._on_end(rank, why)
        os.kill(self._pids.pop(rank), signal.SIGKILL)


def end_without(launcher: int) -> None:
    """End this process once its parent is gone, however that was ended.

    Nobody would read its output any more, and a new start of the run would conflict with its files.
    """

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(_POLL_S)
        with suppress(OSError):  # the reader may be gone as well
            print("the launcher is gone: its ranks end", file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=watch, name="synth-launcher", daemon=True).start()


def is_stopped(pid: int) -> bool:
    """True if a process is held by a stop signal or by a debugger; False if it is gone."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] in _STOPPED


def name_siblings(pids: Sequence[int]) -> None:
    """Let `sibling_pids` find ranks that were forked, whose environment /proc does not show."""
    os.environ[_SIBLINGS] = ",".join(map(str, pids))


def sibling_pids() -> dict[int, int]:
    """The processes that the same launcher has started for ranks on this machine, joined or not.

    Unless it has named them, their environment names the rank, and the start of the ranks to which
    it belongs.
    """
    if _SIBLINGS in os.environ:
        return dict(enumerate(map(int, os.environ[_SIBLINGS].split(","))))
    if not PROC.is_dir():
        return {}
    own, found = _environment(os.getpid()), {}
    for pid in (int(path.name) for path in PROC.iterdir() if path.name.isdecimal()):
        if _parent(pid) != os.getppid():
            continue
        environment = _environment(pid)
        if all(environment.get(name) == own.get(name) for name in _OF_ONE_START):
            with suppress(KeyError, ValueError):
                found[int(environment["RANK"])] = pid
    return found


def _environment(pid: int) -> dict[str, str]:
    """The environment with which a process was started; empty if it is gone, or of another user."""
    try:
        text = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, _, value in pairs}


def _parent(pid: int) -> int | None:
    """The parent of a process; None: it is gone."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[1])


def local_pids() -> dict[int, int]:
    """The process of each rank that can be seen from here; every rank calls this."""
    here = namespace_key()
    gathered: list[tuple[str, int]] = gather_objects((here, os.getpid()))
    return {rank: pid for rank, (where, pid) in enumerate(gathered) if where == here}
