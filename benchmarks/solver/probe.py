"""The cost of a long run: its peak of resident memory, without CP-SAT's, and its time by part."""

import re
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

Cell = int | float | str | None

_EVERY_S = 0.01
_PROCESS = Path("/proc/self")

# The innermost of these modules on the stack counts, with all native code that it calls.
_MODULES = {
    "synth.schedule": "lowering",
    "synth.families": "families",
    "synth.solver.cpsat.model": "models",
    "synth.solver.cpsat.run": "CP-SAT",
    "synth.solver.cpsat.restarting_call": "CP-SAT",
    "synth.solver.cpsat.worker_pool": "CP-SAT",
    "synth.solver.cpsat.worker_program": "CP-SAT",
    "synth.solver": "other search",
}


class Probe:
    """Samples the stack of the thread that opened the context, 100 times per second."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._thread_id = 0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        """Begin, and reset the peak if the system supports that."""
        _forget_peak()
        self._thread_id = threading.get_ident()
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End."""
        self._ended.set()
        self._sampler.join()

    def columns(self) -> dict[str, Cell]:
        """For a table: peak memory in MiB, and shares of the time in percent."""
        total = max(1, self._counts.total())
        shares = {name: 100 * self._counts[name] / total for name in _MODULES.values()}
        shown = {f"{name} %": round(share, 1) for name, share in shares.items()}
        return {"peak MiB": _peak_mib(), **shown}

    def _sample(self) -> None:
        while not self._ended.wait(_EVERY_S):
            frame = sys._current_frames().get(self._thread_id)
            self._counts[_part_of(frame)] += 1


def _part_of(frame: FrameType | None) -> str:
    """Return the part of the program that a stack is in, '' for none of them."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        while module:
            if module in _MODULES:
                return _MODULES[module]
            module = module.rpartition(".")[0]
        frame = frame.f_back
    return ""


def _forget_peak() -> None:
    """On Linux, reset the peak to the resident memory: 5 does that (proc(5), clear_refs)."""
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return


def _peak_mib() -> int | None:
    """Return the largest resident memory since then on Linux; None elsewhere."""
    try:
        status = (_PROCESS / "status").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"VmHWM:\s*(\d+) kB", status)
    return round(int(match[1]) / 1024) if match else None
