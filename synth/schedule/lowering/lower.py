r"""Lowering: from an order of compute ops to each rank's full program and the op DAG.

Everything that reads a schedule (solver, simulator, verifier, executor) reads this form, so they
cannot disagree about what it means. One transfer, with the default buffering (1, 2):

    sender    | op k, makes v | op k+1        | op k+2        | (1) op k+3
              |               \ SEND v                       ^ SENT v: waits, then frees v
    transfer  |                   [== v ==]
    receiver  | ...          | (2) op n−1           | op n, reads v
                             ^ RECV v: allocates the buffer, posts the receive

A transfer starts when it is sent, its receive is posted (2) and the link is free; links serve
transfers in the order in which they were made, and receives are posted in that same order, as
in-order communicators (NCCL) demand. (1) and (2) sit at fixed places of the programs, so a rank's
memory follows from the order of its ops alone, never from timing.

What a schedule of hundreds of thousands of ops needs in order to be judged is kept in arrays; the
objects that an executor or a report reads (`ops`, `transfers`, `programs`, `predecessors`) are
made when they are asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from synth.costs import HOST, Costs, IntArray
from synth.schedule.arrays import OpArrays
from synth.schedule.lowering.def_use import Uses, find_uses
from synth.schedule.lowering.effects import VALUE_KINDS, Effects, EffectTable
from synth.schedule.lowering.programs import Action, Attached, Instruction, Transfer, weave
from synth.schedule.lowering.reductions import Reduction, Turn, find_turns
from synth.schedule.lowering.routes import Routes, find_routes
from synth.schedule.model import Schedule
from synth.schedule.ops import Op, Value

__all__ = ["Action", "Instruction", "Lowered", "Reduction", "Transfer", "lower", "lower_arrays"]


class Edges(NamedTuple):
    """Edges of the DAG: node `before[i]` must end before node `after[i]` starts."""

    before: IntArray
    after: IntArray

    @classmethod
    def of(cls, pairs: list[tuple[int, int]]) -> Self:
        """From (before, after) pairs."""
        return cls(*np.array(pairs, dtype=np.int64).reshape(-1, 2).T)


@dataclass(frozen=True, eq=False)
class Lowered:
    """A schedule on its costs, as programs and as a DAG.

    The DAG has one node per compute op (rank by rank, in program order), then one per transfer,
    then one per reduction.
    """

    schedule: Schedule
    costs: Costs
    arrays: OpArrays
    table: EffectTable
    uses: Uses
    routes: Routes
    turns: list[list[Turn]]
    durations: IntArray
    edges: Edges

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.arrays.ops)

    @property
    def ops(self) -> list[tuple[Op, ...]]:
        """Each rank's ops, STEPs included."""
        return self.arrays.ops

    @property
    def first_node(self) -> list[int]:
        """The first node of every rank, and at the end the first that is no op."""
        return self.arrays.first_node

    @cached_property
    def effects(self) -> Effects:
        """What the ops read and make."""
        return Effects(self.costs, self.schedule.num_micro_batches, self.arrays.fates)

    @cached_property
    def durations_us(self) -> list[int]:
        """How long each node takes."""
        durations: list[int] = self.durations.tolist()
        return durations

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """For each node, those that must end before it starts."""
        lists: list[list[int]] = [[] for _ in range(len(self.durations))]
        for before, after in zip(*(ends.tolist() for ends in self.edges), strict=True):
            lists[after].append(before)
        return lists

    @cached_property
    def transfers(self) -> list[Transfer]:
        """All transfers, in the order of their nodes."""
        routes = self.routes
        columns = (routes.source, routes.target, routes.num_bytes, routes.duration_us)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Transfer(self._value(v), *row)
            for v, row in zip(routes.value.tolist(), rows, strict=True)
        ]

    @property
    def reductions(self) -> list[Reduction]:
        """All reductions, in the order of their nodes."""
        return [turn.reduction for turns in self.turns for turn in turns]

    @cached_property
    def programs(self) -> "Programs":
        """Each rank's full program."""
        return Programs(self)

    def node_name(self, node: int) -> str:
        """Name a node for people: the op and its rank, the transfer or the reduction."""
        first = self.first_node
        beyond = node - first[-1]
        if beyond >= len(self.routes):
            return f"reduction of the {self.reductions[beyond - len(self.routes)]}"
        if beyond >= 0:
            return f"transfer of {self.transfers[beyond]}"
        rank = max(r for r in range(self.num_ranks) if first[r] <= node)
        return f"{self.ops[rank][node - first[rank]]} on rank {rank}"

    def _value(self, number: int) -> Value:
        """The value of a number; see `EffectTable`."""
        kind, cell = divmod(number, self.table.num_cells)
        copy, microbatch = divmod(cell, self.schedule.num_micro_batches)
        replica, stage = divmod(copy, self.arrays.num_stages)
        return Value(VALUE_KINDS[kind], stage, microbatch, replica)


class Programs:
    """The full programs of all ranks, each woven when it is first asked for."""

    def __init__(self, lowered: Lowered) -> None:
        self._lowered = lowered
        self._woven: dict[int, list[Instruction]] = {}

    def __len__(self) -> int:
        """Number of ranks."""
        return self._lowered.num_ranks

    def __iter__(self) -> Iterator[list[Instruction]]:
        """The programs of all ranks, in order."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, rank: int) -> list[Instruction]:
        """One rank's program."""
        rank = range(len(self))[rank]
        if rank not in self._woven:
            attached = _attached(self._lowered, rank)
            self._woven[rank] = weave(self._lowered.ops[rank], attached, self._lowered.effects)
        return self._woven[rank]


