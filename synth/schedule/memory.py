"""Memory of a lowered schedule: it follows from the order of each program alone, never from time.

While an op runs, the level is what was alive at its start plus the op's measured rise; afterwards
it is what is alive then. Receive buffers count from their posting, sent values until waited for.
"""

from dataclasses import dataclass

import numpy as np

from synth.costs import IntArray
from synth.schedule.lowering.lower import Action, Lowered


@dataclass(frozen=True)
class MemoryCurve:
    """A rank's level at each instruction of its program: the highest during it, and after it."""

    static_bytes: int
    highest: list[int]
    after: list[int]

    @property
    def peak_bytes(self) -> int:
        """The highest level of all."""
        return max(self.highest, default=self.static_bytes)


def static_bytes(lowered: Lowered, rank: int) -> int:
    """Parameters, gradients and optimizer state of the stages that a rank holds."""
    stages = lowered.costs.stages
    return sum(stages[stage].static_bytes for stage, _ in lowered.schedule.placement.held[rank])


def memory_curve(lowered: Lowered, rank: int) -> MemoryCurve:
    """Walk a rank's program and add up the bytes."""
    effects = lowered.effects
    level = base = static_bytes(lowered, rank)
    highest, after = [], []
    for instruction in lowered.programs[rank]:
        top = level
        if instruction.action == Action.COMPUTE:
            op = instruction.compute
            top = level + effects.rise_bytes(op)
            level += sum(effects.bytes_of(value) for value in effects.makes(op))
        elif instruction.action == Action.RECV:
            level += instruction.moved.num_bytes
        level -= sum(effects.bytes_of(value) for value in instruction.frees)
        highest.append(max(top, level))
        after.append(level)
    return MemoryCurve(base, highest, after)


def peak_bytes(lowered: Lowered) -> tuple[int, ...]:
    """The peak of every rank, that is, of its memory curve; for all ranks at once.

    In each slot the level is highest when the receives are posted, or while the op runs; what it is
    afterwards, the next slot starts from.
    """
    arrays, num_ranks = lowered.arrays, lowered.num_ranks
    first_slot = np.array(arrays.first_node) + np.arange(num_ranks + 1)
    slot = np.arange(arrays.num_nodes) + arrays.rank
    received, waited, ended = _flows(lowered, slot, first_slot)
    classes = arrays.classes
    rise = np.zeros_like(received)
    rise[slot] = lowered.table.rise_bytes[classes]
    made = np.zeros_like(received)
    made[slot] = lowered.table.made_bytes[classes]
    change = received - waited + made - ended
    before = change.cumsum() - change
    posted = before + received
    top = np.maximum(posted, posted - waited + rise)
    start = first_slot[:-1]
    peaks = np.maximum.reduceat(top, start) - before[start]
    return tuple(peak + static_bytes(lowered, rank) for rank, peak in enumerate(peaks.tolist()))


def _flows(
    lowered: Lowered, slot: IntArray, first_slot: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """By slot the bytes that receives allocate, and that die with its waits and with its op."""
    table, uses, routes = lowered.table, lowered.uses, lowered.routes
    num_micro_batches = lowered.schedule.num_micro_batches
    received = np.zeros(int(first_slot[-1]), dtype=np.int64)
    come = routes.arriving
    posted = first_slot[routes.target[come]] + routes.post[come]
    np.add.at(received, posted, routes.num_bytes[come])
    # Moments: 2 · slot when its sends were waited for, 2 · slot + 1 when its op is over.
    made = (uses.maker >= 0).nonzero()[0]
    death = np.empty_like(uses.maker)
    death[made] = 2 * slot[uses.last_use[made]] + 1
    gone = routes.leaving
    waited = first_slot[routes.source[gone]] + routes.wait[gone]
    np.maximum.at(death, routes.value[gone], 2 * waited)
    freed = np.zeros(2 * len(received), dtype=np.int64)
    np.add.at(freed, death[made], table.value_bytes[made // num_micro_batches])
    away = uses.away
    at = 2 * slot[away.last_read] + 1
    np.add.at(freed, at, table.value_bytes[away.value // num_micro_batches])
    return received, freed[0::2], freed[1::2]
