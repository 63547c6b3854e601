"""Random problems in the memory that a random schedule of them needs, for tests of bounds."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from synth.objective import Objective
from synth.schedule.model import Buffering, Schedule
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import StoppedBy
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.synth.effort import exact_alone
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.solver.test_forward_spacing import any_placement
from tests.synth.solver.test_link_load import with_slow_links


class TightProblem(NamedTuple):
    """A problem, and the times of a schedule that just keeps its limits."""

    problem: Problem
    timeline: Timeline


def tight_problem(
    seed: int,
    name: str,
    *,
    most_micro_batches: int,
    slow_links: float,
    objectives: Sequence[Objective] = (),
) -> TightProblem | None:
    """Draw odd costs and a schedule of 2 or 4 ranks; None: buffers are too small for its order.

    Args:
        seed: of all that is drawn.
        name: of a placement, or `odd`.
        most_micro_batches: there are 2 to so many.
        slow_links: the chance of slow links.
        objectives: one of these is drawn; none: the makespan.
    """
    rng = random.Random(seed)
    num_ranks, m = rng.choice([2, 4]), rng.randint(2, most_micro_batches)
    where = any_placement(rng, name, num_ranks)
    costs = odd_costs(rng, where.num_stages, where.num_ranks)
    if rng.random() < slow_links:
        costs = with_slow_links(costs, rng, where.num_ranks)
    free = Problem(costs, where, m)
    if objectives:
        free = replace(free, objective=rng.choice(objectives))
    programs = RandomOrders(rng, free).programs()
    try:
        lowered, timeline = verify(Schedule(where, m, programs, "random", Buffering(9, 9)), costs)
    except ScheduleError:
        return None
    return TightProblem(replace(free, caps_bytes=peak_bytes(lowered)), timeline)


def optimum_us(problem: Problem) -> int | None:
    """Return the least value of a small problem; None: it was not proven in time."""
    best = solve(problem, exact_alone(20))
    return best.value_us if best.stopped_by == StoppedBy.OPTIMAL else None
