"""The V placement under fractions of 1F1B's memory, and at the peaks of the published V's.

Each rank holds two stages, so 1F1B's memory is 2D activations of a stage. Times are of one of
them, about 100 µs, 2 µs between ranks; the period, which the papers' fitting minimises.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from benchmarks.solver.baselines import peak_of
from benchmarks.solver.case import Case, Suite
from synth.costs.costs import Costs, uniform_costs
from synth.objective import Objective
from synth.profile.links import Link, Links
from synth.schedule.placements import placement
from synth.solver.problem import Problem

SIZES = ((4, 16), (8, 32))
TIMES_US = {"1:1:1": (100, 100, 100), "3:4:2": (90, 120, 60), "10:11:9": (100, 110, 90)}
SHARES = (0.33, 0.44, 0.5, 0.75, 1)
FAMILIES = ("v-min", "v-half", "zb-v")


class Memory(NamedTuple):
    """Bytes that a micro-batch keeps on its stage after F, and after B."""

    saved: int
    saved_w: int

    def __str__(self) -> str:
        """The label of the bytes that F, B and W add."""
        return f"+{self.saved}/{self.saved_w - self.saved}/{-self.saved_w}"


MEMORIES = (Memory(2, 1), Memory(3, 2))


def stages(num_stages: int, times_us: tuple[int, int, int], memory: Memory) -> Costs:
    """Equal stages."""
    forward, backward, weight = times_us
    return uniform_costs(
        num_stages,
        forward_us=forward,
        backward_input_us=backward,
        backward_weight_us=weight,
        links=Links(default=Link(latency_us=2)),
        saved_bytes=memory.saved,
        saved_w_bytes=memory.saved_w,
    )


def problem(
    num_ranks: int,
    num_micro_batches: int,
    share: float,
    times_us: tuple[int, int, int] = TIMES_US["1:1:1"],
    memory: Memory = MEMORIES[0],
) -> Problem:
    """A row at a share of 1F1B's memory."""
    costs = stages(2 * num_ranks, times_us, memory)
    return _capped(costs, num_micro_batches, int(share * 2 * num_ranks * memory.saved))


def _capped(costs: Costs, num_micro_batches: int, cap_bytes: int) -> Problem:
    where = placement("v", costs.num_stages // 2)
    caps = (cap_bytes,) * where.num_ranks
    return Problem(costs, where, num_micro_batches, caps, Objective.PERIOD)


def _cases() -> Iterator[Case]:
    for (ranks, m), (ratio, times_us), memory in product(SIZES, TIMES_US.items(), MEMORIES):
        label = f"{ranks},{m} {ratio} {memory}"
        for share in SHARES:
            yield Case(f"{label} {share:g}x", problem(ranks, m, share, times_us, memory))
        costs = stages(2 * ranks, times_us, memory)
        for family in FAMILIES:
            peak = peak_of(family, ranks, m, costs)
            yield Case(f"{label} as {family}", _capped(costs, m, peak))


SUITE = Suite("v", "The V placement; label: ranks,m, F:B:W, bytes, cap.", _cases)
