"""A schedule's ops as arrays of integers, so that hundreds of thousands of them stay cheap.

Numbers, with R replicas, S stages and m micro-batches:

    node   an op's index among all ops, rank by rank in program order, STEPs included
    cell   (replica · S + stage) · m + micro-batch
    class  (saved mode · kinds + kind) · S + stage; costs and effects depend on nothing else. Kinds
           are in the order of `OpKind`, saved modes in that of `SAVED_MODES`
    slot   node + rank: each rank has one slot more than ops, for events after its last op

If there is no op but F, B, W, BW and STEP (`is_plain`), there are these five kinds and one mode.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from synth.costs.costs import IntArray
from synth.op_kinds import MEASURED, OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op

# By code.
KINDS = tuple(OpKind)
KIND_CODES = {kind: code for code, kind in enumerate(OpKind)}
_kind_of = itemgetter(0)

Flags = npt.NDArray[np.bool_]
Cell = tuple[int, int, int]


class SavedMode(NamedTuple):
    """The fate of a micro-batch's saved activations: kept, rebuilt by R, moved by OFFLOAD."""

    rebuilt: bool
    moved: bool


SAVED_MODES = tuple(
    SavedMode(rebuilt, moved) for moved in (False, True) for rebuilt in (False, True)
)


@cache
def _flags_by_code(kinds: tuple[OpKind, ...]) -> Flags:
    """Return for each code of a kind if it is one of these: `np.isin` takes far longer."""
    return np.array([kind in kinds for kind in KINDS])


