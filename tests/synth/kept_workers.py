"""Processes that search the points of memory curves, kept for the next curve.

To start one takes longer than most searches of tests.
"""

from typing import ClassVar

from synth.plan.memory_curve.workers import Workers
from synth.system.child_process import ChildProcess


class KeptWorkers(Workers):
    """Workers of which those that are free at the end wait for the next ones."""

    idle: ClassVar[list[ChildProcess]] = []

    def __init__(self, number: int) -> None:
        kept = [self.idle.pop() for _ in range(min(number, len(self.idle)))]
        super().__init__(number - len(kept))
        self._free += kept

    def close(self) -> None:
        self.idle.extend(self._free)
        self._free.clear()
        super().close()
