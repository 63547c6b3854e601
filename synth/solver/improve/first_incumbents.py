"""Incumbents that need neither search nor published schedules: a given one, and the serial one."""

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.verify import ScheduleError, verify
from synth.solver import infeasibility
from synth.solver.evaluate import evaluate
from synth.solver.search_state import SearchState


def offer_serial(state: SearchState) -> None:
    """Offer one micro-batch at a time, which fits wherever anything does."""
    serial = infeasibility.serial_schedule(state.problem)
    state.offer(evaluate.evaluate(state.problem, serial, serial.name))


def offer_hint(state: SearchState, schedule: Schedule) -> None:
    """Offer the given schedule.

    Raises:
        SynthError: it is no schedule of this problem, or none that the search could improve.
    """
    asked, given = state.problem, schedule
    if (given.placement, given.num_micro_batches) != (asked.placement, asked.num_micro_batches):
        raise SynthError(
            f"the hint has {given.num_ranks} ranks and {given.num_micro_batches} micro-batches "
            f"on its own placement, the problem {asked.num_ranks} and "
            f"{asked.num_micro_batches}; give a plan made for the same, or none"
        )
    if asked.objective.periods:
        _check_in_order(schedule)
    if not schedule.keeps_saved:
        raise SynthError(
            "the hint rebuilds or moves what forwards save (ops R, O, L, K, G), and the search "
            "orders F, B and W alone; give a plan without such ops, or none"
        )
    try:
        verify(schedule, state.problem.costs)
    except ScheduleError as error:
        raise SynthError(
            f"the hint is no schedule for this problem: {error}; give a plan for the same "
            f"number of ranks and micro-batches, or none"
        ) from None
    state.offer(evaluate.evaluate(state.problem, schedule, state.options.hint_found_by))


def _check_in_order(schedule: Schedule) -> None:
    """Reject a schedule with kinds not in micro-batch order: bounds of the period exclude it."""
    for rank, program in enumerate(schedule.programs):
        last: dict[tuple[OpKind, int, int], int] = {}
        for op in program:
            which = (op.kind, op.stage, op.replica)
            if op.microbatch < last.get(which, -1):
                raise SynthError(
                    f"the hint's rank {rank} takes {op.kind} of micro-batch {last[which]} before "
                    f"{op.microbatch}; for the period, hints must take micro-batches in order"
                )
            last[which] = op.microbatch
