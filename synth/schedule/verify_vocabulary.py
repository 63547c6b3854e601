"""Further rules for schedules with a divided vocabulary."""

from synth.errors import SynthError
from synth.op_kinds import MEASURED, OpKind
from synth.schedule.error import ScheduleError
from synth.schedule.lowering.stage_flow import StageFlow
from synth.schedule.model import Schedule

_OF_PARTS = (OpKind.F, OpKind.BW, OpKind.STEP)


def check_executable(name: str, barriers: int) -> None:
    """Refuse to execute a schedule with a divided vocabulary, which only other programs do."""
    if barriers:
        raise SynthError(
            f"the schedule {name!r} divides embedding and head by vocabulary over all ranks, which "
            f"synth plans and does not execute; run one of whole layers, or this one in "
            f"Megatron-LM's fork sail-sg/VocabularyParallelism"
        )


def check_vocabulary(schedule: Schedule) -> None:
    """Check the placement of the parts, and that they run F and BW.

    Raises:
        ScheduleError: parts of the embedding or of the head are not one on each rank; there are
            several copies; a part runs B and W apart; or weights or activations move.
    """
    if not schedule.vocabulary:
        return
    placement, num_ranks = schedule.placement, schedule.num_ranks
    if schedule.vocabulary not in (1, 2):
        raise ScheduleError(
            f"a divided vocabulary has 1 or 2 barriers, given {schedule.vocabulary}"
        )
    everyone, row = list(range(num_ranks)), placement.ranks[0]
    thirds = [sorted(row[first : first + num_ranks]) for first in range(0, len(row), num_ranks)]
    if len(placement.ranks) > 1 or thirds != [everyone] * 3:
        raise ScheduleError(
            f"a vocabulary that is divided over {num_ranks} ranks needs on each rank a part of the "
            f"embedding, a stage and a part of the head, {3 * num_ranks} stages in this order, "
            f"without copies; the placement is {placement.ranks}"
        )
    if schedule.weights is not None or schedule.versions is not None or schedule.overlapped:
        raise ScheduleError(
            "the vocabulary is divided, and weights are passed or have versions, or F and BW run "
            "at once; one of both is possible"
        )
    flow = StageFlow(placement.num_stages, schedule.vocabulary)
    for rank, program in enumerate(schedule.programs):
        for place, op in enumerate(program):
            if op.kind not in (_OF_PARTS if flow.is_part(op.stage) else MEASURED):
                raise ScheduleError(
                    f"rank {rank}, op {place} ({op}): with a divided vocabulary stages run F, B, W "
                    f"and BW, and its parts F and BW alone"
                )
