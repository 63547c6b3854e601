"""Local moves on the programs of a ring: each rank places its ops and visits for itself.

The moves of `compute_order` change an order, in which all ranks place visits by one rule. In a
small problem a visit of one rank that begins sooner or later, or one more of them, may gain.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.solver.tuning import WEIGHT_PASSING

B, W, BW, UNSHARD = OpKind.B, OpKind.W, OpKind.BW, OpKind.UNSHARD


def moved(schedule: Schedule, rng: random.Random) -> Schedule:
    """Return a schedule with a random move on one rank, or on two; it may be invalid."""
    programs = [*schedule.programs]
    for _ in range(rng.choice(WEIGHT_PASSING.ring_moves)):
        rank = rng.randrange(len(programs))
        ops = [*programs[rank]]
        match rng.choices(("shift", "drop", "add", "cut"), WEIGHT_PASSING.ring_move_weights)[0]:
            case "shift":
                op = ops.pop(rng.randrange(len(ops)))
                ops.insert(rng.randint(0, len(ops)), op)
            case "drop":
                visits = [op for op in ops if op.kind == UNSHARD]
                if visits:
                    ops.remove(rng.choice(visits))
            case "add":
                stage = rng.randrange(schedule.placement.num_stages)
                ops.insert(rng.randint(0, len(ops)), Op(UNSHARD, stage, 0, rank))
            case _:
                ops = _split_or_fused(ops, rng.choice([op for op in ops if op.kind in (B, BW)]))
        programs[rank] = _numbered(ops)
    return replace(schedule, programs=tuple(programs))


def _split_or_fused(ops: Sequence[Op], backward: Op) -> list[Op]:
    """Split a BW into B and W, or fuse a B with its W at the place of B."""
    if backward.kind == BW:
        parts = [backward._replace(kind=B), backward._replace(kind=W)]
        return [part for op in ops for part in (parts if op == backward else [op])]
    weight, whole = backward._replace(kind=W), backward._replace(kind=BW)
    return [whole if op == backward else op for op in ops if op != weight]


def _numbered(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Number the visits of each stage in their order."""
    counts: defaultdict[int, int] = defaultdict(int)
    found = []
    for op in ops:
        if op.kind == UNSHARD:
            found.append(op._replace(microbatch=counts[op.stage]))
            counts[op.stage] += 1
        else:
            found.append(op)
    return tuple(found)
