"""The best-known problem: equal stages, one per rank."""

from synth.op_kinds import OpKind
from synth.solver.instance.instance import SPLIT, Instance
from synth.solver.instance.stage_copy import StageCopy

F, B, W = SPLIT


def even(num_ranks: int, headroom: int | None, m: int, down_us: int = 2) -> Instance:
    """Equal stages: F 55, B 58, W 35; F +3, B -1, W -2 bytes."""
    durations = {F: 55, B: 58, W: 35, OpKind.BW: 93, OpKind.STEP: 0}
    deltas = {F: 3, B: -1, W: -2, OpKind.BW: -3, OpKind.STEP: 0}
    peaks_above = {F: 3, B: 0, W: 0, OpKind.BW: 0, OpKind.STEP: 0}
    last = num_ranks - 1
    copies = tuple(
        StageCopy(
            rank, rank, 0, 0, m, durations, deltas, peaks_above,
            rank - 1 if rank else None, rank + 1 if rank < last else None,
            down_us if rank < last else 0, down_us if rank < last else 0, 0,
        )
        for rank in range(num_ranks)
    )  # fmt: skip
    return Instance(copies, (headroom,) * num_ranks)
