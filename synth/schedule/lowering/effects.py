"""The meaning of ops: the values that each reads, and those that it makes.

This table is the whole data model. Lowering derives dependencies, transfers and lifetimes from it
and knows nothing else about op kinds; a new kind of op is an entry here. `Effects` answers for
single ops; `EffectTable` holds the same as arrays, for all ops at once.

The effects of an op depend on the `SavedMode` of its micro-batch and stage. If an R follows, F
keeps nothing for B; if an OFFLOAD follows, B reads the copy that came back. Visits of weights and
sums of gradients depend on the order of a whole program; they are in `weight_visits`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from synth.costs.costs import Costs, CostTable, IntArray
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import MEASURED, VISITS, OpKind
from synth.schedule.arrays import SAVED_MODES, Cell, SavedMode
from synth.schedule.lowering.stage_flow import OfStage, StageFlow
from synth.schedule.ops import Op, Value, ValueKind

VALUE_KINDS = tuple(ValueKind)
ACT, GRAD, SAVED, SAVED_W, WGRAD, REPLAY_INPUT, ACT_AGAIN, MOVED_OUT, PARKED, MOVED_BACK = (
    VALUE_KINDS[:10]
)
WEIGHTS, GRAD_SUM, GRAD_ACC = VALUE_KINDS[10:]

# The first value kinds, which suffice if saved activations are neither rebuilt nor moved.
_PLAIN_VALUES = 5

VALUE_CODES = {kind: code for code, kind in enumerate(VALUE_KINDS)}


class _Relative(NamedTuple):
    """A value of the op's own micro-batch and replica, `stage_offset` stages from the op's."""

    kind: ValueKind
    stage_offset: int = 0


class _Lifetimes(NamedTuple):
    """All of a stage's costs on which it depends what its ops read and make."""

    input_until: OpKind
    output_until: OpKind
    gradient_until: OpKind

    @classmethod
    def of(cls, stage: StageCosts) -> "_Lifetimes":
        """Read them from the costs."""
        return cls(stage.input_until, stage.output_until, stage.gradient_until)


class _Setting(NamedTuple):
    """The lifetimes and the flow of all stages, which say what ops read and make."""

    lifetimes: tuple[_Lifetimes, ...]
    flow: StageFlow

    @classmethod
    def of(cls, stages: tuple[StageCosts, ...], barriers: int) -> "_Setting":
        """Read the lifetimes from the costs."""
        return cls(tuple(map(_Lifetimes.of, stages)), StageFlow(len(stages), barriers))


_Rule = Callable[[_Setting, OpKind, int, SavedMode], list[_Relative]]


class VisitAccesses(NamedTuple):
    """The additional values that ops read and make with weight passing or versions."""

    reads: Mapping[Op, list[Value]]
    makes: Mapping[Op, list[Value]]


