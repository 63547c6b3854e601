"""The pace of profiling: what is being measured, and the time that the rest will take."""

import time
from collections.abc import Callable
from typing import NamedTuple


class ProfilingProgress(NamedTuple):
    """The layer that is being measured, counted among the distinct layers, and its round.

    Attributes:
        number: 1 for the first distinct layer.
        of: distinct layers of the model.
        round: rounds of this layer that have ended, warm-up included.
        left_s: estimate of the seconds that all further rounds take; None: there is too little to
            go by.
    """

    layer: str
    number: int
    of: int
    round: int
    rounds: int
    left_s: float | None

    @property
    def words(self) -> str:
        """The progress in a line."""
        return f"{self.layer} ({self.number} of {self.of}), round {self.round} of {self.rounds}"


class ProfilingPace:
    """Estimates the time left from the rounds that have ended, and reports it after each round.

    A layer that has not begun is expected to take as long as the layers up to this one in the mean.
    The first layer alone says nothing about the others: an embedding is much faster than a block.
    """

    def __init__(
        self,
        num_layers: int,
        num_rounds: int,
        tell: Callable[[ProfilingProgress], None] = lambda progress: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin a profile.

        Args:
            num_layers: distinct layers.
            num_rounds: the number of rounds of each layer, warm-up included.
            tell: called when a layer begins and after each of its rounds.
            clock: in seconds.
        """
        self._num_layers, self._num_rounds = num_layers, num_rounds
        self._tell, self._clock = tell, clock
        self._layer, self._number, self._round = "", 0, 0
        self._began_s = 0.0
        self._finished_s = 0.0

    def begin(self, layer: str) -> None:
        """Begin to measure a layer."""
        self._finished_s += self._taken_s() if self._number else 0.0
        self._layer, self._number, self._round = layer, self._number + 1, 0
        self._began_s = self._clock()
        self._report()

    def end_round(self) -> None:
        """Count a round of the layer."""
        self._round += 1
        self._report()

    def _taken_s(self) -> float:
        return self._clock() - self._began_s

    def _report(self) -> None:
        of = max(self._num_layers, self._number)
        left_s = self._left_s(of - self._number)
        self._tell(
            ProfilingProgress(self._layer, self._number, of, self._round, self._num_rounds, left_s)
        )

    def _left_s(self, further_layers: int) -> float | None:
        done = self._number - 1
        if self._round == 0 or (done == 0 and further_layers):
            return None
        taken_s = self._taken_s()
        own_s = taken_s * self._num_rounds / self._round
        mean_s = (self._finished_s + own_s) / (done + 1)
        return own_s - taken_s + further_layers * mean_s
