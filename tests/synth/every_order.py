"""The true curve of tiny problems: every order of every rank, by the verifier alone."""

from itertools import product

from synth.schedule.model import Buffering, Schedule
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.solver.problem import Problem
from tests.synth.solver.test_solve_exact import rank_orders


def true_curve(problem: Problem) -> list[tuple[int, int]]:
    """(highest peak of a rank, objective) of all orders, the best ones only, by rising memory.

    For one stage per rank, split B and W, and boundaries without bytes.
    """
    assert not any(stage.output_bytes for stage in problem.costs.stages)
    m = problem.num_micro_batches
    found = set()
    for programs in product(*(list(rank_orders(s, m, False)) for s in range(problem.num_ranks))):
        schedule = Schedule(problem.placement, m, programs, "every", Buffering(9, 9))
        try:
            lowered, timeline = verify(schedule, problem.costs)
        except ScheduleError:  # deadlock
            continue
        found.add((max(peak_bytes(lowered)), problem.objective.value_us(timeline)))
    best: list[tuple[int, int]] = []
    for peak, value in sorted(found):
        if not best or value < best[-1][1]:
            best.append((peak, value))
    return best


def true_value(curve: list[tuple[int, int]], cap_bytes: int) -> int | None:
    """The best objective under a cap, if anything fits."""
    return min((value for peak, value in curve if peak <= cap_bytes), default=None)
