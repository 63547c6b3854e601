"""A multi-armed bandit over window sizes: effort goes to the sizes that gain most for it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.solver.tuning import BANDIT


class WindowSize(NamedTuple):
    """A number of ops, and the effort in seconds that CP-SAT may spend on such a window."""

    num_ops: int
    seconds: float


@dataclass
class Arm:
    """Recent gains and costs of windows of one size.

    Attributes:
        rate: gain per second.
        cost_s: mean effort of a window; at first CP-SAT's limit.
        windows: number of windows behind these figures, older ones discounted.
        idle: windows without a gain since any size has gained.
    """

    window_size: WindowSize
    rate: float
    cost_s: float
    windows: float = 0.0
    idle: int = 0

    def learn(self, gained_us: int, spent_s: float) -> None:
        """Add the gain and the cost, which is positive, of one more window."""
        if not self.windows:
            self.windows, self.cost_s = BANDIT.expected_s / spent_s, spent_s
        kept = BANDIT.decay * self.windows
        before_s = kept * self.cost_s
        self.rate = (before_s * self.rate + gained_us) / (before_s + spent_s)
        self.windows = kept + 1
        self.cost_s = (before_s + spent_s) / self.windows


class SizeBandit:
    """Chooses sizes by their rates; each size gets a minimum of the effort.

    Args:
        value_us: the value of the first solution.
        num_ops: the number of ops of the whole problem.
    """

    def __init__(self, window_sizes: Sequence[WindowSize], value_us: int, num_ops: int) -> None:
        self._num_ops = num_ops
        rate = BANDIT.expected_gain_share * max(1, value_us)
        self._arms = [Arm(window_size, rate, window_size.seconds) for window_size in window_sizes]

    def choose(self, rng: random.Random, most_ops: int) -> Arm | None:
        """Choose among the sizes up to `most_ops`; None if all of them are exhausted."""
        arms = [arm for arm in self._arms if arm.window_size.num_ops <= most_ops]
        left = [arm for arm in arms if not self._is_exhausted(arm)]
        if not left:
            return None
        least = BANDIT.least_share * max(arm.rate for arm in left)
        return rng.choices(left, [max(arm.rate, least) / arm.cost_s for arm in left])[0]

    def learn(self, arm: Arm, gained_us: int, spent_s: float) -> None:
        """Add the gain and cost of a window; a gain makes all sizes worth trying again."""
        arm.learn(gained_us, spent_s)
        arm.idle += 1
        if gained_us > 0:
            for each in self._arms:
                each.idle = 0

    def _is_exhausted(self, arm: Arm) -> bool:
        return arm.idle >= max(
            BANDIT.fewest_windows, BANDIT.cover * self._num_ops / arm.window_size.num_ops
        )
