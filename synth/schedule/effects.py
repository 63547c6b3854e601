"""The meaning of compute ops: which values each reads, and which it makes.

This table is the whole of the data model. Lowering derives dependencies, transfers and lifetimes
from it and knows nothing else about op kinds; a new kind of op is an entry here.
"""

from synth.costs import Costs
from synth.kinds import OpKind
from synth.schedule.ops import Op, Value, ValueKind

ACT, GRAD, SAVED, SAVED_W, WGRAD = (
    ValueKind.ACT,
    ValueKind.GRAD,
    ValueKind.SAVED,
    ValueKind.SAVED_W,
    ValueKind.WGRAD,
)


class Effects:
    """What ops read and make, for given stages and number of micro-batches.

    An activation is also *read* by the later ops of a layer that holds on to it (autograd saved
    it): which those are, the costs say. Weights are read by every F, B and BW; in a schedule that
    flushes there is one version, there from the start, so it neither orders nor frees anything.
    """

    def __init__(self, costs: Costs, num_micro_batches: int) -> None:
        self._stages = costs.stages
        self._last = costs.num_stages - 1
        self._num_micro_batches = num_micro_batches

    def reads(self, op: Op) -> list[Value]:
        """The values that must be on the rank when the op starts."""
        kind, s, j, r = op
        if kind == OpKind.STEP:
            return [Value(WGRAD, s, k, r) for k in range(self._num_micro_batches)]
        stage = self._stages[s]
        values = []
        if s > 0 and _needed(kind, stage.input_until):
            values.append(Value(ACT, s - 1, j, r))
        if s < self._last and kind != OpKind.F:
            if _needed(kind, stage.output_until):
                values.append(Value(ACT, s, j, r))
            if _needed(kind, stage.gradient_until):
                values.append(Value(GRAD, s, j, r))
        if kind in (OpKind.B, OpKind.BW):
            values.append(Value(SAVED, s, j, r))
        elif kind == OpKind.W:
            values.append(Value(SAVED_W, s, j, r))
        return values

    def makes(self, op: Op) -> list[Value]:
        """The values that the op leaves on its rank."""
        kind, s, j, r = op
        if kind == OpKind.F:
            saved = Value(SAVED, s, j, r)
            return [saved, Value(ACT, s, j, r)] if s < self._last else [saved]
        values = [Value(GRAD, s - 1, j, r)] if kind in (OpKind.B, OpKind.BW) and s > 0 else []
        if kind == OpKind.B:
            values.append(Value(SAVED_W, s, j, r))
        elif kind in (OpKind.W, OpKind.BW):
            values.append(Value(WGRAD, s, j, r))
        return values

    def bytes_of(self, value: Value) -> int:
        """The size of a value; wgrad is part of the static bytes."""
        stage = self._stages[value.stage]
        if value.kind in (ACT, GRAD):
            return stage.output_bytes
        if value.kind == SAVED:
            return stage.saved_bytes
        return stage.saved_w_bytes if value.kind == SAVED_W else 0


def _needed(kind: OpKind, until: OpKind) -> bool:
    """Whether an op of this kind still needs a value that is held until op `until`."""
    if kind == OpKind.W:
        return until == OpKind.W
    return kind == OpKind.F or until != OpKind.F
