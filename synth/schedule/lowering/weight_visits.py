"""Visits of weights, and sums of gradients: their accesses, transfers and collectives.

    UNSHARD      allocates the buffer of weights(s, v); they come from a rank, or by an all-gather
    F, B, BW, R  read the weights of the visit that is open on their rank for their stage copy
    RESHARD      reads them last; without it the last of those ops does
    W, BW        on a chain read sum(s, j − 1) and make sum(s, j); otherwise the first one after a
                 REDUCE_GRAD makes acc(s, v), and the others up to the next one add to it
    REDUCE_GRAD  reads acc(s, v), which a reduce-scatter takes to the homes, or a tree (weight_tree)
    STEP         on a chain reads the sum over all micro-batches, else waits for the reduce-scatters

A *chain* of a stage connects its visits in the order of micro-batches, visits for forwards apart
from those for backwards. A rank hands weights on as soon as they have arrived, before it uses them.
Of two visits of a chain on one rank in a row, the second gets its weights from the home.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from synth.costs import Costs, IntArray
from synth.op_kinds import ADDING, READING, OpKind
from synth.schedule.arrays import KIND_CODES, OpArrays
from synth.schedule.lowering import positions
from synth.schedule.lowering.collectives import (
    Collective,
    CollectiveKind,
    PlacedCollective,
)
from synth.schedule.lowering.effects import GRAD_ACC, GRAD_SUM, VALUE_CODES, WEIGHTS, Pairs
from synth.schedule.lowering.required_transfers import RequiredTransfers
from synth.schedule.lowering.weight_tree import find_tree_sums, rank_above
from synth.schedule.weight_flow import Route, Sharded, WeightFlow

_NONE = -1


class Visit(NamedTuple):
    """A stay of a stage's weights on a rank.

    Attributes:
        stage: the stage.
        is_forward: the first op that reads them is F or R.
        node: the UNSHARD; −1 for ops at the stage's home that use what is kept there.
        value: the number of weights(s, v); −1 likewise.
        rank: the rank.
        first_read: the first op that reads them.
    """

    stage: int
    is_forward: bool
    node: int
    value: int
    rank: int
    first_read: int


@dataclass(frozen=True, eq=False)
class WeightVisits:
    """All visits of a schedule with a `WeightFlow`.

    Attributes:
        reads: ops with the values of visits and sums that they read, by value ascending in nodes.
        makes: likewise the values that they make.
        visits: all visits, those at homes included, in the order of chains: by stage, forwards
            before backwards, micro-batch.
        homeless: ops that read weights that are neither kept on their rank nor visiting.
        unmatched: UNSHARDs of visits that no op reads, RESHARDs without such a visit, W's without a
            REDUCE_GRAD behind them and REDUCE_GRADs without a W before them.
        outdated: ops that read the parameters which their rank keeps between visits before an
            UNSHARD has brought the shares that other homes updated.
        unread: REDUCE_GRADs on a tree without one of the same number on the rank above.
        unfinished: REDUCE_GRADs of gradients that are kept whole (ZeRO-1) with a W or REDUCE_GRAD
            of the stage behind them on their rank.
    """

    flow: WeightFlow
    reads: Pairs
    makes: Pairs
    visits: list[Visit]
    homeless: list[int] = field(default_factory=list)
    unmatched: list[int] = field(default_factory=list)
    outdated: list[int] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)

    def reads_of_sums(self, num_cells: int) -> IntArray:
        """The nodes that read a sum of gradients, some of them repeatedly."""
        return self.reads.node[np.isin(self.reads.value // num_cells, (_SUM, _ACC))]


_FORWARD = (OpKind.F, OpKind.R)


def find_visits(arrays: OpArrays, flow: WeightFlow) -> WeightVisits:
    """Match ops with visits and sums, in the order of each rank's program."""
    return _Finder(arrays, flow).found()