@dataclass(frozen=True, eq=False)
class OpArrays:
    """All ops of a schedule, as tuples by rank and as one array per field by node.

    `first_node` has the first node of every rank, followed by the number of nodes. The rows of
    `fields` are the `kind`, `stage`, `microbatch` and `replica` of all nodes.
    """

    schedule: Schedule
    ops: list[tuple[Op, ...]]
    first_node: list[int]
    rank: IntArray
    fields: IntArray
    kind: IntArray
    stage: IntArray
    microbatch: IntArray
    replica: IntArray

    @classmethod
    def of(cls, schedule: Schedule) -> "OpArrays":
        """Read a schedule's programs, with the STEPs that they do not list at their ends."""
        ops = [with_steps(schedule, rank) for rank in range(schedule.num_ranks)]
        lengths = [len(program) for program in ops]
        rank = np.repeat(np.arange(len(ops)), lengths)
        flat: list[Any] = list(chain.from_iterable(chain.from_iterable(ops)))
        flat[0::4] = map(KIND_CODES.__getitem__, flat[0::4])
        fields = np.fromiter(flat, np.int64, len(flat)).reshape(-1, 4).T.copy()
        first_node = list(accumulate(lengths, initial=0))
        return cls(schedule, ops, first_node, rank, fields, *fields)

    @cached_property
    def num_nodes(self) -> int:
        """Number of ops."""
        return self.first_node[-1]

    @cached_property
    def num_stages(self) -> int:
        """The number of stages; copies do not count."""
        return self.schedule.placement.num_stages

    @cached_property
    def num_cells(self) -> int:
        """Number of (replica, stage, micro-batch)."""
        placement = self.schedule.placement
        return len(placement.ranks) * placement.num_stages * self.schedule.num_micro_batches

    @cached_property
    def is_plain(self) -> bool:
        """True if all ops are F, B, W, BW or STEP, and weights neither move nor have versions."""
        schedule = self.schedule
        stays = schedule.weights is None and schedule.versions is None
        return stays and int(self.kind.max(initial=0)) < len(MEASURED)

    @property
    def num_kinds(self) -> int:
        """The number of op kinds that classes distinguish."""
        return len(MEASURED) if self.is_plain else len(OpKind)

    def listed(self, kind: OpKind) -> Flags:
        """A mask of the cells that have an op of a kind."""
        flags = np.zeros(self.num_cells, dtype=np.bool_)
        flags[self.cells[self.kind == KIND_CODES[kind]]] = True
        return flags

    @cached_property
    def saved_mode_codes(self) -> IntArray:
        """The index in `SAVED_MODES` by cell; only if not all ops are plain."""
        return self.listed(OpKind.R) + 2 * self.listed(OpKind.OFFLOAD)

    @cached_property
    def saved_modes(self) -> dict[Cell, SavedMode]:
        """The saved modes by (stage, micro-batch, replica), without cells that just keep."""
        if self.is_plain:
            return {}
        found = {}
        for cell in self.saved_mode_codes.nonzero()[0].tolist():
            copy, microbatch = divmod(cell, self.schedule.num_micro_batches)
            replica, stage = divmod(copy, self.num_stages)
            found[stage, microbatch, replica] = SAVED_MODES[self.saved_mode_codes[cell]]
        return found

    def of_kinds(self, *kinds: OpKind) -> Flags:
        """A mask of the ops of some kinds."""
        flags: Flags = _flags_by_code(kinds)[self.kind]
        return flags

    def name(self, node: int) -> str:
        """An op for messages: its rank, its place there, and its token."""
        rank = int(self.rank[node])
        place = node - self.first_node[rank]
        return f"rank {rank}, op {place} ({self.ops[rank][place]})"

    @cached_property
    def overlapped(self) -> IntArray:
        """The nodes of the F's that run at once with the op behind them."""
        chosen = self.schedule.overlapped
        found = [node for node, op in enumerate(chain(*self.ops)) if op in chosen] if chosen else []
        return np.array(found, dtype=np.int64)

    def begins_of_pairs(self, node: IntArray) -> IntArray:
        """The nodes, those of a BW that runs at once with an F replaced by the F's."""
        return node - np.isin(node, self.overlapped + 1) if len(self.overlapped) else node

    def ends_of_pairs(self, node: IntArray) -> IntArray:
        """The nodes, those of an F that runs at once with a BW replaced by the BW's."""
        return node + np.isin(node, self.overlapped) if len(self.overlapped) else node

    @cached_property
    def of_step(self) -> Flags:
        """A mask of the STEPs."""
        return np.equal(self.kind, KIND_CODES[OpKind.STEP])

    @cached_property
    def copies(self) -> IntArray:
        """The stage copy of every op: replica · S + stage."""
        copies: IntArray = self.replica * self.num_stages + self.stage
        return copies

    @cached_property
    def holders(self) -> IntArray:
        """The first stage copy on the op's rank of its stage: copies on a rank share weights."""
        first = np.array(self.schedule.placement.first_copies)
        holders: IntArray = first[self.replica, self.stage] * self.num_stages + self.stage
        return holders

    @cached_property
    def update_size(self) -> IntArray:
        """The micro-batches of an update of every op's stage."""
        sizes: IntArray = np.array(self.schedule.update_sizes)[self.stage]
        return sizes

    @cached_property
    def cells(self) -> IntArray:
        """The cell of every op; a STEP's number is that of its update."""
        cells: IntArray = self.copies * self.schedule.num_micro_batches + self.microbatch
        return cells

    @cached_property
    def classes(self) -> IntArray:
        """The class of every op."""
        kind = self.kind
        if not self.is_plain:
            kind = kind + len(OpKind) * self.saved_mode_codes[self.cells]
        return np.add(kind * self.num_stages, self.stage)

    @cached_property
    def counts(self) -> IntArray:
        """The number of occurrences of each op in the programs, [kind, cell]."""
        key = self.kind * self.num_cells + self.cells
        counts = np.bincount(key, minlength=self.num_kinds * self.num_cells)
        by_kind: IntArray = counts.reshape(self.num_kinds, -1)
        return by_kind


def with_steps(schedule: Schedule, rank: int) -> tuple[Op, ...]:
    """A rank's ops; STEPs that its program does not list are appended, if there is one update."""
    program = schedule.programs[rank]
    if schedule.versions is not None:
        return program
    expected = _steps_of(schedule, rank)
    if OpKind.STEP in map(_kind_of, program):
        listed = {(op.stage, op.replica) for op in program if op.kind == OpKind.STEP}
        expected = tuple(pair for pair in expected if pair not in listed)
    return (*program, *(Op(OpKind.STEP, stage, 0, replica) for stage, replica in expected))


def _steps_of(schedule: Schedule, rank: int) -> tuple[tuple[int, int], ...]:
    """The (stage, replica) of which a rank runs the STEP: all that it holds, or of its homes one
    copy each."""
    held = schedule.placement.held
    if rank >= len(held):
        return ()
    flow = schedule.weights
    if flow is None:
        return held[rank]
    first = {stage: replica for stage, replica in reversed(held[rank])}
    return tuple(pair for pair in sorted(first.items()) if flow.is_home(pair[0], rank))
