"""Memory of each rank under a lowered schedule; it depends on program order alone, never on time.

The bytes of a stage's ops are fields of `synth.costs`, added up over layers by
`synth.costs.partition_costs`; the values that ops make are in `lowering/effects`.

While an op runs, the level is the bytes alive at its start plus the op's measured rise. After it,
the level is the bytes alive then. While F and BW run at once it is raised by both. Receive buffers
count from their posting, and sent values until the send has been waited for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from synth.costs.costs import Costs, IntArray
from synth.costs.stage_costs import StageCosts
from synth.schedule.lowering.collectives import Collective, CollectiveKind
from synth.schedule.lowering.effects import GRAD_ACC, VALUE_CODES, Effects
from synth.schedule.lowering.lower import Action, Lowered
from synth.schedule.model import Placement
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.weight_flow import Route, Sharded, WeightFlow


@dataclass(frozen=True)
class MemoryUsage:
    """A rank's memory level at each instruction: the highest during it, and the level after it."""

    static_bytes: int
    highest: list[int]
    after: list[int]

    @property
    def peak_bytes(self) -> int:
        """The highest level."""
        return max(self.highest, default=self.static_bytes)


def static_bytes(lowered: Lowered, rank: int) -> int:
    """Parameters, gradients and optimizer state that a rank keeps."""
    schedule = lowered.schedule
    if schedule.versions is not None:
        # Copies of a stage on a rank share its weights, their gradient and the optimizer's state.
        return lowered.costs.static_bytes({stage for stage, _ in schedule.placement.held[rank]})
    return kept_bytes(lowered.costs, schedule.placement, schedule.weights, rank)