class _Finder:
    """Reads the ops of each stage copy in program order."""

    def __init__(self, arrays: OpArrays, flow: WeightFlow) -> None:
        self.arrays, self.flow = arrays, flow
        self.num_micro_batches = arrays.schedule.num_micro_batches
        copy = arrays.copies
        # The nodes of a copy stand on one rank, so their order is that of its program.
        order = copy.argsort(kind="stable")
        ends = np.bincount(copy, minlength=int(copy.max(initial=0)) + 1).cumsum()
        self.by_copy = np.split(order, ends[:-1])
        self.reads: list[tuple[int, int]] = []
        self.makes: list[tuple[int, int]] = []
        self.visits: list[tuple[tuple[int, bool, int], Visit]] = []
        self.homeless: list[int] = []
        self.unmatched: list[int] = []
        self.outdated: list[int] = []
        self.unread: list[int] = []
        self.first_unshard = _first_unshards(arrays)

    def found(self) -> WeightVisits:
        for nodes in self.by_copy:
            self._visits_of(nodes.tolist())
            if self.flow.gradients in (Route.GATHER, Route.TREE):
                self._accumulations_of(nodes.tolist())
        if self.flow.gradients == Route.CHAIN:
            self._add_sums()
        elif self.flow.gradients == Route.TREE:
            self._add_tree_sums()
        self.visits.sort(key=lambda pair: pair[0])
        return WeightVisits(
            self.flow,
            _pairs(self.reads),
            _pairs(self.makes),
            [visit for _, visit in self.visits],
            sorted(self.homeless),
            sorted(self.unmatched),
            sorted(self.outdated),
            self.unread,
            self._unfinished(),
        )

    def _kind(self, node: int) -> OpKind:
        return _KINDS[int(self.arrays.kind[node])]

    def _value(self, kind_code: int, node: int) -> int:
        return int(kind_code * self.arrays.num_cells + self.arrays.cells[node])

    def _visits_of(self, nodes: list[int]) -> None:
        """Read a copy's visits, and the runs of ops at its home that stand outside of them."""
        opened = _NONE
        readers: list[int] = []
        for node in nodes:
            kind = self._kind(node)
            if kind == OpKind.UNSHARD:
                if opened != _NONE and not readers:
                    self.unmatched.append(opened)
                self._close(opened, readers)
                opened, readers = node, []
            elif kind == OpKind.RESHARD:
                if opened == _NONE or not readers:
                    self.unmatched.append(node)
                else:
                    self.reads.append((node, self._value(_WEIGHTS, opened)))
                self._close(opened, readers)
                opened, readers = _NONE, []
            elif kind in READING:
                if opened == _NONE:
                    self._read_at_home(node)
                else:
                    readers.append(node)
        if opened != _NONE and not readers:
            self.unmatched.append(opened)
        self._close(opened, readers)

    def _read_at_home(self, node: int) -> None:
        stage, rank = int(self.arrays.stage[node]), int(self.arrays.rank[node])
        if self.flow.sharded == Sharded.WEIGHTS:
            if not self.flow.keeps_all(stage, rank):
                self.homeless.append(node)
            self._add_visit(stage, _NONE, _NONE, rank, node)
        elif len(self.flow.homes[stage]) > 1:
            first = self.first_unshard.get((stage, rank))
            if first is None or node < first:
                self.outdated.append(node)

    def _close(self, opened: int, readers: list[int]) -> None:
        if opened == _NONE or not readers:
            return
        value, arrays = self._value(_WEIGHTS, opened), self.arrays
        if self.flow.sharded == Sharded.WEIGHTS:
            self.reads += [(node, value) for node in readers]
        stage, rank = int(arrays.stage[opened]), int(arrays.rank[opened])
        self._add_visit(stage, opened, value, rank, readers[0])

    def _add_visit(self, stage: int, opened: int, value: int, rank: int, first_read: int) -> None:
        is_forward = self._kind(first_read) in _FORWARD
        key = stage, not is_forward, int(self.arrays.microbatch[first_read])
        self.visits.append((key, Visit(stage, is_forward, opened, value, rank, first_read)))

    def _accumulations_of(self, nodes: list[int]) -> None:
        """Gather the W's up to each REDUCE_GRAD of a copy."""
        adding: list[int] = []
        is_held = self.flow.sharded != Sharded.OPTIMIZER
        for node in nodes:
            if self._kind(node) in ADDING:
                adding.append(node)
            elif self._kind(node) == OpKind.REDUCE_GRAD:
                if not adding:
                    self.unmatched.append(node)
                elif is_held:
                    value = self._value(_ACC, node)
                    self.makes.append((adding[0], value))
                    self.reads += [(other, value) for other in (*adding[1:], node)]
                adding = []
        self.unmatched += adding

    def _unfinished(self) -> list[int]:
        """The REDUCE_GRADs of whole gradients with a W or REDUCE_GRAD of the stage behind them.

        The gradients hold the sum of all homes by then, which would be reduced once more.
        """
        if self.flow.sharded != Sharded.OPTIMIZER:
            return []
        found: list[int] = []
        has_more: set[tuple[int, int]] = set()
        for node in reversed(range(self.arrays.num_nodes)):
            kind, stage = self._kind(node), int(self.arrays.stage[node])
            if len(self.flow.homes[stage]) == 1 or kind not in (*ADDING, OpKind.REDUCE_GRAD):
                continue
            key = stage, int(self.arrays.rank[node])
            if kind == OpKind.REDUCE_GRAD and key in has_more:
                found.append(node)
            has_more.add(key)
        return found[::-1]

    def _add_sums(self) -> None:
        """Chain the contributions of a stage in the order of micro-batches, and the STEP to it."""
        arrays = self.arrays
        adder = np.full((arrays.num_stages, self.num_micro_batches), _NONE)
        adds = arrays.of_kinds(*ADDING).nonzero()[0]
        adder[arrays.stage[adds], arrays.microbatch[adds]] = adds
        for node in adds.tolist():
            self.makes.append((node, self._value(_SUM, node)))
            j = int(arrays.microbatch[node])
            before = int(adder[arrays.stage[node], j - 1]) if j else _NONE
            if before != _NONE:
                self.reads.append((node, self._value(_SUM, before)))
        for step in arrays.of_step.nonzero()[0].tolist():
            last = int(adder[arrays.stage[step], -1])
            if last != _NONE:
                self.reads.append((step, self._value(_SUM, last)))

    def _add_tree_sums(self) -> None:
        found = find_tree_sums(self.arrays, self.flow)
        self.makes += [(node, self._value(_SUM, node)) for node in found.made]
        self.reads += [(node, self._value(_SUM, below)) for node, below in found.read]
        self.unread = found.unread


