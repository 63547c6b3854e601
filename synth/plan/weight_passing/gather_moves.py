"""Moves of UNSHARDs and REDUCE_GRADs in a rank's program, one at a time.

    shift    a collective starts some ops earlier or later
    drop     a visit goes on with the one before it; or two sums of gradients are reduced as one
    split    a stage is gathered once more, or its gradient is reduced once more

Any valid places are reached from any others by these moves. Numbers of visits and RESHARDs are
left out until `numbered` adds them.
"""

import random
from collections import defaultdict
from collections.abc import Sequence

from synth.op_kinds import ADDING, READING, OpKind
from synth.plan.tuning import SHARDED_PIPELINES
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Sharded

Program = tuple[Op, ...]

_COLLECTIVE = (OpKind.UNSHARD, OpKind.REDUCE_GRAD)


def unnumbered(program: Sequence[Op]) -> Program:
    """Leave out RESHARDs and the numbers of collectives."""
    return tuple(
        op._replace(microbatch=0) if op.kind in _COLLECTIVE else op
        for op in program
        if op.kind != OpKind.RESHARD
    )


def numbered(program: Sequence[Op], sharded: Sharded) -> Program:
    """Number the collectives of each stage, and free sharded weights after their last reader."""
    counts: defaultdict[tuple[OpKind, int], int] = defaultdict(int)
    last_reads = _last_reads(program) if sharded == Sharded.WEIGHTS else set()
    found: list[Op] = []
    for place, op in enumerate(program):
        if op.kind in _COLLECTIVE:
            found.append(op._replace(microbatch=counts[op.kind, op.stage]))
            counts[op.kind, op.stage] += 1
        else:
            found.append(op)
        if place in last_reads:
            found.append(Op(OpKind.RESHARD, op.stage, counts[OpKind.UNSHARD, op.stage] - 1))
    return tuple(found)


def _last_reads(program: Sequence[Op]) -> set[int]:
    """The places of the last readers of all visits."""
    found: set[int] = set()
    last: dict[int, int] = {}
    for place, op in enumerate(program):
        if op.kind == OpKind.UNSHARD and op.stage in last:
            found.add(last.pop(op.stage))
        elif op.kind in READING:
            last[op.stage] = place
    return found | set(last.values())


def moved(program: Program, sharded: Sharded, rng: random.Random) -> Program | None:
    """Make one random move.

    Args:
        program: a rank's program without RESHARDs, whose collectives have no numbers.

    Returns:
        None: the move is impossible.
    """
    ops = list(program)
    places = [place for place, op in enumerate(ops) if op.kind in _COLLECTIVE]
    choice = rng.random()
    if choice < SHARDED_PIPELINES.shifted_share:
        place = rng.choice(places)
        collective = ops.pop(place)
        to = place + rng.choice((-1, 1)) * rng.randint(1, SHARDED_PIPELINES.farthest)
        ops.insert(min(max(to, 0), len(ops)), collective)
    elif choice < SHARDED_PIPELINES.shifted_share + SHARDED_PIPELINES.dropped_share:
        del ops[rng.choice(places)]
    else:
        kind, beside = rng.choice(((OpKind.UNSHARD, READING), (OpKind.REDUCE_GRAD, ADDING)))
        place = rng.choice([place for place, op in enumerate(ops) if op.kind in beside])
        ops.insert(place + (kind == OpKind.REDUCE_GRAD), Op(kind, ops[place].stage))
    return tuple(ops) if tuple(ops) != program and is_valid(ops, sharded) else None


def is_valid(program: Sequence[Op], sharded: Sharded) -> bool:
    """True if all weights are there when they are read, and all gradients are reduced."""
    unread: set[int] = set()
    gathered: set[int] = set()
    added: set[int] = set()
    reduced: set[int] = set()
    for op in program:
        if op.kind == OpKind.UNSHARD:
            if op.stage in unread or (op.stage in gathered and sharded != Sharded.WEIGHTS):
                return False
            unread.add(op.stage)
            gathered.add(op.stage)
        elif op.kind in READING:
            if op.stage not in gathered:
                return False
            unread.discard(op.stage)
        elif op.kind == OpKind.REDUCE_GRAD:
            if op.stage not in added:
                return False
            added.remove(op.stage)
            reduced.add(op.stage)
        elif op.kind == OpKind.STEP and (op.stage in added or op.stage not in reduced):
            return False
        if op.kind in ADDING:
            if op.stage in reduced and sharded == Sharded.OPTIMIZER:
                return False
            added.add(op.stage)
    return not unread and not added
