"""Successive halving over bufferings (Jamieson and Talwalkar 2016): each gets a short round of
annealing, the best of them get longer ones, and so on to the last; then the next race begins.

The value that an order has with a buffering says little about how far annealing comes with it: few
buffers leave memory for more micro-batches, but the order has to change before that is worth
anything. A short round shows it.
"""

import math
from collections import deque
from collections.abc import Callable, Collection

from synth.schedule.model import Buffering
from synth.solver.tuning import ANNEALING


class BufferingRace:
    """The buffering of the next round of annealing, and the moves per op of that round."""

    def __init__(self) -> None:
        self.moves_per_op: float = ANNEALING.moves_per_op
        self._first_moves_per_op: float = ANNEALING.moves_per_op
        self._left: list[Buffering] = []
        self._queue: deque[Buffering] = deque()

    def next(self, known: Collection[Buffering], value_us: Callable[[Buffering], int]) -> Buffering:
        """Return the buffering of the next round.

        Args:
            known: all bufferings with which an order fits; at least one.
            value_us: the best value known with a buffering.
        """
        if not self._queue:
            self._begin_heat(known, value_us)
        return self._queue.popleft()

    def _begin_heat(
        self, known: Collection[Buffering], value_us: Callable[[Buffering], int]
    ) -> None:
        if len(self._left) > 1:
            self.moves_per_op *= ANNEALING.growth_in_race
            kept = math.ceil(ANNEALING.kept_in_race * len(self._left))
            self._left = sorted(self._left, key=value_us)[:kept]
        else:
            if self._left:
                self._first_moves_per_op *= ANNEALING.growth
            self.moves_per_op = self._first_moves_per_op
            self._left = sorted(known, key=value_us)
        self.moves_per_op = min(ANNEALING.most_moves_per_op, self.moves_per_op)
        self._queue.extend(self._left)
