r"""Lowering: from an order of compute ops to each rank's full program and the op DAG.

Everything that reads a schedule (solver, simulator, verifier, executor) reads this form, so they
cannot disagree about its meaning. One transfer, with the default buffering (1, 2):

    sender    | op k, makes v | op k+1        | op k+2        | (1) op k+3
              |               \ SEND v                       ^ SENT v: waits, then frees v
    transfer  |                   [== v ==]
    receiver  | ...          | (2) op n−1           | op n, reads v
                             ^ RECV v: allocates the buffer, posts the receive

A transfer starts when it is sent, its receive is posted (2) and the link is free; links serve
transfers in the order in which they were made, and receives are posted in that same order, as
in-order communicators (NCCL) demand. (1) and (2) sit at fixed places of the programs, so a rank's
memory follows from the order of its ops alone, never from timing.

The solver judges schedules of hundreds of thousands of ops by arrays alone. The objects that an
executor or a report reads (`ops`, `transfers`, `programs`, `predecessors`) are made on demand.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.costs.costs import Costs, IntArray
from synth.schedule.arrays import OpArrays
from synth.schedule.lowering.collectives import (
    Collective,
    PlacedCollective,
    find_reductions,
    find_update_reductions,
)
from synth.schedule.lowering.def_use import DefUse, find_def_use
from synth.schedule.lowering.durations import durations_of_ops
from synth.schedule.lowering.edges import (
    Edges,
    barrier_edges,
    collective_edges,
    op_edges,
    transfer_edges,
)
from synth.schedule.lowering.effect_table import EffectTable, Pairs, effect_table
from synth.schedule.lowering.effects import VALUE_KINDS, Effects, VisitAccesses
from synth.schedule.lowering.programs import (
    Action,
    CommunicationSlots,
    Instruction,
    Transfer,
    insert_communication,
)
from synth.schedule.lowering.transfers import TransferTable, find_transfers
from synth.schedule.lowering.version_accesses import VersionAccesses, find_versions
from synth.schedule.lowering.visit_collectives import find_collectives
from synth.schedule.lowering.visit_transfers import updates_after_sums
from synth.schedule.lowering.weight_visits import WeightVisits, find_visits
from synth.schedule.model import Schedule
from synth.schedule.ops import Op, Value
from synth.schedule.sharded_pipelines import sharded_costs
from synth.schedule.weight_flow import Route

__all__ = ["Action", "Collective", "Instruction", "Lowered", "Transfer", "lower", "lower_arrays"]


@dataclass(frozen=True, eq=False)
class Lowered:
    """A schedule on its costs, as programs and as a DAG.

    The DAG has one node per compute op (rank by rank, in program order), then one per transfer,
    then one per collective.
    """

    schedule: Schedule
    costs: Costs
    arrays: OpArrays
    table: EffectTable
    def_use: DefUse
    transfer_table: TransferTable
    collective_groups: list[list[PlacedCollective]]
    durations: IntArray
    edges: Edges
    visits: WeightVisits | None = None
    versions: VersionAccesses | None = None

    @property
    def num_ranks(self) -> int:
        return len(self.arrays.ops)

    @property
    def ops(self) -> list[tuple[Op, ...]]:
        """Each rank's ops, STEPs included."""
        return self.arrays.ops

    @property
    def first_node(self) -> list[int]:
        """The first node of every rank, followed by the first node that is not an op."""
        return self.arrays.first_node

    @cached_property
    def effects(self) -> Effects:
        """The reads and writes of the ops."""
        found = self.visits or self.versions
        return Effects(
            self.costs,
            self.schedule.num_micro_batches,
            self.arrays.saved_modes,
            None if found is None else self._accesses(found),
            one_update=self.versions is None,
            barriers=self.schedule.vocabulary,
            placement=self.schedule.placement if self._senders_share else None,
        )

    @property
    def _senders_share(self) -> bool:
        return self.arrays.is_plain and not self.schedule.vocabulary

    @property
    def stored(self) -> Pairs | None:
        """The values that ops make besides those of the effect table; None: there are none."""
        found = self.visits or self.versions
        return None if found is None else found.makes

    def _accesses(self, visits: WeightVisits | VersionAccesses) -> VisitAccesses:
        """The accesses of visits and sums, or of versions, by op."""
        ops = [op for program in self.ops for op in program]
        found: list[defaultdict[Op, list[Value]]] = []
        for pairs in (visits.reads, visits.makes):
            by_op: defaultdict[Op, list[Value]] = defaultdict(list)
            for node, value in zip(*(field.tolist() for field in pairs), strict=True):
                by_op[ops[node]].append(self._value(value))
            found.append(by_op)
        return VisitAccesses(*found)

    @cached_property
    def durations_us(self) -> list[int]:
        """The duration of each node."""
        durations: list[int] = self.durations.tolist()
        return durations

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """For each node, the nodes that must end before it starts."""
        lists: list[list[int]] = [[] for _ in range(len(self.durations))]
        for before, after in zip(*(ends.tolist() for ends in self.edges), strict=True):
            lists[after].append(before)
        return lists

    @cached_property
    def transfers(self) -> list[Transfer]:
        """All transfers, in the order of their nodes."""
        transfer_table = self.transfer_table
        columns = (
            transfer_table.source,
            transfer_table.target,
            transfer_table.num_bytes,
            transfer_table.duration_us,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Transfer(self._value(v), *row)
            for v, row in zip(transfer_table.value.tolist(), rows, strict=True)
        ]

    def held(self, transfer: int) -> Value | None:
        """The value at the source of a transfer; None: weights that the source keeps."""
        number = int(self.transfer_table.held[transfer])
        return None if number < 0 else self._value(number)

    @property
    def collectives(self) -> list[Collective]:
        """All collectives, in the order of their nodes."""
        return [placed.collective for group in self.collective_groups for placed in group]

    @property
    def started_collectives(self) -> list[Collective]:
        """The collectives that programs start."""
        return [one for one in self.collectives if not one.is_within_rank]

    @cached_property
    def reductions_within_ranks(self) -> frozenset[int]:
        """The nodes of the reductions among the devices of one rank."""
        found = enumerate(self.collectives, self.first_node[-1] + len(self.transfer_table))
        return frozenset(node for node, one in found if one.is_within_rank)

    @cached_property
    def programs(self) -> "Programs":
        """Each rank's full program."""
        return Programs(self)

    def node_name(self, node: int) -> str:
        """A readable name of a node: the op and its rank, the transfer or the reduction."""
        first = self.first_node
        beyond = node - first[-1]
        if beyond >= len(self.transfer_table):
            collective = self.collectives[beyond - len(self.transfer_table)]
            return f"{collective.kind} of the {collective}"
        if beyond >= 0:
            return f"transfer of {self.transfers[beyond]}"
        rank = max(r for r in range(self.num_ranks) if first[r] <= node)
        return f"{self.ops[rank][node - first[rank]]} on rank {rank}"

    def _value(self, number: int) -> Value:
        """The value with a number; see `EffectTable`."""
        kind, cell = divmod(number, self.table.num_cells)
        copy, microbatch = divmod(cell, self.schedule.num_micro_batches)
        replica, stage = divmod(copy, self.arrays.num_stages)
        return Value(VALUE_KINDS[kind], stage, microbatch, replica)


