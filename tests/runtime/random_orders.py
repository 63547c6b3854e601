"""Random valid schedules for tests of the executor."""

import random

from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op


def random_order(num_ranks: int, num_micro_batches: int, seed: int) -> Schedule:
    """A random valid schedule: ops are drawn among those whose inputs exist; B, W or BW at random.

    Ops are drawn one by one over all ranks, so that some execution order exists. The verifier
    decides whether it also survives the blocking of the channels.
    """
    draw = random.Random(seed)
    programs: list[list[Op]] = [[] for _ in range(num_ranks)]
    done: set[Op] = set()
    cells = [(s, j) for s in range(num_ranks) for j in range(num_micro_batches)]
    fused = {cell: draw.random() < 0.3 for cell in cells}
    next_index = {(kind, s): 0 for kind in "FBW" for s in range(num_ranks)}

    def ready(kind: str, s: int) -> Op | None:
        j = next_index[kind, s]
        if j == num_micro_batches:
            return None
        both = fused[s, j]
        backward = {s2: OpKind.BW if fused[s2, j] else OpKind.B for s2 in range(num_ranks)}
        if kind == "F":
            needs = [Op(OpKind.F, s - 1, j)] if s else []
            return Op(OpKind.F, s, j) if done.issuperset(needs) else None
        if kind == "B":
            needs = [Op(OpKind.F, s, j)]
            needs += [Op(backward[s + 1], s + 1, j)] if s + 1 < num_ranks else []
            return Op(backward[s], s, j) if done.issuperset(needs) else None
        if both:
            next_index["W", s] += 1
            return ready("W", s)
        return Op(OpKind.W, s, j) if Op(OpKind.B, s, j) in done else None

    while True:
        options = [
            (kind, op)
            for kind in "FBW"
            for s in range(num_ranks)
            if (op := ready(kind, s)) is not None
        ]
        if not options:
            break
        kind, op = draw.choice(options)
        done.add(op)
        next_index[kind, op.stage] += 1
        programs[op.stage].append(op)
    buffering = Buffering(draw.choice([0, 1, 2]), draw.choice([1, 2, 4]))
    listed = tuple(map(tuple, programs))
    placement = Placement.linear(num_ranks)
    return Schedule(placement, num_micro_batches, listed, f"random-{seed}", buffering)
