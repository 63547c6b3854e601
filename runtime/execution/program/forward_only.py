"""The forwards of a schedule alone, for evaluation."""

from collections.abc import Sequence
from dataclasses import replace

from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.ops import Op
from synth.schedule.simulate import DeadlockError, simulate


def forward_only(lowered: Lowered) -> Lowered:
    """Return the schedule without its backwards, in the same order unless that deadlocks.

    All F's read the newest weights. Visits of weights stay if an F reads them; they end with the
    last F that does.

    Without the backwards between them, forwards may wait for each other's sends. Ordered by
    micro-batch, then stage, they cannot: each op and each wait depends on earlier ones only.
    """
    schedule = lowered.schedule
    programs = [_forwards(ops) for ops in schedule.programs]
    kept = replace(schedule, programs=tuple(map(tuple, programs)), versions=None)
    kept = kept.one_after_the_other
    try:
        found = lower(kept, lowered.costs)
        simulate(found)
    except DeadlockError:
        if schedule.weights is not None:
            raise
        ordered = [tuple(sorted(ops, key=lambda op: (op.microbatch, op.stage))) for ops in programs]
        found = lower(replace(kept, programs=tuple(ordered)), lowered.costs)
    return found


def _forwards(ops: Sequence[Op]) -> list[Op]:
    """The F's of a rank and, with weight passing, the beginnings and ends of visits."""
    reads: dict[tuple[int, int], bool] = {}
    found: list[Op] = []
    for op in reversed(ops):
        copy = op.stage, op.replica
        if op.kind == OpKind.F:
            reads[copy] = True
            found.append(op)
        elif op.kind == OpKind.UNSHARD and reads.pop(copy, False):
            found.append(op)
    return found[::-1]
