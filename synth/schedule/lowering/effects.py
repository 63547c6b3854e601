"""The meaning of ops: the values that each reads, and those that it makes.

This table is the whole data model. Lowering derives dependencies, transfers and lifetimes from it
and knows nothing else about op kinds; a new kind of op is an entry here. `Effects` answers for
single ops; `EffectTable` (`effect_table`) holds the same as arrays, for all ops at once.

The effects of an op depend on the `SavedMode` of its micro-batch and stage. If an R follows, F
keeps nothing for B; if an OFFLOAD follows, B reads the copy that came back. Visits of weights and
sums of gradients depend on the order of a whole program; they are in `weight_visits`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import VISITS, OpKind
from synth.schedule.arrays import SAVED_MODES, Cell, SavedMode
from synth.schedule.lowering.stage_flow import OfStage, StageFlow
from synth.schedule.model import Placement
from synth.schedule.ops import Op, Value, ValueKind

VALUE_KINDS = tuple(ValueKind)
ACT, GRAD, SAVED, SAVED_W, WGRAD, REPLAY_INPUT, ACT_AGAIN, MOVED_OUT, PARKED, MOVED_BACK = (
    VALUE_KINDS[:10]
)
WEIGHTS, GRAD_SUM, GRAD_ACC = VALUE_KINDS[10:]

VALUE_CODES = {kind: code for code, kind in enumerate(VALUE_KINDS)}


class RelativeValue(NamedTuple):
    """A value of the op's own micro-batch and replica, `stage_offset` stages from the op's."""

    kind: ValueKind
    stage_offset: int = 0


class _Lifetimes(NamedTuple):
    """All of a stage's costs on which it depends what its ops read and make."""

    input_until: OpKind
    output_until: OpKind
    gradient_until: OpKind
    has_parts: bool

    @classmethod
    def of(cls, stage: StageCosts) -> "_Lifetimes":
        """Read them from the costs."""
        has_parts = stage.parts_bytes > 0
        return cls(stage.input_until, stage.output_until, stage.gradient_until, has_parts)


class EffectSetting(NamedTuple):
    """The lifetimes and the flow of all stages, which say what ops read and make."""

    lifetimes: tuple[_Lifetimes, ...]
    flow: StageFlow

    @classmethod
    def of(cls, stages: tuple[StageCosts, ...], barriers: int) -> "EffectSetting":
        """Read the lifetimes from the costs."""
        return cls(tuple(map(_Lifetimes.of, stages)), StageFlow(len(stages), barriers))


EffectRule = Callable[[EffectSetting, OpKind, int, SavedMode], list[RelativeValue]]


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
    read. `barriers` are those of a divided vocabulary (`StageFlow`). The `placement` is that of ops
    that are F, B, W, BW or STEP alone; without one, senders count all that they send.
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
        placement: Placement | None = None,
    ) -> None:
        self._stages = costs.stages
        self._setting = EffectSetting.of(costs.stages, barriers)
        self._visits = visits or VisitAccesses({}, {})
        self._one_update = one_update
        self._own_bytes = None if placement is None else own_value_bytes(costs.stages, placement)
        self._num_micro_batches = num_micro_batches
        self._saved_modes = saved_modes or {}

    def reads(self, op: Op) -> list[Value]:
        """The values that must be on the rank when the op starts."""
        kind, s, j, r = op
        visits = self._visits.reads.get(op, [])
        if kind == OpKind.STEP:
            batch = range(self._num_micro_batches if self._one_update else 0)
            return [*(Value(WGRAD, s, k, r) for k in batch), *visits]
        found = reads_of(self._setting, kind, s, self.saved_mode(op))
        return [*(Value(k, s + offset, j, r) for k, offset in found), *visits]

    def makes(self, op: Op) -> list[Value]:
        """The values that the op leaves on its rank."""
        kind, s, j, r = op
        found = makes_of(self._setting, kind, s, self.saved_mode(op))
        made = [Value(k, s + offset, j, r) for k, offset in found]
        return made + self._visits.makes.get(op, [])

    def saved_mode(self, op: Op) -> SavedMode:
        """The saved mode of the op's stage and micro-batch."""
        return self._saved_modes.get(op[1:], SAVED_MODES[0])

    def bytes_of(self, value: Value) -> int:
        """The size of a value; wgrad is part of the static bytes, a parked copy is elsewhere."""
        return stage_bytes(self._stages[value.stage], value.kind)

    def own_bytes_of(self, value: Value) -> int:
        """The size of a value on the rank that makes it; see `own_value_bytes`."""
        own = (self._own_bytes or {}).get(value.kind)
        copy = value.replica * len(self._stages) + value.stage
        return self.bytes_of(value) if own is None else own[copy]

    def rise_bytes(self, op: Op) -> int:
        """The rise of memory above its level at the op's start, while the op runs."""
        return op_rise_bytes(self._stages[op.stage], op.kind, self.saved_mode(op))


