"""Which size of windows to try next: the one that gains most for its time, as far as is known."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# What was gained counts so much less with each later window of the size; and each size gets such a
# share of the best one's effort at least.
_DECAY = 0.95
_PRIOR = 5
_LEAST_SHARE = 0.1

# What each gains is expected to be such a share of the value per second, until it has been tried.
_EXPECTED = 0.01

# A size is exhausted when it has found nothing in windows that together hold every op so often, and
# in so many windows at least.
_COVER = 1
_LEAST_WINDOWS = 10


class Level(NamedTuple):
    """A size of windows, and how long CP-SAT may think about one, in its deterministic seconds."""

    num_ops: int
    seconds: float


@dataclass
class Size:
    """What windows of a size have gained and cost of late, and how many found nothing since."""

    level: Level
    gained: float
    spent_s: float
    tried: float = 1.0
    idle: int = 0
    is_new: bool = True

    @property
    def rate(self) -> float:
        """The gain of a second."""
        return self.gained / self.spent_s


class Sizes:
    """A bandit: effort goes to sizes as they gain, and to each a little.

    Args:
        value_us: of the solution at first.
        num_ops: of the whole problem.
    """

    def __init__(self, levels: Sequence[Level], value_us: int, num_ops: int) -> None:
        self._num_ops = num_ops
        self._sizes = [
            Size(level, _EXPECTED * value_us * level.seconds, level.seconds) for level in levels
        ]

    def choose(self, rng: random.Random, num_ops: int) -> Size | None:
        """One of those of so many ops at most; None if all of them are exhausted."""
        sizes = [size for size in self._sizes if size.level.num_ops <= num_ops]
        if all(self._is_exhausted(size) for size in sizes):
            return None
        least = max(_LEAST_SHARE * max(size.rate for size in sizes), 1e-9)
        weights = [max(size.rate, least) * size.tried / size.spent_s for size in sizes]
        return rng.choices(sizes, weights)[0]

    def learn(self, size: Size, gained_us: int, spent_s: float) -> None:
        """What a window of a size gained and cost."""
        if size.is_new:
            weight = _PRIOR * spent_s / size.spent_s
            size.gained, size.spent_s, size.tried = (
                weight * size.gained,
                weight * size.spent_s,
                _PRIOR,
            )
            size.is_new = False
        size.gained = _DECAY * size.gained + gained_us
        size.spent_s = _DECAY * size.spent_s + spent_s
        size.tried = _DECAY * size.tried + 1
        size.idle += 1
        if gained_us > 0:
            for each in self._sizes:
                each.idle = 0

    def _is_exhausted(self, size: Size) -> bool:
        return size.idle >= max(_LEAST_WINDOWS, _COVER * self._num_ops / size.level.num_ops)
