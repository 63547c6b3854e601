"""Numbers of micro-batches by which PyTorch's runtime finds its losses.

The runtime appends a loss at each forward of the last stage, and a backward takes the loss at the
place of its micro-batch's number (`_maybe_compute_loss`, `_maybe_get_loss`). So it only runs orders
whose last stage runs the forwards of micro-batch 0, 1, 2, … in turn.
"""

from dataclasses import replace

from synth.op_kinds import VISITS, OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op

_OF_NO_MICRO_BATCH = (OpKind.STEP, *VISITS)


def in_loss_order(schedule: Schedule) -> Schedule:
    """Return a schedule with micro-batches numbered in the order of the last stage's forwards.

    Micro-batches cost the same, so times and memory stay. Each pipeline keeps its set of numbers.
    """
    last = schedule.placement.num_stages - 1
    number: dict[int, int] = {}
    for program in schedule.programs:
        run = [op.microbatch for op in program if op.kind == OpKind.F and op.stage == last]
        number.update(zip(run, sorted(run), strict=True))
    if all(old == new for old, new in number.items()):
        return schedule

    def renumbered(op: Op) -> Op:
        is_of_none = op.kind in _OF_NO_MICRO_BATCH
        return op if is_of_none else op._replace(microbatch=number[op.microbatch])

    programs = tuple(tuple(map(renumbered, program)) for program in schedule.programs)
    overlapped = frozenset(map(renumbered, schedule.overlapped))
    return replace(schedule, programs=programs, overlapped=overlapped)
