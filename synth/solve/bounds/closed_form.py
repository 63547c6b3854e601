"""Proven lower bounds on the objective, valid for every schedule, fused or not.

Of the period they are bounds over schedules that take micro-batches in order on every rank: one
that began with another than 0 would start later, and its period would count less. For the makespan
the order is no restriction (micro-batches are identical).

All take `relaxed_for_fusion` instances: there B and W together never cost more than BW, so a
schedule with BW is bounded too.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ortools.sat.python import cp_model

from synth.certificate import Certificate, Proven, ProverName
from synth.objective import Objective, Spans
from synth.solve.bounds.forward_spacing import far_apart
from synth.solve.bounds.forward_spacing_model import SpacingModel, Spacings
from synth.solve.cpsat.model import ExactModel
from synth.solve.cpsat.run import ModelOutcome, run, search_from_below
from synth.solve.instance.instance import SPLIT, B, F, Instance, OpIndex, W
from synth.solve.instance.timing import TimedOrders
from synth.solve.options import SolveOptions
from synth.solve.tuning import RANK_SUBSETS


def work_bound_us(instance: Instance, objective: Objective) -> int:
    """The best of the closed forms over all ranks; of a sum the sum of both."""
    return objective.value_us(work_bounds(instance))


def work_bounds(instance: Instance) -> Spans:
    """The closed forms' bounds of the makespan and of the period."""
    return Spans.most(rank_bounds(instance))


def rank_bounds(instance: Instance, added_us: Sequence[int] | None = None) -> list[Spans]:
    """What each rank implies: its own memory counts, and no other one's.

    Args:
        instance: what is bounded.
        added_us: for each rank, work besides that of the instance, at any time after its first F.
    """
    added_us = added_us or [0] * instance.num_ranks
    return [
        Spans(
            *(max(_RankBounds(instance, is_period, r, added_us[r])) for is_period in (False, True))
        )
        for r in range(instance.num_ranks)
    ]


