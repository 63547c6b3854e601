"""A stage of a replica as plain integers: the durations, bytes and delays of its ops."""

from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.schedule.ops import Op

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP
SPLIT = (F, B, W)


class StageCopy(NamedTuple):
    """One stage of one replica on its rank.

    Attributes:
        first: its first micro-batch; `num_micro_batches` from there on pass it.
        delta_bytes: by kind, the lasting change of its rank's usage; BW's is B's and W's together.
        peak_above_bytes: by kind, the peak above the usage before the op, while it runs or right
            after it: boundary values that it reads and makes, and its workspace.
        above: the copy of the stage before, None at the end.
        below: the copy of the stage after, None at the end.
        down_us: transfer of an activation to `below`, 0 on one rank.
        up_us: from the end of B on `below` to the start of B: the transfer of the gradient, less
            `lead_us`; 0 on one rank.
        reduce_us: all-reduce of its gradients with those of its copies.
        beside_bytes: the least that boundary buffers and values kept for W hold, besides the values
            that F's keep, whenever most micro-batches are in flight; None if nothing is known.
        passing_us: the least time between two values that pass to `below`, or from it, where
            `down_us` and `up_us` are ways through omitted stages; None: they are transfers.
        again_us: the time of recomputation of each micro-batch, which occupies the rank at any time
            between F and B; only bounds know it.
        lead_us: the first part of B, which needs no gradient from `below`: recomputation.
    """

    rank: int
    stage: int
    replica: int
    first: int
    num_micro_batches: int
    duration_us: dict[OpKind, int]
    delta_bytes: dict[OpKind, int]
    peak_above_bytes: dict[OpKind, int]
    above: int | None
    below: int | None
    down_us: int
    up_us: int
    reduce_us: int
    beside_bytes: int | None = None
    passing_us: int | None = None
    again_us: int = 0
    lead_us: int = 0

    @property
    def work_us(self) -> int:
        """F + B + W of one micro-batch."""
        return sum(self.duration_us[kind] for kind in SPLIT)

    def total_us(self, kind: OpKind) -> int:
        """Return the duration of all ops of a kind."""
        return self.num_micro_batches * self.duration_us[kind]

    @property
    def down_apart_us(self) -> int:
        """The least time between two activations that arrive at `below`."""
        return self.down_us if self.passing_us is None else self.passing_us

    @property
    def up_apart_us(self) -> int:
        """The least time between two gradients that arrive from `below`."""
        return self.up_us + self.lead_us if self.passing_us is None else self.passing_us

    @property
    def last(self) -> int:
        """The number of the last op of each kind."""
        return self.num_micro_batches - 1

    @property
    def gains_by_fusion(self) -> bool:
        """True if BW is ever better than B with W right after it, in time or in memory."""
        return fusible(self) != self

    def op(self, kind: OpKind, k: int) -> Op:
        """The k-th op of a kind."""
        return Op(kind, self.stage, 0 if kind == STEP else self.first + k, self.replica)


def fusible(copy: StageCopy) -> StageCopy:
    """Return the copy with B and W as cheap as BW allows, see `relaxed_for_fusion`."""
    durations, peak_above = copy.duration_us, copy.peak_above_bytes
    backward_us = min(durations[B], durations[BW])
    weight_us = min(durations[W], durations[BW] - backward_us)
    # At W the level already has B's change in it; at BW it has not.
    fused_peak_above = peak_above[BW] - copy.delta_bytes[B]
    return copy._replace(
        duration_us={**durations, B: backward_us, W: weight_us},
        peak_above_bytes={
            **peak_above,
            B: min(peak_above[B], peak_above[BW]),
            W: min(peak_above[W], fused_peak_above),
        },
    )