def _attached(lowered: Lowered, rank: int) -> Attached:
    """What a rank receives, sends, waits for and reduces."""
    attached, routes, transfers = Attached.nothing(), lowered.routes, lowered.transfers
    first = lowered.first_node[rank]
    for i in (routes.target == rank).nonzero()[0].tolist():
        attached.posts[int(routes.post[i])].append(transfers[i])
    for i in (routes.source == rank).nonzero()[0].tolist():
        attached.sends[int(routes.made[i]) - first].append(transfers[i])
        attached.waits[int(routes.wait[i])].append(transfers[i])
    for turns in lowered.turns:
        for reduction, places, *_ in turns:
            if rank in reduction.ranks:
                place = places[reduction.ranks.index(rank)]
                attached.reductions[place].append(reduction)
    return attached


def lower(schedule: Schedule, costs: Costs, *, synchronous_step: bool = False) -> Lowered:
    """Insert what the order implies: STEPs, transfers, waits, reductions, and the death of values.

    Args:
        schedule: any schedule whose ops exist; `verify` says whether it is a good one.
        costs: as many stages as the placement has.
        synchronous_step: every STEP waits for all ranks (a global gradient norm), as training
            without optimizer post-validation does.

    Raises:
        SynthError: a cost is too large to be added up exactly.
    """
    return lower_arrays(OpArrays.of(schedule), costs, synchronous_step=synchronous_step)


def lower_arrays(arrays: OpArrays, costs: Costs, *, synchronous_step: bool = False) -> Lowered:
    """Lower a schedule whose ops are arrays already."""
    schedule = arrays.schedule
    num_replicas = len(schedule.placement.ranks)
    table = EffectTable.of(
        costs, num_replicas, schedule.num_micro_batches, is_plain=arrays.is_plain
    )
    uses = find_uses(arrays, table)
    routes = find_routes(arrays, uses, table, costs)
    turns = find_turns(arrays, costs)
    reduction_us = [turn.reduction.duration_us for each in turns for turn in each]
    op_us = table.duration_us[arrays.classes]
    durations_us = np.concatenate([op_us, routes.duration_us, np.array(reduction_us, dtype=int)])
    edges = [_op_edges(arrays, uses), _transfer_edges(arrays, routes)]
    if turns:
        edges.append(_reduction_edges(turns, arrays.num_nodes + len(routes)))
    if synchronous_step:
        ended = range(len(durations_us) - len(reduction_us), len(durations_us))
        edges.append(_barrier_edges(arrays, ended))
    joined = Edges(*(np.concatenate(ends) for ends in zip(*edges, strict=True)))
    return Lowered(schedule, costs, arrays, table, uses, routes, turns, durations_us, joined)


def _op_edges(arrays: OpArrays, uses: Uses) -> Edges:
    """An op waits for the one before it on its rank, and for what it reads that stands later."""
    node = np.arange(1, arrays.num_nodes)
    inner = node[arrays.rank[1:] == arrays.rank[:-1]]
    return Edges(
        np.concatenate([inner - 1, uses.late_maker]), np.concatenate([inner, uses.late_reader])
    )


def _transfer_edges(arrays: OpArrays, routes: Routes) -> Edges:
    """A transfer's two ends, in the order in which its node, reader and waiting op list them."""
    first = np.array(arrays.first_node)
    at_source, at_target = first[routes.source], first[routes.target]
    node = np.arange(arrays.num_nodes, arrays.num_nodes + len(routes))
    before = np.array([node, node, routes.made, at_target + routes.post - 1, node - 1])
    after = np.array([routes.read, at_source + routes.wait, node, node, node])
    exists = np.ones((5, len(routes)), dtype=np.bool_)
    exists[0] = routes.target != HOST
    exists[1] = (after[1] < first[routes.source + 1]) & (routes.source != HOST)
    exists[3] = routes.post > 0
    exists[4] = ~routes.opens_link
    return Edges(before.T[exists.T], after.T[exists.T])


def _reduction_edges(turns: list[list[Turn]], node: int) -> Edges:
    """A reduction waits for every copy's last W and the one before it; its STEPs wait for it."""
    edges: list[tuple[int, int]] = []
    for each in turns:
        for k, turn in enumerate(each):
            edges += [(last, node) for last in turn.waits_for]
            edges += [(node - 1, node)] if k else []
            edges += [(node, step) for step in turn.steps]
            node += 1
    return Edges.of(edges)


def _barrier_edges(arrays: OpArrays, reductions: Sequence[int]) -> Edges:
    """Every STEP waits for all ranks to have come to their first one, and for all reductions."""
    edges: list[tuple[int, int]] = []
    steps = arrays.of_step.nonzero()[0]
    ranks, index = np.unique(arrays.rank[steps], return_index=True)
    lasts = [
        int(steps[i]) - 1
        for rank, i in zip(ranks.tolist(), index.tolist(), strict=True)
        if steps[i] > arrays.first_node[rank]
    ]
    for step in steps.tolist():
        edges += [(last, step) for last in lasts if last != step - 1]
        edges += [(reduction, step) for reduction in reductions]
    return Edges.of(edges)