class Programs:
    """The full programs of all ranks, each made on first access."""

    def __init__(self, lowered: Lowered) -> None:
        self._lowered = lowered
        self._made: dict[int, list[Instruction]] = {}

    def __len__(self) -> int:
        """Number of ranks."""
        return self._lowered.num_ranks

    def __iter__(self) -> Iterator[list[Instruction]]:
        """The programs of all ranks, in order."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, rank: int) -> list[Instruction]:
        """One rank's program."""
        rank = range(len(self))[rank]
        if rank not in self._made:
            slots = _communication_slots(self._lowered, rank)
            self._made[rank] = insert_communication(
                self._lowered.ops[rank],
                slots,
                self._lowered.effects,
                self._lowered.schedule.overlapped,
            )
        return self._made[rank]


def _communication_slots(lowered: Lowered, rank: int) -> CommunicationSlots:
    """The receives, sends, waits and reductions of a rank, by place."""
    slots, transfer_table, transfers = (
        CommunicationSlots(),
        lowered.transfer_table,
        lowered.transfers,
    )
    first = lowered.first_node[rank]
    for i in (transfer_table.target == rank).nonzero()[0].tolist():
        slots.posts[int(transfer_table.post[i])].append(transfers[i])
    for i in (transfer_table.source == rank).nonzero()[0].tolist():
        # Weights are sent before the op that reads them first, a value after the op that makes it.
        is_weights = transfer_table.held[i] != transfer_table.value[i]
        place = int(transfer_table.sent[i]) - first - is_weights
        if is_weights:
            slots.relayed[transfers[i]] = lowered.held(i)
        slots.sends[place].append(transfers[i])
        slots.waits[int(transfer_table.wait[i])].append(transfers[i])
    for group in lowered.collective_groups:
        for collective, places, *_, waits in group:
            if rank in collective.ranks and not collective.is_within_rank:
                index = collective.ranks.index(rank)
                slots.collectives[places[index]].append(collective)
                if waits is not None:
                    slots.collected[waits[index]].append(collective)
    return slots