_KINDS = list(OpKind)
_WEIGHTS, _SUM, _ACC = (VALUE_CODES[kind] for kind in (WEIGHTS, GRAD_SUM, GRAD_ACC))


def _first_unshards(arrays: OpArrays) -> dict[tuple[int, int], int]:
    """The first UNSHARD of each stage on each rank, by (stage, rank)."""
    found: dict[tuple[int, int], int] = {}
    for node in (arrays.kind == KIND_CODES[OpKind.UNSHARD]).nonzero()[0].tolist():
        found.setdefault((int(arrays.stage[node]), int(arrays.rank[node])), node)
    return found


def _pairs(found: list[tuple[int, int]]) -> Pairs:
    node, value = np.array(sorted(found), dtype=np.int64).reshape(-1, 2).T
    return Pairs(node, value)


def weight_transfers(arrays: OpArrays, found: WeightVisits) -> tuple[RequiredTransfers, IntArray]:
    """The transfers of visits that come from a rank, and by transfer the value at its source.

    That value are the weights of the visit before; −1 stands for those that the home keeps.
    """
    rows, held = [], []
    pairs = [] if found.flow.weights == Route.GATHER else sources_of_visits(arrays, found)
    for visit, before in pairs:
        rows.append((visit.value, before.rank, visit.rank, before.first_read, visit.first_read))
        held.append(before.value)
    value, ranks, targets, sent, read = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    seen = np.arange(len(rows))
    required = RequiredTransfers(value, ranks, targets, sent, read, seen)
    return required, np.array(held, dtype=np.int64)


def sources_of_visits(arrays: OpArrays, found: WeightVisits) -> list[tuple[Visit, Visit]]:
    """Each visit with the one from which its weights come, in the order of the UNSHARDs."""
    flow, pairs = found.flow, []
    before: Visit | None = None
    staged = _visits_by_place(arrays, found) if flow.weights == Route.TREE else {}
    for visit in found.visits:
        home = flow.homes[visit.stage][0]
        source = Visit(visit.stage, visit.is_forward, _NONE, _NONE, home, arrays.first_node[home])
        if flow.weights == Route.CHAIN and before is not None and before[:2] == visit[:2]:
            source = source if before.rank == visit.rank else before
        elif visit.value != _NONE and flow.weights == Route.TREE:
            above = rank_above(flow, visit.stage, visit.rank) if visit.rank != home else home
            source = staged.get((visit.stage, int(arrays.microbatch[visit.node]), above), source)
        if visit.value != _NONE:
            pairs.append((visit, source))
        before = visit
    return sorted(pairs, key=lambda pair: pair[0].node)


