"""Proven lower bounds on the objective, valid for every schedule, fused or not.

Of the period they are bounds over schedules that take micro-batches in order on every rank: one
that began with another than 0 would start later, and its period would count less. For the makespan
the order is no restriction (micro-batches are identical).

All take `relaxed_for_fusion` views: there B and W together never cost more than BW, so a schedule
with BW is bounded too.
"""

from collections.abc import Callable, Iterator

from synth.solve.cpsat import Model
from synth.solve.problem import Objective, SolveOptions
from synth.solve.run_cpsat import Outcome, run
from synth.solve.solution import Solution
from synth.solve.view import B, F, View, W

# Shares of the time limit: a long look at one rank, and short ones at all the others together.
_LONG_LOOK = 0.15
_SHORT_LOOKS = 0.05


def work_bound_us(view: View, objective: Objective) -> int:
    """The best of the closed forms over all ranks."""
    return max(
        bound for rank in range(view.num_ranks) for bound in _bounds_us(view, rank, objective)
    )


def _bounds_us(view: View, rank: int, objective: Objective) -> Iterator[int]:
    """What one rank's work implies, and what follows from it on the ranks above.

    A rank cannot start before its head: the first F that reaches it has passed all stages before.

    1. It then has all its F, B, W and its STEPs to do, one at a time.
    2. Its first B starts one F and one round trip after its first start, at the earliest; every B
       and W comes after that.
    3. Its last B ends after all F's and B's, and not before all B's after the first B's start. From
       there the last gradient travels up; each rank above then has a W and its STEPs left. (Where
       a rank holds several stages its first stage's last B comes last. One replica only.)

    The makespan counts from 0, the period of a rank from its own start; where that is not the same
    in every schedule, only what follows the first start is counted.
    """
    held = view.held[rank]
    is_period = objective == Objective.PERIOD
    totals = {kind: sum(view[c].total_us(kind) for c in held) for kind in (F, B, W)}
    head = min(view.head_us[c] for c in held)
    trips = [view[c].duration_us[F] + view.round_trip_us[c] for c in held]
    steps, origin = view.step_us(rank), 0
    first_b = min(view.head_us[c] + trip for c, trip in zip(held, trips, strict=True))
    if is_period and view.origins_us is None:
        origin, first_b = head, head + min(trips)
    elif is_period and view.origins_us is not None:
        origin = view.origins_us[rank]
    yield head + sum(totals.values()) + steps - origin
    yield first_b + totals[B] + totals[W] + steps - origin
    if any(chunk.replica for chunk in view.chunks):
        return
    last_b = max(head + totals[F] + totals[B], first_b + totals[B])
    for above in view.chain_above(held[0]):
        chunk = view[above]
        left = chunk.duration_us[B] + chunk.duration_us[W] + view.step_us(chunk.rank)
        origin = view.origins_us[chunk.rank] if is_period and view.origins_us else 0
        yield last_b + view.way_up_us(held[0], above) + left - origin


def relaxed_bound_us(
    view: View,
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
        model = Model(view, objective, value_us, [rank])
        model.at_least(bound_us)
        if hint is not None:
            model.hint(hint, value_us)
        return run(model, options, limit_s, should_stop=should_stop)

    # Rank 0 waits longest for its first B, so memory binds there first when caps are alike; the
    # most promising of those that a short look did not solve gets a long one too.
    unsolved: list[tuple[int, int]] = []
    for rank in range(view.num_ranks):
        if bound_us >= value_us or should_stop():
            return bound_us
        share = _LONG_LOOK if rank == 0 else _SHORT_LOOKS / view.num_ranks
        outcome = solve_rank(rank, share * options.time_limit_s)
        bound_us = max(bound_us, min(outcome.bound_us, value_us))
        if rank > 0 and not outcome.optimal:
            unsolved.append((-outcome.bound_us, rank))
    for _, rank in sorted(unsolved)[:1]:
        if bound_us < value_us and not should_stop():
            outcome = solve_rank(rank, _LONG_LOOK * options.time_limit_s)
            bound_us = max(bound_us, min(outcome.bound_us, value_us))
    return bound_us
