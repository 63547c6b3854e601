"""The forwards of a schedule alone, for evaluation."""

from dataclasses import replace

from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.ops import Op
from synth.schedule.simulate import DeadlockError, simulate


def forward_only(lowered: Lowered) -> Lowered:
    """Return the schedule without its backwards, in the same order unless that deadlocks.

    Without the backwards between them, forwards may wait for each other's sends. Ordered by
    micro-batch, then stage, they cannot: each op and each wait depends on earlier ones only.
    """
    schedule = lowered.schedule
    programs = [[op for op in ops if op.kind == OpKind.F] for ops in schedule.programs]
    kept = replace(schedule, programs=tuple(map(tuple, programs)))
    try:
        found = lower(kept, lowered.costs)
        simulate(found)
    except DeadlockError:
        ordered = [tuple(sorted(ops, key=_by_micro_batch)) for ops in programs]
        found = lower(replace(schedule, programs=tuple(ordered)), lowered.costs)
    return found


def _by_micro_batch(op: Op) -> tuple[int, int]:
    return op.microbatch, op.stage
