"""Visits of weights, and sums of gradients: the ops that read and make them.

    UNSHARD      allocates the buffer of weights(s, v); they come from a rank, or by an all-gather
    F, B, BW, R  read the weights of the visit that is open on their rank for their stage copy
    RESHARD      reads them last; without it the last of those ops does
    W, BW        on a chain read sum(s, j − 1) and make sum(s, j); otherwise the first one after a
                 REDUCE_GRAD makes acc(s, v), and the others up to the next one add to it
    REDUCE_GRAD  reads acc(s, v), which goes to the homes by a reduce-scatter or a tree
                 (weight_tree), or to the host (host_weights)
    STEP         on a chain reads the sum over all micro-batches, else waits for the reduce-scatters

Their transfers are in `visit_transfers`, their collectives in `visit_collectives`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from synth.costs.costs import IntArray
from synth.op_kinds import ADDING, READING, OpKind
from synth.schedule.arrays import KIND_CODES, KINDS, OpArrays
from synth.schedule.lowering.effect_table import Pairs
from synth.schedule.lowering.effects import GRAD_ACC, GRAD_SUM, VALUE_CODES, WEIGHTS
from synth.schedule.lowering.weight_tree import find_tree_sums
from synth.schedule.weight_flow import Route, Sharded, WeightFlow

# A number of no node and no value.
ABSENT = -1


class Visit(NamedTuple):
    """A stay of a stage's weights on a rank.

    Attributes:
        is_forward: the first op that reads them is F or R.
        node: the UNSHARD; −1 for ops at the stage's home that use what is kept there.
        value: the number of weights(s, v); −1 likewise.
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
            REDUCE_GRAD after them and REDUCE_GRADs without a W before them.
        outdated: ops that read the parameters which their rank keeps between visits before an
            UNSHARD has brought the shares that other homes updated.
        unread: REDUCE_GRADs on a tree without one of the same number on the rank above.
        unfinished: REDUCE_GRADs of gradients that are kept whole (ZeRO-1) with a W or REDUCE_GRAD
            of the stage after them on their rank.
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
        kind = self.reads.value // num_cells
        found: IntArray = self.reads.node[(kind == _SUM) | (kind == _ACC)]
        return found


_FORWARD = (OpKind.F, OpKind.R)


def find_visits(arrays: OpArrays, flow: WeightFlow) -> WeightVisits:
    """Match ops with visits and sums, in the order of each rank's program."""
    return _Finder(arrays, flow).found()


class _Finder:
    """Reads the ops of each stage copy on a rank in program order."""

    def __init__(self, arrays: OpArrays, flow: WeightFlow) -> None:
        self.arrays, self.flow = arrays, flow
        self.num_micro_batches = arrays.schedule.num_micro_batches
        # The order of a copy's nodes on a rank is that of its program.
        key = arrays.copies * len(arrays.ops) + arrays.rank
        order = key.argsort(kind="stable")
        self.by_copy = np.split(order, np.diff(key[order]).nonzero()[0] + 1)
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
            if self.flow.gradients != Route.CHAIN:
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
        return KINDS[int(self.arrays.kind[node])]

    def _value(self, kind_code: int, node: int) -> int:
        return int(kind_code * self.arrays.num_cells + self.arrays.cells[node])

    def _visits_of(self, nodes: list[int]) -> None:
        """Read a copy's visits, and the runs of ops at its home that stand outside of them."""
        opened = ABSENT
        readers: list[int] = []
        for node in nodes:
            kind = self._kind(node)
            if kind == OpKind.UNSHARD:
                if opened != ABSENT and not readers:
                    self.unmatched.append(opened)
                self._close(opened, readers)
                opened, readers = node, []
            elif kind == OpKind.RESHARD:
                if opened == ABSENT or not readers:
                    self.unmatched.append(node)
                else:
                    self.reads.append((node, self._value(_WEIGHTS, opened)))
                self._close(opened, readers)
                opened, readers = ABSENT, []
            elif kind in READING:
                if opened == ABSENT:
                    self._read_at_home(node)
                else:
                    readers.append(node)
        if opened != ABSENT and not readers:
            self.unmatched.append(opened)
        self._close(opened, readers)

    def _read_at_home(self, node: int) -> None:
        stage, rank = int(self.arrays.stage[node]), int(self.arrays.rank[node])
        if self.flow.sharded == Sharded.WEIGHTS:
            if not self.flow.keeps_all(stage, rank):
                self.homeless.append(node)
            self._add_visit(stage, ABSENT, ABSENT, rank, node)
        elif len(self.flow.homes[stage]) > 1:
            first = self.first_unshard.get((stage, rank))
            if first is None or node < first:
                self.outdated.append(node)

    def _close(self, opened: int, readers: list[int]) -> None:
        if opened == ABSENT or not readers:
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
        adder = np.full((arrays.num_stages, self.num_micro_batches), ABSENT)
        adds = arrays.of_kinds(*ADDING).nonzero()[0]
        adder[arrays.stage[adds], arrays.microbatch[adds]] = adds
        for node in adds.tolist():
            self.makes.append((node, self._value(_SUM, node)))
            j = int(arrays.microbatch[node])
            before = int(adder[arrays.stage[node], j - 1]) if j else ABSENT
            if before != ABSENT:
                self.reads.append((node, self._value(_SUM, before)))
        for step in arrays.of_step.nonzero()[0].tolist():
            last = int(adder[arrays.stage[step], -1])
            if last != ABSENT:
                self.reads.append((step, self._value(_SUM, last)))

    def _add_tree_sums(self) -> None:
        found = find_tree_sums(self.arrays, self.flow)
        self.makes += [(node, self._value(_SUM, node)) for node in found.made]
        self.reads += [(node, self._value(_SUM, below)) for node, below in found.read]
        self.unread = found.unread


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
