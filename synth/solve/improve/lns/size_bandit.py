"""Which size of windows to try next: the one that gains most for its time, as far as is known."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# What was gained and spent counts so much less with each later window of the size; and each size
# gets such a share of the best one's effort at least.
_DECAY = 0.95
_LEAST_SHARE = 0.1

# What each gains is expected to be such a share of the value per second, until it has been tried;
# then that counts as much as so many seconds.
_EXPECTED_SHARE = 0.001
_EXPECTED_S = 2.0

# A size is exhausted when it has found nothing in windows that hold so many times as many ops as
# there are, and in so many windows at least.
_COVER = 1
_LEAST_WINDOWS = 10


class Level(NamedTuple):
    """A size of windows, and how long CP-SAT may think about one, in seconds of effort."""

    num_ops: int
    seconds: float


@dataclass
class Size:
    """What windows of a size have gained and cost of late.

    Attributes:
        rate: the gain of a second.
        cost_s: of a window; at first what CP-SAT may take.
        windows: how many these are known from, those before counting less and less.
        idle: windows that found nothing since any size has gained.
    """

    level: Level
    rate: float
    cost_s: float
    windows: float = 0.0
    idle: int = 0

    def learn(self, gained_us: int, spent_s: float) -> None:
        """What one more window gained and cost, which is more than nothing."""
        if not self.windows:
            self.windows, self.cost_s = _EXPECTED_S / spent_s, spent_s
        kept = _DECAY * self.windows
        before_s = kept * self.cost_s
        self.rate = (before_s * self.rate + gained_us) / (before_s + spent_s)
        self.windows = kept + 1
        self.cost_s = (before_s + spent_s) / self.windows


class Sizes:
    """A bandit: effort goes to sizes as they gain, and to each a little.

    Args:
        value_us: of the solution at first.
        num_ops: of the whole problem.
    """

    def __init__(self, levels: Sequence[Level], value_us: int, num_ops: int) -> None:
        self._num_ops = num_ops
        rate = _EXPECTED_SHARE * max(1, value_us)
        self._sizes = [Size(level, rate, level.seconds) for level in levels]

    def choose(self, rng: random.Random, most_ops: int) -> Size | None:
        """One of those of so many ops at most; None if all of them are exhausted."""
        sizes = [size for size in self._sizes if size.level.num_ops <= most_ops]
        left = [size for size in sizes if not self._is_exhausted(size)]
        if not left:
            return None
        least = _LEAST_SHARE * max(size.rate for size in left)
        return rng.choices(left, [max(size.rate, least) / size.cost_s for size in left])[0]

    def learn(self, size: Size, gained_us: int, spent_s: float) -> None:
        """What a window of a size gained and cost; a gain opens new ways to all of them."""
        size.learn(gained_us, spent_s)
        size.idle += 1
        if gained_us > 0:
            for each in self._sizes:
                each.idle = 0

    def _is_exhausted(self, size: Size) -> bool:
        return size.idle >= max(_LEAST_WINDOWS, _COVER * self._num_ops / size.level.num_ops)
