"""Refusals of schedules that no format of another runtime can express."""

from synth.errors import SynthError
from synth.op_kinds import MOVES
from synth.schedule.model import Schedule


def check_expressible(schedule: Schedule, framework: str) -> None:
    """Check that a schedule has nothing that the formats of all frameworks lack.

    Raises:
        SynthError: it moves weights or activations, holds copies of stages, runs backwards on other
            ranks than forwards, or updates weights between its ops.
    """
    copies = len(schedule.placement.ranks)
    if schedule.weights is not None:
        raise SynthError(
            f"the schedule {schedule.name!r} moves weights from rank to rank, which {framework} "
            f"cannot be told; solve with --weights stay"
        )
    if schedule.placement.backward_ranks is not None:
        raise SynthError(
            f"the schedule {schedule.name!r} runs backwards on other ranks than forwards, which "
            f"{framework} cannot be told; export one that runs both on the rank of their stage"
        )
    if copies > 1:
        raise SynthError(
            f"the schedule {schedule.name!r} holds {copies} copies of each stage, and {framework} "
            f"one; solve for a placement without replicas"
        )
    if schedule.versions is not None:
        raise SynthError(
            f"the schedule {schedule.name!r} updates weights between its ops, and {framework} only "
            f"behind them; export one that flushes the pipeline"
        )
    if schedule.vocabulary:
        raise SynthError(
            f"the schedule {schedule.name!r} divides embedding and head by vocabulary, which "
            f"{framework} cannot be told; export one of whole layers"
        )
    moves = [op for program in schedule.programs for op in program if op.kind in MOVES]
    if moves:
        raise SynthError(
            f"the schedule {schedule.name!r} moves saved activations away and back (first with "
            f"{moves[0]}), which {framework} cannot be told; export one that keeps them"
        )