class Effects:
    """The reads and writes of ops, for given stages, number of micro-batches and saved modes.

    An activation is also *read* by the later ops of a layer that holds it (autograd saved it); the
    costs say which ops these are. Weights are read by every F, B, BW and R. Where they stay with
    their stage they neither order nor free anything; `visits` has the accesses where they are
    passed or have versions. If there is not `one_update`, it also has the gradients that STEPs
    read. `barriers` are those of a divided vocabulary (`StageFlow`).
    """

    def __init__(
        self,
        costs: Costs,
        num_micro_batches: int,
        saved_modes: Mapping[Cell, SavedMode] | None = None,
        visits: VisitAccesses | None = None,
        *,
        one_update: bool = True,
        barriers: int = 0,
    ) -> None:
        self._stages = costs.stages
        self._setting = _Setting.of(costs.stages, barriers)
        self._visits = visits or VisitAccesses({}, {})
        self._one_update = one_update
        self._num_micro_batches = num_micro_batches
        self._saved_modes = saved_modes or {}

    def reads(self, op: Op) -> list[Value]:
        """The values that must be on the rank when the op starts."""
        kind, s, j, r = op
        visits = self._visits.reads.get(op, [])
        if kind == OpKind.STEP:
            batch = range(self._num_micro_batches if self._one_update else 0)
            return [*(Value(WGRAD, s, k, r) for k in batch), *visits]
        found = _reads(self._setting, kind, s, self.saved_mode(op))
        return [*(Value(k, s + offset, j, r) for k, offset in found), *visits]

    def makes(self, op: Op) -> list[Value]:
        """The values that the op leaves on its rank."""
        kind, s, j, r = op
        found = _makes(self._setting, kind, s, self.saved_mode(op))
        made = [Value(k, s + offset, j, r) for k, offset in found]
        return made + self._visits.makes.get(op, [])

    def saved_mode(self, op: Op) -> SavedMode:
        """The saved mode of the op's stage and micro-batch."""
        return self._saved_modes.get(op[1:], SAVED_MODES[0])

    def bytes_of(self, value: Value) -> int:
        """The size of a value; wgrad is part of the static bytes, a parked copy is elsewhere."""
        return _bytes_of(self._stages[value.stage], value.kind)

    def rise_bytes(self, op: Op) -> int:
        """The rise of memory above its level at the op's start, while the op runs."""
        return _rise_bytes(self._stages[op.stage], op.kind, self.saved_mode(op))


def _bytes_of(stage: StageCosts, kind: ValueKind) -> int:
    if kind in (ACT, ACT_AGAIN):
        return stage.output_bytes
    if kind == GRAD:
        return stage.returned_bytes
    if kind in (SAVED, MOVED_OUT, MOVED_BACK):
        return stage.saved_bytes
    if kind in (GRAD_SUM, GRAD_ACC):
        return stage.gradient_bytes
    others = {
        SAVED_W: stage.saved_w_bytes,
        REPLAY_INPUT: stage.replay_bytes,
        WEIGHTS: stage.parameter_bytes,
    }
    return others.get(kind, 0)


def _rise_bytes(stage: StageCosts, kind: OpKind, saved_mode: SavedMode) -> int:
    return stage.light_rise if kind == OpKind.F and saved_mode.rebuilt else stage.rise_bytes[kind]


def _reads(setting: _Setting, kind: OpKind, s: int, saved_mode: SavedMode) -> list[_Relative]:
    """The reads of an op, except for STEP, which reads the WGRAD of every micro-batch."""
    if kind in _MOVE_READS:
        return [_Relative(value) for value in _MOVE_READS[kind]]
    if kind == OpKind.STEP or kind in VISITS:
        return []
    (lifetimes, flow), forward = setting, kind in (OpKind.F, OpKind.R)
    stage, values = lifetimes[s], []
    if forward or _needed(kind, stage.input_until):
        values += _relative(flow.inputs(s), s)
    if not forward:
        if flow.has_output(s) and _needed(kind, stage.output_until):
            values.append(_Relative(ACT_AGAIN if saved_mode.rebuilt else ACT))
        if _needed(kind, stage.gradient_until):
            values += _relative(flow.gradients(s), s)
    if kind in (OpKind.B, OpKind.BW):
        values.append(_Relative(MOVED_BACK if saved_mode.moved else SAVED))
    elif kind == OpKind.W:
        values.append(_Relative(SAVED_W))
    elif kind == OpKind.R:
        values.append(_Relative(REPLAY_INPUT))
    return values


_MOVE_READS: Mapping[OpKind, tuple[ValueKind, ...]] = {
    OpKind.OFFLOAD: (SAVED,),
    OpKind.RELOAD: (PARKED,),
    OpKind.HOST_FOR: (),
    OpKind.RETURN: (MOVED_OUT,),
}


def _relative(values: list[OfStage], s: int) -> list[_Relative]:
    """Values of stages, as seen from stage s."""
    return [_Relative(kind, stage - s) for kind, stage in values]