def lower(schedule: Schedule, costs: Costs, *, synchronous_step: bool = False) -> Lowered:
    """Insert what the order implies: STEPs, transfers, waits, reductions, and the ends of lives.

    Args:
        schedule: a schedule whose ops exist; `verify` checks the rest.
        costs: the costs of as many stages as the placement has.
        synchronous_step: every STEP waits for all ranks (a global gradient norm), as training
            without optimizer post-validation does; without effect where weights have versions.

    Raises:
        SynthError: a cost is too large to be added up exactly.
    """
    return lower_arrays(OpArrays.of(schedule), costs, synchronous_step=synchronous_step)


def lower_arrays(arrays: OpArrays, costs: Costs, *, synchronous_step: bool = False) -> Lowered:
    """Lower a schedule that is given as arrays."""
    schedule = arrays.schedule
    if schedule.weights is not None:
        costs = sharded_costs(costs, schedule.weights.sharded)
    if schedule.weights is not None or schedule.versions is not None:
        costs = costs.untied()
    table = effect_table(
        costs.table(),
        schedule.placement,
        schedule.num_micro_batches,
        is_plain=arrays.is_plain,
        one_update=schedule.versions is None,
        barriers=schedule.vocabulary,
    )
    visits = None if schedule.weights is None else find_visits(arrays, schedule.weights)
    versions = None if schedule.versions is None else find_versions(arrays, schedule.versions)
    def_use = find_def_use(arrays, table, visits or versions)
    transfer_table = find_transfers(arrays, def_use, table, costs, visits)
    groups = _collective_groups(arrays, costs, visits)
    collective_us = [placed.collective.duration_us for each in groups for placed in each]
    durations_us = np.concatenate(
        [
            durations_of_ops(arrays, table, costs),
            transfer_table.duration_us,
            np.array(collective_us, dtype=int),
        ]
    )
    edges = [op_edges(arrays, def_use), transfer_edges(arrays, transfer_table)]
    if schedule.weights is not None and schedule.weights.gradients == Route.HOST:
        sums = transfer_table.value, transfer_table.target
        edges.append(Edges.of(updates_after_sums(arrays, *sums)))
    if groups:
        edges.append(collective_edges(groups, arrays.num_nodes + len(transfer_table)))
    if synchronous_step and versions is None:
        ended = range(len(durations_us) - len(collective_us), len(durations_us))
        edges.append(barrier_edges(arrays, ended))
    joined = Edges(*(np.concatenate(ends) for ends in zip(*edges, strict=True)))
    parts = (arrays, table, def_use, transfer_table, groups, durations_us, joined)
    return Lowered(schedule, costs, *parts, visits=visits, versions=versions)


def _collective_groups(
    arrays: OpArrays, costs: Costs, visits: WeightVisits | None
) -> list[list[PlacedCollective]]:
    """The collectives of a schedule, by the ranks that take part."""
    if visits is not None:
        return find_collectives(arrays, costs, visits)
    if arrays.schedule.versions is not None:
        return find_update_reductions(arrays, costs)
    return find_reductions(arrays, costs)