def _visits_by_place(arrays: OpArrays, found: WeightVisits) -> dict[tuple[int, int, int], Visit]:
    """The visits by stage, number and rank."""
    return {
        (visit.stage, int(arrays.microbatch[visit.node]), visit.rank): visit
        for visit in found.visits
        if visit.value != _NONE
    }


def find_collectives(
    arrays: OpArrays, costs: Costs, found: WeightVisits
) -> list[list[PlacedCollective]]:
    """The all-gathers and reduce-scatters of visits: one list for each set of ranks, in order.

    They are in the order of the first rank's program; `disordered` checks the other ranks'.
    """
    listed: defaultdict[tuple[CollectiveKind, int, int], list[int]] = defaultdict(list)
    readers = {visit.node: visit.first_read for visit in found.visits}
    for node in _calls(arrays, found.flow):
        key = _CALLS[_KINDS[arrays.kind[node]]], int(arrays.stage[node])
        listed[*key, int(arrays.microbatch[node])].append(node)
    groups: defaultdict[tuple[int, ...], list[PlacedCollective]] = defaultdict(list)
    for (kind, stage, number), nodes in sorted(listed.items(), key=lambda item: item[1][0]):
        ranks = tuple(int(arrays.rank[node]) for node in nodes)
        after = tuple(
            node - arrays.first_node[rank] for node, rank in zip(nodes, ranks, strict=True)
        )
        is_gather = kind == CollectiveKind.GATHER
        if is_gather:
            num_bytes, us = costs.stages[stage].parameter_bytes, costs.gather_us(stage, ranks)
            awaited_by = [readers[node] for node in nodes if node in readers]
            waits = None
        else:
            num_bytes, us = costs.stages[stage].gradient_bytes, costs.scatter_us(stage, ranks)
            behind = arrays.schedule.buffering.send_behind
            waits = tuple(
                positions.behind(arrays, np.array(nodes), np.array(ranks), behind).tolist()
            )
            awaited_by = _awaiting(arrays, stage, ranks, waits)
        made = Collective(stage, ranks, num_bytes, us, kind, number)
        groups[ranks].append(PlacedCollective(made, after, nodes, awaited_by, waits))
    return list(groups.values())


_CALLS = {
    OpKind.UNSHARD: CollectiveKind.GATHER,
    OpKind.REDUCE_GRAD: CollectiveKind.SCATTER,
}


def _calls(arrays: OpArrays, flow: WeightFlow) -> list[int]:
    """The nodes that start collectives."""
    kinds = [
        kind
        for kind, route in (
            (OpKind.UNSHARD, flow.weights),
            (OpKind.REDUCE_GRAD, flow.gradients),
        )
        if route == Route.GATHER
    ]
    nodes = arrays.of_kinds(*kinds).nonzero()[0]
    found: list[int] = nodes.tolist()
    return found


def _awaiting(
    arrays: OpArrays, stage: int, ranks: tuple[int, ...], waits: tuple[int, ...]
) -> list[int]:
    """The ops at the places where ranks wait for a reduce-scatter, and the stage's STEPs."""
    first = arrays.first_node
    ops = [first[rank] + place for rank, place in zip(ranks, waits, strict=True)]
    inside = [node for node, rank in zip(ops, ranks, strict=True) if node < first[rank + 1]]
    steps = (arrays.of_step & (arrays.stage == stage)).nonzero()[0].tolist()
    return sorted({*inside, *steps})


def disordered(arrays: OpArrays, flow: WeightFlow) -> tuple[int, int] | None:
    """Two nodes of different ranks that stand at the same place among the collectives of a stage's
    homes but are not the same collective; the second is −1 if a rank lists fewer. None: all match.
    """
    by_group: defaultdict[tuple[int, ...], dict[int, list[int]]] = defaultdict(dict)
    for node in _calls(arrays, flow):
        group = flow.homes[int(arrays.stage[node])]
        by_group[group].setdefault(int(arrays.rank[node]), []).append(node)
    for group, by_rank in by_group.items():
        rows = [by_rank.get(rank, []) for rank in group]
        for others in rows[1:]:
            for place in range(max(len(rows[0]), len(others))):
                pair = [row[place] if place < len(row) else _NONE for row in (rows[0], others)]
                if _NONE in pair or _call(arrays, pair[0]) != _call(arrays, pair[1]):
                    return max(pair), min(pair)
    return None


def _call(arrays: OpArrays, node: int) -> tuple[int, int, int]:
    return int(arrays.kind[node]), int(arrays.stage[node]), int(arrays.microbatch[node])
