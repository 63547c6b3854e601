"""Memory within the backward of a stage: what the op of each of its layers adds and frees.

Between two layers of a stage lie an activation and its gradient. The backward runs last to first:

    layer i    ── activation ──►    layer i + 1
               ◄─── gradient ───

B (or BW) of layer i + 1 makes the gradient, and that of layer i frees it unless W needs it. The
activation is freed by the last op that has saved it: one of layer i if that saves its output as
long, else one of layer i + 1, which saves its input.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile

BACKWARDS = (OpKind.B, OpKind.W, OpKind.BW)


def own_change(layer: LayerProfile, kind: OpKind) -> int:
    """Return the bytes that B, W or BW of a layer adds, boundaries aside; negative: it frees."""
    if kind == OpKind.W:
        return -layer.saved_w_bytes
    return (layer.saved_w_bytes if kind == OpKind.B else 0) - layer.saved_bytes


@dataclass(frozen=True, slots=True)
class LayerBoundary:
    """The activation between two layers of a stage, and its gradient, in bytes.

    Attributes:
        saved_bytes: what is held of them after F.
        saved_w_bytes: what is held of them after B.
        by_next: what an op of the later layer, which runs first, adds; negative: it frees.
        by_previous: the same of the earlier layer.
    """

    saved_bytes: int
    saved_w_bytes: int
    by_next: Mapping[OpKind, int]
    by_previous: Mapping[OpKind, int]

    @classmethod
    def between(cls, layer: LayerProfile, following: LayerProfile) -> Self:
        """Return the boundary between a layer and the one that takes its output."""
        activation, gradient = layer.output_bytes, layer.returned_bytes
        saved_by = layer.output_until, following.input_until
        until = max(saved_by, key=lambda kind: kind.rank_in_chain)
        is_waiting = layer.gradient_until == OpKind.W
        by_next = {OpKind.B: gradient, OpKind.BW: gradient, OpKind.W: 0}
        by_previous = {OpKind.B: 0, OpKind.BW: -gradient, OpKind.W: 0}
        by_previous[OpKind.W if is_waiting else OpKind.B] -= gradient
        if until != OpKind.F:
            last = by_previous if layer.output_until == until else by_next
            last[until] -= activation
            last = by_previous if layer.output_until != OpKind.F else by_next
            last[OpKind.BW] -= activation
        return cls(
            saved_bytes=activation if until != OpKind.F else 0,
            saved_w_bytes=(activation if until == OpKind.W else 0) + gradient * is_waiting,
            by_next=by_next,
            by_previous=by_previous,
        )
