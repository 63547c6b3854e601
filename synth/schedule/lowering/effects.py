"""The meaning of ops: which values each reads, and which it makes.

This table is the whole of the data model. Lowering derives dependencies, transfers and lifetimes
from it and knows nothing else about op kinds; a new kind of op is an entry here. `Effects` tells it
of single ops; `EffectTable` is the same in numbers, for all ops at once.

What an op does may depend on what else its program lists of the same micro-batch and stage, its
`Fate`: F keeps nothing for B where an R follows, and B reads what came back where O sent it away.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from synth.costs import Costs, CostTable, IntArray, StageCosts
from synth.kinds import MEASURED, OpKind
from synth.schedule.arrays import FATES, Cell, Fate
from synth.schedule.ops import Op, Value, ValueKind

VALUE_KINDS = tuple(ValueKind)
ACT, GRAD, SAVED, SAVED_W, WGRAD, REPLAY, AGAIN, OUT, STORED, BACK = VALUE_KINDS

# Those that there are where every F keeps what its B reads, and keeps it on its rank.
_PLAIN_VALUES = 5

VALUE_CODES = {kind: code for code, kind in enumerate(VALUE_KINDS)}


class _Relative(NamedTuple):
    """A value of the op's own micro-batch and replica, `stage_offset` stages from the op's."""

    kind: ValueKind
    stage_offset: int = 0


_Rule = Callable[[tuple[StageCosts, ...], OpKind, int, Fate], list[_Relative]]


class Effects:
    """What ops read and make, for given stages, number of micro-batches and fates.

    An activation is also *read* by the later ops of a layer that holds on to it (autograd saved
    it): which those are, the costs say. Weights are read by every F, B and BW; in a schedule that
    flushes there is one version, there from the start, so it neither orders nor frees anything.
    """

    def __init__(
        self, costs: Costs, num_micro_batches: int, fates: Mapping[Cell, Fate] | None = None
    ) -> None:
        self._stages = costs.stages
        self._num_micro_batches = num_micro_batches
        self._fates = fates or {}

    def reads(self, op: Op) -> list[Value]:
        """The values that must be on the rank when the op starts."""
        kind, s, j, r = op
        if kind == OpKind.STEP:
            return [Value(WGRAD, s, k, r) for k in range(self._num_micro_batches)]
        found = _reads(self._stages, kind, s, self.fate(op))
        return [Value(k, s + offset, j, r) for k, offset in found]

    def makes(self, op: Op) -> list[Value]:
        """The values that the op leaves on its rank."""
        kind, s, j, r = op
        found = _makes(self._stages, kind, s, self.fate(op))
        return [Value(k, s + offset, j, r) for k, offset in found]

    def fate(self, op: Op) -> Fate:
        """Whether what the op's F saves is rebuilt or moved."""
        return self._fates.get(op[1:], FATES[0])

    def bytes_of(self, value: Value) -> int:
        """The size of a value; wgrad is part of the static bytes, stored is elsewhere."""
        return _bytes_of(self._stages[value.stage], value.kind)

    def rise_bytes(self, op: Op) -> int:
        """How far memory climbs above its level at the op's start while the op runs."""
        return _rise_bytes(self._stages[op.stage], op.kind, self.fate(op))


def _bytes_of(stage: StageCosts, kind: ValueKind) -> int:
    if kind in (ACT, GRAD, AGAIN):
        return stage.output_bytes
    if kind in (SAVED, OUT, BACK):
        return stage.saved_bytes
    return {SAVED_W: stage.saved_w_bytes, REPLAY: stage.replay_bytes}.get(kind, 0)


def _rise_bytes(stage: StageCosts, kind: OpKind, fate: Fate) -> int:
    return stage.light_rise if kind == OpKind.F and fate.rebuilt else stage.rise_bytes[kind]


def _reads(stages: tuple[StageCosts, ...], kind: OpKind, s: int, fate: Fate) -> list[_Relative]:
    """What an op reads, but for STEP, which reads the WGRAD of every micro-batch."""
    if kind in _MOVE_READS:
        return [_Relative(value) for value in _MOVE_READS[kind]]
    if kind == OpKind.STEP:
        return []
    stage, forward = stages[s], kind in (OpKind.F, OpKind.R)
    values = []
    if s > 0 and (forward or _needed(kind, stage.input_until)):
        values.append(_Relative(ACT, -1))
    if s < len(stages) - 1 and not forward:
        if _needed(kind, stage.output_until):
            values.append(_Relative(AGAIN if fate.rebuilt else ACT))
        if _needed(kind, stage.gradient_until):
            values.append(_Relative(GRAD))
    if kind in (OpKind.B, OpKind.BW):
        values.append(_Relative(BACK if fate.moved else SAVED))
    elif kind == OpKind.W:
        values.append(_Relative(SAVED_W))
    elif kind == OpKind.R:
        values.append(_Relative(REPLAY))
    return values


_MOVE_READS: Mapping[OpKind, tuple[ValueKind, ...]] = {
    OpKind.OFFLOAD: (SAVED,),
    OpKind.RELOAD: (STORED,),
    OpKind.KEEP: (),
    OpKind.GIVE: (OUT,),
}


def _makes(stages: tuple[StageCosts, ...], kind: OpKind, s: int, fate: Fate) -> list[_Relative]:
    """What an op makes."""
    inner = s < len(stages) - 1
    values = [_Relative(GRAD, -1)] if kind in (OpKind.B, OpKind.BW) and s > 0 else []
    match kind:
        case OpKind.F:
            values.append(_Relative(REPLAY if fate.rebuilt else SAVED))
            values += [_Relative(ACT)] if inner else []
        case OpKind.R:
            values.append(_Relative(SAVED))
            values += [_Relative(AGAIN)] if inner and stages[s].output_until != OpKind.F else []
        case OpKind.B:
            values.append(_Relative(SAVED_W))
        case OpKind.W | OpKind.BW:
            values.append(_Relative(WGRAD))
        case OpKind.OFFLOAD:
            values += [_Relative(OUT), _Relative(STORED)]
        case OpKind.GIVE:
            values.append(_Relative(BACK))
    return values