def stage_bytes(stage: StageCosts, kind: ValueKind) -> int:
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


def own_value_bytes(
    stages: Sequence[StageCosts], placement: Placement
) -> dict[ValueKind, list[int]]:
    """Return by stage copy what activations and gradients take on the ranks that make them.

    The sender holds other parts of its output anyway, until its B or longer. So they are there for
    the next stage, too, if that one is on the same rank and needs its input until B at most.
    """
    found: dict[ValueKind, list[int]] = {ACT: [], GRAD: []}
    for ranks in placement.ranks:
        for s, stage in enumerate(stages):
            following = stages[s + 1] if s + 1 < len(stages) else stage
            is_whole = ranks[s : s + 2] == (ranks[s],) * 2 and following.input_until == OpKind.W
            found[ACT].append(stage.output_bytes if is_whole else stage.sent_output_bytes)
            found[GRAD].append(max(0, stage.returned_bytes - following.shared_gradient_bytes))
    return found


def op_rise_bytes(stage: StageCosts, kind: OpKind, saved_mode: SavedMode) -> int:
    return stage.light_rise if kind == OpKind.F and saved_mode.rebuilt else stage.rise_bytes[kind]


def reads_of(
    setting: EffectSetting, kind: OpKind, s: int, saved_mode: SavedMode
) -> list[RelativeValue]:
    """The reads of an op, except for STEP, which reads the WGRAD of every micro-batch."""
    if kind in _MOVE_READS:
        return [RelativeValue(value) for value in _MOVE_READS[kind]]
    if kind == OpKind.STEP or kind in VISITS:
        return []
    (lifetimes, flow), forward = setting, kind in (OpKind.F, OpKind.R)
    stage, values = lifetimes[s], []
    # A move leaves what is a part of the input or the output, so B still has both whole.
    is_whole = saved_mode.moved and stage.has_parts and kind in (OpKind.B, OpKind.BW)
    if forward or is_whole or _needed(kind, stage.input_until):
        values += _relative(flow.inputs(s), s)
    if not forward:
        if flow.has_output(s) and (is_whole or _needed(kind, stage.output_until)):
            values.append(RelativeValue(ACT_AGAIN if saved_mode.rebuilt else ACT))
        if _needed(kind, stage.gradient_until):
            values += _relative(flow.gradients(s), s)
    if kind in (OpKind.B, OpKind.BW):
        values.append(RelativeValue(MOVED_BACK if saved_mode.moved else SAVED))
    elif kind == OpKind.W:
        values.append(RelativeValue(SAVED_W))
    elif kind == OpKind.R:
        values.append(RelativeValue(REPLAY_INPUT))
    return values


_MOVE_READS: Mapping[OpKind, tuple[ValueKind, ...]] = {
    OpKind.OFFLOAD: (SAVED,),
    OpKind.RELOAD: (PARKED,),
    OpKind.HOST_FOR: (),
    OpKind.RETURN: (MOVED_OUT,),
}


def _relative(values: list[OfStage], s: int) -> list[RelativeValue]:
    """Values of stages, as seen from stage s."""
    return [RelativeValue(kind, stage - s) for kind, stage in values]


def makes_of(
    setting: EffectSetting, kind: OpKind, s: int, saved_mode: SavedMode
) -> list[RelativeValue]:
    lifetimes, flow = setting
    is_backward = kind in (OpKind.B, OpKind.BW)
    values = _relative(flow.made_backward(s), s) if is_backward else []
    match kind:
        case OpKind.F:
            values.append(RelativeValue(REPLAY_INPUT if saved_mode.rebuilt else SAVED))
            values += _relative(flow.made_forward(s), s)
        case OpKind.R:
            values.append(RelativeValue(SAVED))
            is_whole = saved_mode.moved and lifetimes[s].has_parts
            is_held = flow.has_output(s) and (is_whole or lifetimes[s].output_until != OpKind.F)
            values += [RelativeValue(ACT_AGAIN)] if is_held else []
        case OpKind.B:
            values.append(RelativeValue(SAVED_W))
        case OpKind.W | OpKind.BW:
            values.append(RelativeValue(WGRAD))
        case OpKind.OFFLOAD:
            values += [RelativeValue(MOVED_OUT), RelativeValue(PARKED)]
        case OpKind.RETURN:
            values.append(RelativeValue(MOVED_BACK))
    return values


def _needed(kind: OpKind, until: OpKind) -> bool:
    """True if B, BW or W still needs a value that is held until op `until`."""
    return until == OpKind.W if kind == OpKind.W else until != OpKind.F
