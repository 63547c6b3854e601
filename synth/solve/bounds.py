"""Proven lower bounds on the objective, valid for every schedule, fused or not.

Of the period they are bounds over schedules that take micro-batches in order on every rank: one
that began with another than 0 would start later, and its period would count less. For the makespan
the order is no restriction (micro-batches are identical).

All take `relaxed_for_fusion` ranks: there B and W together never cost more than BW, so a schedule
with BW is bounded too.
"""

from collections.abc import Callable, Iterator

from synth.solve.cpsat import Model, Scope
from synth.solve.problem import Objective, SolveOptions
from synth.solve.ranks import STEP, B, F, Ranks, W
from synth.solve.run_cpsat import Outcome, run
from synth.solve.solution import Solution

# Shares of the time limit: a long look at one rank, and short ones at all the others together.
_LONG_LOOK = 0.15
_SHORT_LOOKS = 0.05


def work_bound_us(ranks: Ranks, objective: Objective) -> int:
    """The best of the closed forms over all ranks."""
    return max(
        bound for rank in range(len(ranks)) for bound in _rank_bounds_us(ranks, rank, objective)
    )


def _rank_bounds_us(ranks: Ranks, rank: int, objective: Objective) -> Iterator[int]:
    """What one rank's work implies, and what follows from it on the ranks above.

    A rank cannot start before its head: F 0 is its first op, and has passed all ranks before.

    1. It then has all its F, B, W and its STEP to do, one at a time.
    2. Its first B starts one F and one round trip after its first start, at the earliest; every B
       and W comes after that.
    3. Its last B ends after m F's and m B's, and not before m B's after the first B's start. From
       there the last gradient travels up; each rank above then has a W and its STEP left.

    The makespan counts from 0, the period of a rank from its own head, which no schedule changes.
    """
    durations, m = ranks[rank].duration_us, ranks.num_micro_batches
    is_period = objective == Objective.PERIOD
    head = ranks.head_us(rank)
    first_b = head + durations[F] + ranks.round_trip_us(rank)
    origin = head if is_period else 0
    work = m * (durations[F] + durations[B] + durations[W]) + durations[STEP]
    yield head + work - origin
    yield first_b + m * (durations[B] + durations[W]) + durations[STEP] - origin
    last_b = max(head + m * (durations[F] + durations[B]), first_b + m * durations[B])
    for above in range(rank):
        left = ranks[above].duration_us[W] + ranks[above].duration_us[STEP]
        origin = ranks.head_us(above) if is_period else 0
        yield last_b + ranks.way_back_us(rank, above) + left - origin


def relaxed_bound_us(
    ranks: Ranks,
    objective: Objective,
    value_us: int,
    bound_us: int,
    options: SolveOptions,
    should_stop: Callable[[], bool],
    hint: Solution | None = None,
) -> int:
    """Bound by solving one rank alone, with its order and its memory, exactly.

    The other ranks become delays: F k cannot arrive before its head and k F's of the slowest rank
    above, B k not before F k's round trip, and after B k the rank above still has its own B's and
    W's. Every schedule of the whole satisfies all of this, so the optimum of the part, or any
    bound of it, bounds the whole. Where a rank's memory binds, this is nearly tight.

    Args:
        value_us: of a known schedule in the model's terms; nothing above it is of interest.
        bound_us: known already.
        hint: a known schedule; its part on the rank is a solution of the rank's relaxation.
    """

    def solve_rank(rank: int, limit_s: float) -> Outcome:
        model = Model(ranks, objective, value_us, Scope(rank, rank))
        model.at_least(bound_us)
        if hint is not None:
            model.hint(hint, value_us)
        return run(model, options, limit_s, should_stop=should_stop)

    # Rank 0 waits longest for its first B, so memory binds there first when caps are alike; the
    # most promising of those that a short look did not solve gets a long one too.
    unsolved: list[tuple[int, int]] = []
    for rank in range(len(ranks)):
        if bound_us >= value_us or should_stop():
            return bound_us
        share = _LONG_LOOK if rank == 0 else _SHORT_LOOKS / len(ranks)
        outcome = solve_rank(rank, share * options.time_limit_s)
        bound_us = max(bound_us, min(outcome.bound_us, value_us))
        if rank > 0 and not outcome.optimal:
            unsolved.append((-outcome.bound_us, rank))
    for _, rank in sorted(unsolved)[:1]:
        if bound_us < value_us and not should_stop():
            outcome = solve_rank(rank, _LONG_LOOK * options.time_limit_s)
            bound_us = max(bound_us, min(outcome.bound_us, value_us))
    return bound_us