def kept_bytes(costs: Costs, placement: Placement, flow: WeightFlow | None, rank: int) -> int:
    """The static bytes of a rank on a placement, for given homes of the weights."""
    stages, held = costs.stages, placement.held[rank]
    if flow is None:
        return costs.static_bytes([stage for stage, _ in held])
    at_home = (
        0
        if flow.weights == Route.HOST
        else sum(
            -(-sharded_bytes(stages[stage], flow.sharded) // len(homes))
            for stage, homes in enumerate(flow.homes)
            if rank in homes
        )
    )
    everywhere = sum(
        stages[stage].static_bytes - sharded_bytes(stages[stage], flow.sharded) for stage, _ in held
    )
    return at_home + everywhere


def sharded_bytes(stage: StageCosts, sharded: Sharded) -> int:
    """The bytes of a stage that only its homes keep, a share each."""
    if sharded == Sharded.WEIGHTS:
        return stage.static_bytes
    kept = stage.parameter_bytes + (stage.gradient_bytes if sharded == Sharded.OPTIMIZER else 0)
    return stage.static_bytes - kept


def memory_usage(lowered: Lowered, rank: int) -> MemoryUsage:
    """Add up the bytes along a rank's program."""
    effects = lowered.effects
    level = base = static_bytes(lowered, rank)
    held: dict[Value, int] = {}  # what is not held by the size of its kind
    overlapped = lowered.schedule.overlapped
    beside = 0  # the rise of an F that still runs, above what it has made
    highest, after = [], []
    for instruction in lowered.programs[rank]:
        top = level
        if instruction.action == Action.COMPUTE:
            op = instruction.compute
            top = level + beside + effects.rise_bytes(op) + _begun_bytes(effects, op)
            own = {value: effects.own_bytes_of(value) for value in effects.makes(op)}
            held |= own
            made = sum(own.values())
            level += made
            beside = max(0, effects.rise_bytes(op) - made) if op in overlapped else 0
        elif instruction.action == Action.RECV:
            level += instruction.moved.num_bytes
        elif instruction.action == Action.COLLECT:
            level += _gathered_bytes(lowered, instruction.collected)
            top = level
        freed = ((value, effects.bytes_of(value)) for value in instruction.frees)
        level -= sum(held.pop(value, num_bytes) for value, num_bytes in freed)
        highest.append(max(top, level))
        after.append(level)
    return MemoryUsage(base, highest, after)


def _begun_bytes(effects: Effects, op: Op) -> int:
    """The bytes of what an op makes before it runs.

    That is a sum of gradients that it begins, zeros to which it adds; or a version that it stashes.
    """
    if any(value.kind in _SUMS for value in effects.reads(op)):
        return 0
    return sum(effects.bytes_of(value) for value in effects.makes(op) if value.kind in _BEGUN)


_SUMS = (ValueKind.GRAD_SUM, ValueKind.GRAD_ACC)
_BEGUN = (*_SUMS, ValueKind.WEIGHTS)


class SlotLevels(NamedTuple):
    """Memory levels in bytes, by slot (see `synth.schedule.arrays`), static bytes included.

    `waiting` is the highest level from the end of the op before until the slot's own op starts,
    with its receives posted. `running` is the highest while that op runs; a rank's last slot has no
    op.
    """

    waiting: IntArray
    running: IntArray


def slot_levels(lowered: Lowered) -> SlotLevels:
    """Return the memory curves of all ranks at once."""
    waiting, running, start, base = _relative_levels(lowered)
    lengths = np.diff(start, append=len(waiting))
    base = np.array([static_bytes(lowered, r) for r in range(lowered.num_ranks)]) - base
    each = np.repeat(base, lengths)
    return SlotLevels(waiting + each, running + each)


def exceeds_caps(peaks: Sequence[int], caps_bytes: Sequence[int] | None) -> bool:
    """True if the peak of a rank, in bytes, is above its cap; None: there are no caps."""
    if caps_bytes is None:
        return False
    return any(peak > cap for peak, cap in zip(peaks, caps_bytes, strict=True))


def _gathered_bytes(lowered: Lowered, collective: Collective) -> int:
    """The bytes that a collective allocates on each rank where it starts."""
    flow = lowered.schedule.weights
    is_kept = flow is None or flow.sharded != Sharded.WEIGHTS
    return 0 if is_kept or collective.kind != CollectiveKind.GATHER else collective.num_bytes


def peak_bytes(lowered: Lowered) -> tuple[int, ...]:
    """The peak of every rank's memory curve, computed for all ranks at once."""
    waiting, running, start, base = _relative_levels(lowered)
    peaks = np.maximum.reduceat(np.maximum(waiting, running), start) - base
    return tuple(peak + static_bytes(lowered, rank) for rank, peak in enumerate(peaks.tolist()))


def _relative_levels(lowered: Lowered) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the levels before and during each slot's op, each rank's first slot and its level.

    Within a slot the level is highest when the receives are posted or while the op runs. The level
    at its end is the level at the start of the next slot. All levels are relative to the same zero;
    a rank's own zero, without its static bytes, is the level at its first slot.
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
    forward = slot[arrays.overlapped]
    rise[forward + 1] += np.maximum(0, rise[forward] - made[forward])
    if lowered.stored is not None:
        node, value = lowered.stored
        num_bytes = lowered.table.value_bytes[value // lowered.schedule.num_micro_batches]
        np.add.at(made, slot[node], num_bytes)
        # A version is stashed before its update; a sum of gradients is there once it is begun.
        begun = np.ones(len(node), dtype=np.bool_)
        if lowered.visits is not None:
            begun = ~np.isin(node, lowered.visits.reads_of_sums(lowered.table.num_cells))
        np.add.at(rise, slot[node[begun]], num_bytes[begun])
    change = received - waited + made - ended
    before = change.cumsum() - change
    posted = before + received
    start = first_slot[:-1]
    return posted, posted - waited + rise, start, before[start]


def _flows(
    lowered: Lowered, slot: IntArray, first_slot: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """By slot, the bytes that receives allocate, that its waits free, and that its op frees."""
    table, def_use, transfer_table = lowered.table, lowered.def_use, lowered.transfer_table
    num_micro_batches = lowered.schedule.num_micro_batches
    received = np.zeros(int(first_slot[-1]), dtype=np.int64)
    come = transfer_table.arriving
    posted = first_slot[transfer_table.target[come]] + transfer_table.post[come]
    np.add.at(received, posted, transfer_table.num_bytes[come])
    # Moments: 2 · slot after the slot's waits, 2 · slot + 1 after its op.
    made = (def_use.maker >= 0).nonzero()[0]
    death = np.full_like(def_use.maker, -1)
    death[made] = 2 * slot[def_use.last_use[made]] + 1
    remote_reads = def_use.remote_reads
    gone = transfer_table.leaving
    waited = first_slot[transfer_table.source[gone]] + transfer_table.wait[gone]
    if lowered.visits is None:
        np.maximum.at(death, transfer_table.value[gone], 2 * waited)
    else:
        # Weights are received, and may be handed on after the last op that reads them.
        visiting = remote_reads.source < 0
        death[remote_reads.value[visiting]] = 2 * slot[remote_reads.last_read[visiting]] + 1
        held = transfer_table.held[gone]
        np.maximum.at(death, held[held >= 0], 2 * waited[held >= 0])
        _add_collectives(lowered, received, death, first_slot)
    freed = np.zeros(2 * len(received), dtype=np.int64)
    np.add.at(freed, death[made], table.own_bytes[made // num_micro_batches])
    at = 2 * slot[remote_reads.last_read] + 1
    if lowered.visits is not None:
        at = np.where(remote_reads.source < 0, death[remote_reads.value], at)
    np.add.at(freed, at, table.value_bytes[remote_reads.value // num_micro_batches])
    return received, freed[0::2], freed[1::2]


def _add_collectives(
    lowered: Lowered, received: IntArray, death: IntArray, first_slot: IntArray
) -> None:
    """Add the buffers of all-gathers, and hold gradients until their reduce-scatters are over."""
    arrays, num_cells = lowered.arrays, lowered.table.num_cells
    for group in lowered.collective_groups:
        for placed in group:
            num_bytes = _gathered_bytes(lowered, placed.collective)
            starts = zip(placed.collective.ranks, placed.after, placed.waits_for, strict=True)
            for index, (rank, place, node) in enumerate(starts):
                # A collective that starts after an op counts as received before the next one.
                received[first_slot[rank] + place + 1] += num_bytes
                value = VALUE_CODES[GRAD_ACC] * num_cells + int(arrays.cells[node])
                if placed.waits is not None and lowered.def_use.maker[value] >= 0:
                    moment = 2 * int(first_slot[rank] + placed.waits[index])
                    death[value] = max(int(death[value]), moment)