class _RankBounds:
    """What one rank's work and memory imply, and what follows from it on the ranks above.

    A rank cannot start before its head: the first F that reaches it has passed all stages before.
    The makespan counts from 0, the period of a rank from its own start, its origin; where that is
    not the same in every schedule, only what follows the first start is counted.
    """

    def __init__(self, instance: Instance, is_period: bool, rank: int, added_us: int = 0) -> None:
        self.instance, self.rank, self.held = instance, rank, instance.held[rank]
        self.added_us = added_us
        self.is_period = is_period
        self.starts_vary = self.is_period and instance.origins_us is None
        self.head = min(instance.head_us[c] for c in self.held)
        self.origin = self._origin(rank)
        self.total = {
            kind: sum(instance[c].total_us(kind) for c in self.held) for kind in (F, B, W)
        }
        self.steps = instance.step_us(rank)

    def _origin(self, rank: int) -> int:
        if not self.is_period:
            return 0
        return self.head if self.instance.origins_us is None else self.instance.origins_us[rank]

    def __iter__(self) -> Iterator[int]:
        """Every closed form."""
        yield self.head + sum(self.total.values()) + self.added_us + self.steps - self.origin
        yield self._first_b() + self.total[B] + self.total[W] + self.steps - self.origin
        yield self.head + self._memory_time() + self.steps - self.origin
        if not self.starts_vary and not any(copy.replica for copy in self.instance.copies):
            yield from self._ways_up()

    def _first_b(self) -> int:
        """The first B starts an F and a round trip after the first start; all B and W follow it."""
        instance = self.instance
        trips = [instance[c].duration_us[F] + instance.round_trip_us[c] for c in self.held]
        if self.starts_vary:
            return self.head + min(trips)
        return min(instance.head_us[c] + trip for c, trip in zip(self.held, trips, strict=True))

    def _memory_time(self) -> int:
        """The time in which the room, always full, holds all that the micro-batches hold.

        Each holds memory for a time: what F keeps, for example, until B ends, a round trip later.
        """
        instance, headroom, needed = self.instance, self.instance.headroom_bytes[self.rank], 0
        if not headroom:
            return 0
        for life in instance.lives:
            copy = instance[life.made[0]]
            if copy.rank == self.rank:
                each = life.num_bytes * instance.shortest_life_us(life)
                needed += copy.num_micro_batches * each
        return -(-needed // headroom)

    def _ways_up(self) -> Iterator[int]:
        """The last B ends after all F's and B's, and no sooner than all B's after the first start.

        It is that of the rank's first stage. From there the last gradient travels up; each rank
        above then has a W and its STEPs left.
        """
        instance, first = self.instance, self.held[0]
        last_b = max(self.head + self.total[F], self._first_b()) + self.total[B]
        for above in instance.chain_above(first):
            copy = instance[above]
            left = copy.duration_us[B] + copy.duration_us[W] + instance.step_us(copy.rank)
            yield last_b + instance.way_up_us(first, above) + left - self._origin(copy.rank)


class Reference(NamedTuple):
    """What is known to be possible: nothing above its value is of interest to a proof.

    Attributes:
        value_us: in the model's terms.
        hint: a schedule of that value; its part on some ranks is a solution of their relaxation.
    """

    value_us: int
    hint: TimedOrders | None


@dataclass
class RankSubsets:
    """Bounds from modelling some ranks exactly, first one at a time, then more and more together.

    The other ranks become delays: F k cannot arrive before its head and k F's of the slowest stage
    above, B k not before F k's round trip, and after B k a rank above still has its own B's and
    W's. Every schedule of the whole satisfies all of this, so the optimum of the part, or any
    bound of it, bounds the whole. Where memory binds, a few ranks that are far apart say nearly
    all: their ops have to agree over the length of the pipeline.

    Attributes:
        reference: asked for what is known then, whenever a proof begins.
        should_stop: asked all the time.
        of_rank: what was proven when each rank was looked at alone.
        spacings: how far apart so many forwards of the first stage are known to be, and the end.
        proven_us: what is proven already; each proof begins there and raises it.
    """

    instance: Instance
    objective: Objective
    options: SolveOptions
    reference: Callable[[], Reference]
    should_stop: Callable[[], bool]
    of_rank: dict[int, int] = field(default_factory=dict)
    spacings: Spacings = field(default_factory=Spacings)
    proven_us: int = 0

    def one_by_one(self, limit_s: float) -> Iterator[Proven]:
        """Bounds from each rank alone.

        Args:
            limit_s: for all of them; seconds of the clock, or deterministic ones.
        """
        left_s = limit_s
        for rank in range(self.instance.num_ranks):
            # Rank 0 waits longest for its first B, so memory binds there first when caps are alike.
            share = (
                RANK_SUBSETS.first_rank_share if rank == 0 else 1 / (self.instance.num_ranks - rank)
            )
            outcome = self.alone(rank, share * left_s)
            left_s -= outcome.spent_s
            self.of_rank[rank] = outcome.bound_us
            yield self._proven(outcome, (rank,))
            if left_s <= 0 or self.should_stop():
                return

    def alone(self, rank: int, limit_s: float) -> ModelOutcome:
        """The bound from one rank; the value of the reference where nothing is as good."""
        return self._solve((rank,), limit_s)

    def together(self, limit_s: float) -> Iterator[Proven]:
        """Bounds from a growing set of ranks, each time by the rank that raises it most.

        Each set begins from what is proven already. Two and three ranks get a part of the time;
        what is left goes to all ranks at once, or where these are too many ops to growing sets.
        Where spacings are known, the two and the three are those that are far apart.
        """
        ranks = tuple(range(self.instance.num_ranks))
        chosen: tuple[int, ...] = (max(ranks, key=lambda rank: (self.of_rank.get(rank, 0), -rank)),)
        left_s = limit_s
        while tried := self._wider(chosen):
            found: list[tuple[int, tuple[int, ...]]] = []
            share_s = left_s * self._share(tried) / len(tried)
            for wider in tried:
                if left_s <= 0 or self.should_stop():
                    return
                outcome = self._solve(wider, max(share_s, RANK_SUBSETS.shortest_trial_s))
                left_s -= outcome.spent_s
                found.append((outcome.bound_us, wider))
                yield self._proven(outcome, wider)
            chosen = max(found)[1]

    def _share(self, tried: list[tuple[int, ...]]) -> float:
        """What of the time that is left is for these sets."""
        if len(tried[0]) == self.instance.num_ranks:
            return 1.0
        is_far = self.spacings.say_more and tried[0] == far_apart(self.instance, 2)
        return RANK_SUBSETS.far_apart_share if is_far else RANK_SUBSETS.share

    def _wider(self, chosen: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The sets of ranks to try when some are chosen: at last all; none if that was all."""
        ranks = range(self.instance.num_ranks)
        others = [rank for rank in ranks if rank not in chosen]
        if self.spacings.say_more and len(chosen) < RANK_SUBSETS.few_ranks:
            far = far_apart(self.instance, len(chosen) + 1)
            if len(far) > len(chosen):
                return [far]
        if len(chosen) < RANK_SUBSETS.few_ranks:
            further = _spread(
                others,
                RANK_SUBSETS.second_rank_trials
                if len(chosen) == 1
                else RANK_SUBSETS.further_rank_trials,
            )
            return [tuple(sorted((*chosen, rank))) for rank in further]
        if others and self.instance.num_ops <= RANK_SUBSETS.most_ops:
            return [tuple(ranks)]
        sets = [
            tuple(sorted((*chosen, rank)))
            for rank in _spread(others, RANK_SUBSETS.further_rank_trials)
        ]
        return [wider for wider in sets if self._num_ops(wider) <= RANK_SUBSETS.most_ops]

    def _num_ops(self, ranks: tuple[int, ...]) -> int:
        copies = (self.instance[index] for rank in ranks for index in self.instance.held[rank])
        return sum(len(SPLIT) * copy.num_micro_batches for copy in copies)

    def _solve(self, ranks: tuple[int, ...], limit_s: float) -> ModelOutcome:
        began_s = time.monotonic()
        value_us, hint = self.reference()
        model = model_of(self.instance, self.objective, value_us, ranks, self.spacings)
        model.at_least(min(self.proven_us, value_us))
        if hint is not None:
            model.hint(hint, value_us)
        outcome = run(model, self.options, limit_s, should_stop=self.should_stop, began_s=began_s)
        bound_us = value_us if outcome.infeasible else min(outcome.bound_us, value_us)
        self.proven_us = max(self.proven_us, bound_us)
        return replace(outcome, bound_us=bound_us)

    def _proven(self, outcome: ModelOutcome, ranks: tuple[int, ...]) -> Proven:
        """Certify a bound; one proven before is no lemma, it only says where the search begins."""
        first = self.instance[0]
        lemmas = self.spacings.lemmas(first.last) if first.rank in ranks else ()
        counts = (c.num_micro_batches for c in self.instance.copies if c.rank in ranks)
        certificate = Certificate(
            prover=ProverName.RANKS,
            ranks=ranks,
            num_micro_batches=max(counts),
            forward_spacings=lemmas,
        )
        return Proven(outcome.bound_us, certificate)


def model_of(
    instance: Instance,
    objective: Objective,
    value_us: int,
    ranks: tuple[int, ...],
    spacings: Spacings,
) -> ExactModel:
    """Make the exact model of some ranks, which keep the spacings that are known.

    Args:
        value_us: nothing above is of interest.
    """
    part = _Counted if spacings.say_more and len(ranks) <= RANK_SUBSETS.few_ranks else _Part
    model = part(instance, objective, value_us, ranks, passing_pairs=len(ranks) > 1)
    model.both_at_least(work_bounds(instance))
    if (0, OpIndex(F, 0)) in model.start:
        spacings.kept_by(model)
    return model


class _Part(ExactModel):
    """Some ranks, within the time of a known schedule."""

    def tune(self, parameters: cp_model.SatParameters) -> None:
        """From below; with a literal for the order of every two ops of a rank where that helps."""
        search_from_below(parameters)
        if len(self.ranks) < RANK_SUBSETS.ranks_with_precedence_literals:
            return
        parameters.use_strong_propagation_in_disjunctive = True
        parameters.max_size_to_create_precedence_literals_in_disjunctive = (
            RANK_SUBSETS.most_ops_with_precedence_literals
        )


class _Counted(_Part):
    """So few ranks that memory may be counts of more ops of each."""

    most_counted = SpacingModel.most_counted


def _spread(ranks: list[int], most: int) -> list[int]:
    """A few of the ranks, far apart."""
    size = min(len(ranks), most)
    return [ranks[(2 * i + 1) * len(ranks) // (2 * size)] for i in range(size)]
