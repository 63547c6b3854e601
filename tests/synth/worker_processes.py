"""The CP-SAT workers of a process, in order to stop or kill them."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from synth.solver.cpsat import worker_pool


def kill_workers(what: signal.Signals = signal.SIGKILL) -> list[int]:
    """Send a signal to all that this process has; which they were."""
    workers = list(worker_pool.processes())
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, what)
    return workers


def is_running(process: int) -> bool:
    """True while it runs; a zombie does not run."""
    stat = Path(f"/proc/{process}/stat")
    if Path("/proc").is_dir():
        try:
            return stat.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def left_after(seconds: float, processes: list[int]) -> list[int]:
    """The processes that still run after at most `seconds`."""
    until = time.monotonic() + seconds
    while (left := [p for p in processes if is_running(p)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left
