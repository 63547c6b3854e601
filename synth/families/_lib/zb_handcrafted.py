"""The common part of ZB-H1 and ZB-H2 (Qi et al. 2023, arXiv 2401.10241, section 2)."""

from synth.families._lib.family import forwards
from synth.op_kinds import OpKind
from synth.schedule.ops import Op


def program(stage: int, warmup: int, delay: int, num_micro_batches: int) -> list[Op]:
    """One rank's ops: `warmup` forwards, then F and B alternate, with W's `delay` B's late.

    W j follows B j + delay, so that `delay` micro-batches wait for their W. The remaining W's come
    at the end.
    """
    m = num_micro_batches
    forward = forwards(stage, 0, m)
    ops = forward[:warmup]
    for j in range(m):
        ops.append(Op(OpKind.B, stage, j))
        if j >= delay:
            ops.append(Op(OpKind.W, stage, j - delay))
        ops += forward[warmup + j : warmup + j + 1]
    return ops + [Op(OpKind.W, stage, j) for j in range(max(0, m - delay), m)]