def _needed(kind: OpKind, until: OpKind) -> bool:
    """Whether B, BW or W still needs a value that is held until op `until`."""
    return until == OpKind.W if kind == OpKind.W else until != OpKind.F


class Pairs(NamedTuple):
    """Ops and values that belong together: node `node[i]` touches value `value[i]`, by node."""

    node: IntArray
    value: IntArray


@dataclass(frozen=True, eq=False)
class Touches:
    """For each class of op the values that it touches, as distances from its cell.

    Class c has `count[c]` of them, which stand in `distance` from `first[c]` on.
    """

    first: IntArray
    count: IntArray
    distance: IntArray

    def pairs(self, classes: IntArray, cells: IntArray) -> Pairs:
        """Every op with every value that it touches."""
        counts = self.count[classes]
        ends = counts.cumsum()
        node = np.repeat(np.arange(len(classes)), counts)
        entry = np.arange(len(node)) + (self.first[classes] - ends + counts)[node]
        return Pairs(node, self.distance[entry] + cells[node])


@dataclass(frozen=True, eq=False)
class EffectTable:
    """`Effects` and costs in numbers, by class of op and number of value.

    A value's number is its kind's, in the order of `VALUE_KINDS`, times the number of cells, plus
    its cell; `value_bytes` is by that number divided by the number of micro-batches. Where no
    op but F, B, W, BW and STEP occurs (`is_plain`) there are the classes and values of those alone.
    """

    num_cells: int
    num_values: int
    reads: Touches
    makes: Touches
    duration_us: IntArray
    rise_bytes: IntArray
    made_bytes: IntArray
    value_bytes: IntArray

    @staticmethod
    def of(
        costs: Costs, num_replicas: int, num_micro_batches: int, *, is_plain: bool
    ) -> "EffectTable":
        """The table for stages with so many copies.

        Raises:
            SynthError: a cost is too large to be added up exactly.
        """
        return _effect_table(costs.table(), num_replicas, num_micro_batches, is_plain)


class _Class(NamedTuple):
    """What costs and effects depend on."""

    fate: Fate
    kind: OpKind
    stage: int


def _classes(num_stages: int, is_plain: bool) -> list[_Class]:
    """All of them, in the order of their numbers; see `synth.schedule.arrays`."""
    fates, kinds = (FATES[:1], MEASURED) if is_plain else (FATES, tuple(OpKind))
    stages = range(num_stages)
    return [_Class(fate, kind, s) for fate in fates for kind in kinds for s in stages]


@lru_cache(maxsize=32)  # a search evaluates thousands of orders on the same costs
def _effect_table(
    table: CostTable, num_replicas: int, num_micro_batches: int, is_plain: bool
) -> EffectTable:
    stages, num_stages = table.stages, len(table.stages)
    num_cells = num_replicas * num_stages * num_micro_batches
    value_kinds = VALUE_KINDS[:_PLAIN_VALUES] if is_plain else VALUE_KINDS
    sizes = np.array([[_bytes_of(stage, kind) for stage in stages] for kind in value_kinds])
    classes = _classes(num_stages, is_plain)
    reads = _touches(table, classes, _reads, num_cells, num_micro_batches)
    _add_reads_of_step(reads, classes, num_cells, num_micro_batches)
    makes = _touches(table, classes, _makes, num_cells, num_micro_batches)
    return EffectTable(
        num_cells,
        len(value_kinds) * num_cells,
        Touches(*map(np.array, reads)),
        Touches(*map(np.array, makes)),
        np.array([stages[c.stage].duration_us[c.kind] for c in classes]),
        np.array([_rise_bytes(stages[c.stage], c.kind, c.fate) for c in classes]),
        np.array([_made_bytes(table, c) for c in classes]),
        np.repeat(sizes, num_replicas, axis=0).ravel(),
    )


class _Lists(NamedTuple):
    """The fields of `Touches` while they grow."""

    firsts: list[int]
    counts: list[int]
    distances: list[int]


def _touches(
    table: CostTable, classes: list[_Class], rule: _Rule, num_cells: int, num_micro_batches: int
) -> _Lists:
    lists = _Lists([], [], [])
    for fate, kind, stage in classes:
        touched = rule(table.stages, kind, stage, fate)
        lists.firsts.append(len(lists.distances))
        lists.counts.append(len(touched))
        lists.distances.extend(
            VALUE_CODES[value] * num_cells + offset * num_micro_batches for value, offset in touched
        )
    return lists


def _add_reads_of_step(
    lists: _Lists, classes: list[_Class], num_cells: int, num_micro_batches: int
) -> None:
    """STEP, whose cell is that of micro-batch 0, reads the WGRAD of every micro-batch."""
    for number, (_, kind, _) in enumerate(classes):
        if kind == OpKind.STEP:
            lists.firsts[number] = len(lists.distances)
            lists.counts[number] = num_micro_batches
    wgrad = VALUE_CODES[WGRAD] * num_cells
    lists.distances.extend(range(wgrad, wgrad + num_micro_batches))


def _made_bytes(table: CostTable, of: _Class) -> int:
    """The bytes that an op of a class leaves on its rank."""
    made = _makes(table.stages, of.kind, of.stage, of.fate)
    return sum(_bytes_of(table.stages[of.stage + offset], value) for value, offset in made)
