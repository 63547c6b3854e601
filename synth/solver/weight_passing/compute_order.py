"""The order of a rank's F, B, W and BW, and the moves by which the search changes it.

An op is a kind, a stage and a round: round g of rank r is micro-batch g · P + r. Micro-batches are
identical, so the F's of a stage are in the order of rounds, and so are its B's and BW's (the FIFO
lemma). Its W's and BW's are in that order too, because on a ring gradients accumulate in the order
of micro-batches.
"""

import random
from collections.abc import Sequence

from synth.op_kinds import ADDING, OpKind
from synth.schedule.ops import Op

ComputeOrder = tuple[Op, ...]

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW

_BACKWARD = (B, BW)


def may_swap(first: Op, second: Op) -> bool:
    """True if neighbours may be exchanged: neither reads a value that the other makes."""
    if first.stage == second.stage:
        return _is_independent(first, second)
    # F's and B's of a micro-batch are a chain, of which W's are not a part.
    return first.microbatch != second.microbatch or W in (first.kind, second.kind)


def _is_independent(first: Op, second: Op) -> bool:
    """True if two ops of a stage are of different micro-batches and of different kinds."""
    if first.microbatch == second.microbatch:
        return False
    return not any(
        first.kind in kinds and second.kind in kinds for kinds in ((F,), _BACKWARD, ADDING)
    )


def shifted(order: ComputeOrder, place: int, by: int) -> ComputeOrder | None:
    """Move the op at a place past up to |by| others, as far as it may; None if it stays."""
    ops, step, at = list(order), 1 if by > 0 else -1, place
    for _ in range(abs(by)):
        beside = at + step
        if not 0 <= beside < len(ops):
            break
        pair = (ops[at], ops[beside]) if step > 0 else (ops[beside], ops[at])
        if not may_swap(*pair):
            break
        ops[at], ops[beside] = ops[beside], ops[at]
        at = beside
    return None if at == place else tuple(ops)


def fused(order: ComputeOrder, backward: Op) -> ComputeOrder | None:
    """Fuse B and W of a stage and round at the place of B; None if W's would change their order."""
    weight = backward._replace(kind=W)
    if backward not in order or weight not in order:
        return None
    between = order[order.index(backward) + 1 : order.index(weight)]
    if any(op.stage == backward.stage and op.kind in ADDING for op in between):
        return None
    whole = backward._replace(kind=BW)
    return tuple(whole if op == backward else op for op in order if op != weight)


def split(order: ComputeOrder, whole: Op) -> ComputeOrder:
    """Split a BW into B and, right after it, W."""
    parts = (whole._replace(kind=B), whole._replace(kind=W))
    return tuple(part for op in order for part in (parts if op == whole else (op,)))


def all_split(order: Sequence[Op]) -> ComputeOrder:
    """Split every BW."""
    found = tuple(order)
    for op in order:
        if op.kind == BW:
            found = split(found, op)
    return found


def all_fused(order: Sequence[Op]) -> ComputeOrder:
    """Fuse every B with its W, wherever that W stands."""
    kept = (op for op in order if op.kind != W)
    return tuple(op._replace(kind=BW) if op.kind == B else op for op in kept)


def changed(order: ComputeOrder, rng: random.Random, farthest: int) -> ComputeOrder | None:
    """Make a random move: shift an op, or fuse or split a backward; None if it is impossible."""
    place = rng.randrange(len(order))
    op = order[place]
    if op.kind in _BACKWARD and rng.random() < 1 / 8:
        return split(order, op) if op.kind == BW else fused(order, op)
    return shifted(order, place, rng.choice((-1, 1)) * rng.randint(1, farthest))