def _makes(setting: _Setting, kind: OpKind, s: int, saved_mode: SavedMode) -> list[_Relative]:
    """The values that an op makes."""
    lifetimes, flow = setting
    is_backward = kind in (OpKind.B, OpKind.BW)
    values = _relative(flow.made_backward(s), s) if is_backward else []
    match kind:
        case OpKind.F:
            values.append(_Relative(REPLAY_INPUT if saved_mode.rebuilt else SAVED))
            values += _relative(flow.made_forward(s), s)
        case OpKind.R:
            values.append(_Relative(SAVED))
            is_held = flow.has_output(s) and lifetimes[s].output_until != OpKind.F
            values += [_Relative(ACT_AGAIN)] if is_held else []
        case OpKind.B:
            values.append(_Relative(SAVED_W))
        case OpKind.W | OpKind.BW:
            values.append(_Relative(WGRAD))
        case OpKind.OFFLOAD:
            values += [_Relative(MOVED_OUT), _Relative(PARKED)]
        case OpKind.RETURN:
            values.append(_Relative(MOVED_BACK))
    return values


def _needed(kind: OpKind, until: OpKind) -> bool:
    """True if B, BW or W still needs a value that is held until op `until`."""
    return until == OpKind.W if kind == OpKind.W else until != OpKind.F


