"""The solution pool of a search over sharded state: the best places of collectives found."""

import random
from dataclasses import dataclass

from synth.plan.tuning import SHARDED_PIPELINES
from synth.plan.weight_passing.first_gathers import OrderOfOne
from synth.plan.weight_passing.gather_moves import Program
from synth.schedule.weight_flow import Sharded


@dataclass(frozen=True)
class PlacedCollectives:
    """The programs of one pipeline with collectives in them, and the time of all pipelines."""

    order: OrderOfOne
    sharded: Sharded
    programs: tuple[Program, ...]
    value_us: int


class SolutionPool:
    """A few placed programs, at most one for each order and kind of sharding."""

    def __init__(self, rng: random.Random) -> None:
        """Begin empty; `rng` draws."""
        self._rng = rng
        self._placed: list[PlacedCollectives] = []

    def __bool__(self) -> bool:
        """True if there is one to begin from."""
        return bool(self._placed)

    def draw(self) -> PlacedCollectives:
        """Draw one, the fastest most often."""
        return self._placed[int(len(self._placed) * self._rng.random() ** 2)]

    def remember(self, placed: PlacedCollectives) -> None:
        """Keep one if it is no slower than that of its order and kind of sharding."""
        same = [
            one
            for one in self._placed
            if one.order is placed.order and one.sharded == placed.sharded
        ]
        if same and same[0].value_us < placed.value_us:
            return
        kept = [one for one in self._placed if one not in same]
        self._placed = sorted([*kept, placed], key=lambda one: one.value_us)
        del self._placed[SHARDED_PIPELINES.pool_size :]
