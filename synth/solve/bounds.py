"""Proven lower bounds on the objective, valid for every schedule, fused or not.

Of the period they are bounds over schedules that take micro-batches in order on every rank: one
that began with another than 0 would start later, and its period would count less. For the makespan
the order is no restriction (micro-batches are identical).

All take `relaxed_for_fusion` views: there B and W together never cost more than BW, so a schedule
with BW is bounded too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from synth.solve.cpsat import Model
from synth.solve.problem import Objective, SolveOptions
from synth.solve.run_cpsat import Outcome, run
from synth.solve.solution import Solution
from synth.solve.view import B, F, View, W

# How many ranks are tried as the second, and as each further one of a growing set; for how long at
# least.
_PAIRS = 4
_WIDER = 2
_SHORTEST_LOOK_S = 0.2


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

    4. Every micro-batch holds memory for a time: what F keeps, for example, until B ends, a round
       trip later. The room times the time that there is must suffice for all.

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
    yield head + _memory_time_us(view, rank) + steps - origin
    if any(chunk.replica for chunk in view.chunks) or (is_period and view.origins_us is None):
        return
    last_b = max(head + totals[F] + totals[B], first_b + totals[B])
    for above in view.chain_above(held[0]):
        chunk = view[above]
        left = chunk.duration_us[B] + chunk.duration_us[W] + view.step_us(chunk.rank)
        origin = view.origins_us[chunk.rank] if is_period and view.origins_us else 0
        yield last_b + view.way_up_us(held[0], above) + left - origin


def _memory_time_us(view: View, rank: int) -> int:
    """The time in which a rank's room, always full, holds all that its micro-batches hold."""
    room = view.room_bytes[rank]
    if not room:
        return 0
    needed = 0
    for life in view.lives:
        chunk = view[life.made[0]]
        if chunk.rank == rank:
            each = life.num_bytes * view.shortest_life_us(life)
            needed += chunk.num_micro_batches * each
    return -(-needed // room)


@dataclass
class Ladder:
    """Bounds from modelling some ranks exactly, first one at a time, then more and more together.

    The other ranks become delays: F k cannot arrive before its head and k F's of the slowest stage
    above, B k not before F k's round trip, and after B k a rank above still has its own B's and
    W's. Every schedule of the whole satisfies all of this, so the optimum of the part, or any
    bound of it, bounds the whole. Where memory binds, a few ranks that are far apart say nearly
    all: their ops have to agree over the length of the pipeline.

    Attributes:
        value_us: of a known schedule in the model's terms; nothing above it is of interest.
        hint: that schedule; its part on some ranks is a solution of their relaxation.
        should_stop: asked all the time.
    """

    view: View
    objective: Objective
    options: SolveOptions
    value_us: int
    hint: Solution | None
    should_stop: Callable[[], bool]
    of_rank: dict[int, int] = field(default_factory=dict)

    def one_by_one(self, limit_s: float) -> Iterator[int]:
        """Bounds from each rank alone.

        Args:
            limit_s: for all of them; seconds of the clock, or deterministic ones.
        """
        left_s = limit_s
        for rank in range(self.view.num_ranks):
            # Rank 0 waits longest for its first B, so memory binds there first when caps are alike.
            share = 0.5 if rank == 0 else 1 / (self.view.num_ranks - rank)
            outcome = self._solve((rank,), share * left_s)
            left_s -= outcome.spent_s
            self.of_rank[rank] = outcome.bound_us
            yield outcome.bound_us
            if self.should_stop():
                return

    def together(self, limit_s: float) -> Iterator[int]:
        """Bounds from a growing set of ranks, each time by the rank that raises it most."""
        ranks = tuple(range(self.view.num_ranks))
        chosen: tuple[int, ...] = (max(ranks, key=lambda rank: (self.of_rank.get(rank, 0), -rank)),)
        left_s = limit_s
        while len(chosen) < len(ranks) and left_s > 0 and not self.should_stop():
            found: list[tuple[int, bool, tuple[int, ...]]] = []
            most = _PAIRS if len(chosen) == 1 else _WIDER
            tried = _spread([rank for rank in ranks if rank not in chosen], most)
            for place, rank in enumerate(tried):
                if left_s <= 0 or self.should_stop():
                    break
                wider = tuple(sorted((*chosen, rank)))
                share_s = left_s / (2 * (len(tried) - place))
                outcome = self._solve(wider, max(share_s, _SHORTEST_LOOK_S))
                left_s -= outcome.spent_s
                found.append((outcome.bound_us, outcome.optimal, wider))
                yield outcome.bound_us
            if not any(optimal for _, optimal, _ in found):
                return
            chosen = max(found)[2]

    def _solve(self, ranks: tuple[int, ...], limit_s: float) -> Outcome:
        model = Model(self.view, self.objective, self.value_us, ranks)
        if self.hint is not None:
            model.hint(self.hint, self.value_us)
        outcome = run(model, self.options, limit_s, should_stop=self.should_stop)
        return replace(outcome, bound_us=min(outcome.bound_us, self.value_us))


def _spread(ranks: list[int], most: int) -> list[int]:
    """A few of the ranks, far apart."""
    size = min(len(ranks), most)
    return [ranks[(2 * i + 1) * len(ranks) // (2 * size)] for i in range(size)]