class Pairs(NamedTuple):
    """Accesses, ordered by node: node `node[i]` accesses value `value[i]`."""

    node: IntArray
    value: IntArray

    def joined(self, other: "Pairs") -> "Pairs":
        """Append accesses of other values."""
        return Pairs(*(np.concatenate(fields) for fields in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class AccessTable:
    """The values that each class of op accesses, as distances from its cell.

    Class c has `count[c]` of them, which stand in `distance` from `first[c]` on.
    """

    first: IntArray
    count: IntArray
    distance: IntArray

    def pairs(self, classes: IntArray, cells: IntArray) -> Pairs:
        """Every op with every value that it accesses."""
        counts = self.count[classes]
        ends = counts.cumsum()
        node = np.repeat(np.arange(len(classes)), counts)
        entry = np.arange(len(node)) + (self.first[classes] - ends + counts)[node]
        return Pairs(node, self.distance[entry] + cells[node])


@dataclass(frozen=True, eq=False)
class EffectTable:
    """`Effects` and costs as arrays, by class of op and number of value.

    A value's number is the index of its kind in `VALUE_KINDS` times the number of cells, plus its
    cell. The index into `value_bytes` is that number divided by the number of micro-batches. If
    all ops are F, B, W, BW or STEP (`is_plain`), there are only their classes and values.
    """

    num_cells: int
    num_values: int
    reads: AccessTable
    makes: AccessTable
    duration_us: IntArray
    rise_bytes: IntArray
    made_bytes: IntArray
    value_bytes: IntArray

    @staticmethod
    def of(
        costs: Costs,
        num_replicas: int,
        num_micro_batches: int,
        *,
        is_plain: bool,
        one_update: bool = True,
        barriers: int = 0,
    ) -> "EffectTable":
        """Make the table for stages with `num_replicas` copies.

        If there is not `one_update`, it lacks the reads of STEPs. `barriers` are those of a divided
        vocabulary.

        Raises:
            SynthError: a cost is too large to be added up exactly.
        """
        return _effect_table(
            costs.table(),
            num_replicas,
            num_micro_batches,
            is_plain=is_plain,
            one_update=one_update,
            barriers=barriers,
        )


class _Class(NamedTuple):
    """The properties of an op on which its costs and effects depend."""

    saved_mode: SavedMode
    kind: OpKind
    stage: int


def _classes(num_stages: int, is_plain: bool) -> list[_Class]:
    """All classes, in the order of their numbers; see `synth.schedule.arrays`."""
    saved_modes, kinds = (SAVED_MODES[:1], MEASURED) if is_plain else (SAVED_MODES, tuple(OpKind))
    stages = range(num_stages)
    return [
        _Class(saved_mode, kind, s) for saved_mode in saved_modes for kind in kinds for s in stages
    ]


@lru_cache(maxsize=32)  # a search evaluates thousands of orders on the same costs
def _effect_table(
    table: CostTable,
    num_replicas: int,
    num_micro_batches: int,
    *,
    is_plain: bool,
    one_update: bool,
    barriers: int,
) -> EffectTable:
    stages, num_stages = table.stages, len(table.stages)
    num_cells = num_replicas * num_stages * num_micro_batches
    value_kinds = VALUE_KINDS[:_PLAIN_VALUES] if is_plain else VALUE_KINDS
    sizes = np.array([[_bytes_of(stage, kind) for stage in stages] for kind in value_kinds])
    value_bytes = np.repeat(sizes, num_replicas, axis=0).ravel()
    classes = _classes(num_stages, is_plain)
    reads, makes = _accesses(
        _Setting.of(stages, barriers),
        num_replicas,
        num_micro_batches,
        is_plain=is_plain,
        one_update=one_update,
    )
    return EffectTable(
        num_cells,
        len(value_kinds) * num_cells,
        reads,
        makes,
        np.array([stages[c.stage].duration_us[c.kind] for c in classes]),
        np.array([_rise_bytes(stages[c.stage], c.kind, c.saved_mode) for c in classes]),
        _made_bytes(makes, value_bytes, num_stages, num_micro_batches),
        value_bytes,
    )


@lru_cache(maxsize=32)  # the same for all partitions of equal layers
def _accesses(
    setting: _Setting,
    num_replicas: int,
    num_micro_batches: int,
    *,
    is_plain: bool,
    one_update: bool,
) -> tuple[AccessTable, AccessTable]:
    """The values that each class of op reads, and those that it makes."""
    num_stages = setting.flow.num_stages
    num_cells = num_replicas * num_stages * num_micro_batches
    classes = _classes(num_stages, is_plain)
    reads = _access_lists(setting, classes, _reads, num_cells, num_micro_batches)
    if one_update:
        _add_reads_of_step(reads, classes, num_cells, num_micro_batches)
    makes = _access_lists(setting, classes, _makes, num_cells, num_micro_batches)
    return AccessTable(*map(np.array, reads)), AccessTable(*map(np.array, makes))


class _AccessLists(NamedTuple):
    """The fields of `AccessTable` while they grow."""

    firsts: list[int]
    counts: list[int]
    distances: list[int]


def _access_lists(
    setting: _Setting,
    classes: list[_Class],
    rule: _Rule,
    num_cells: int,
    num_micro_batches: int,
) -> _AccessLists:
    lists = _AccessLists([], [], [])
    for saved_mode, kind, stage in classes:
        accessed = rule(setting, kind, stage, saved_mode)
        lists.firsts.append(len(lists.distances))
        lists.counts.append(len(accessed))
        lists.distances.extend(
            VALUE_CODES[value] * num_cells + offset * num_micro_batches
            for value, offset in accessed
        )
    return lists


def _add_reads_of_step(
    lists: _AccessLists, classes: list[_Class], num_cells: int, num_micro_batches: int
) -> None:
    """STEP, whose cell is that of micro-batch 0, reads the WGRAD of every micro-batch."""
    for number, (_, kind, _) in enumerate(classes):
        if kind == OpKind.STEP:
            lists.firsts[number] = len(lists.distances)
            lists.counts[number] = num_micro_batches
    wgrad = VALUE_CODES[WGRAD] * num_cells
    lists.distances.extend(range(wgrad, wgrad + num_micro_batches))


def _made_bytes(
    makes: AccessTable, value_bytes: IntArray, num_stages: int, num_micro_batches: int
) -> IntArray:
    """The bytes of the values that an op of each class makes."""
    made = np.zeros(len(makes.count), np.int64)
    of_class = np.repeat(np.arange(len(made)), makes.count)
    places = makes.distance // num_micro_batches + of_class % num_stages
    np.add.at(made, of_class, value_bytes[places])
    return made
