"""Rank-subset relaxation: exact models of all ops of a few ranks, with other ranks as delays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

from synth.objective import Objective
from synth.schedule.files.certificate import Certificate, ProvenBound, ProverName
from synth.solver.bounds.bound import BoundSetting, Reference, rank_by_rank
from synth.solver.bounds.closed_form import rank_bounds, work_bounds
from synth.solver.bounds.forward_spacing import far_apart, recheck_spacings
from synth.solver.bounds.forward_spacing_model import Spacings
from synth.solver.bounds.rechecker import Rechecker
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.op_variables import OpVariables
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.run import ModelOutcome, TimedBounds, run, search_from_below
from synth.solver.instance.in_flight import in_flight_caps
from synth.solver.instance.instance import SPLIT, B, F, Instance, OpIndex
from synth.solver.options import Part, SolveOptions
from synth.solver.tuning import EXACT_MODEL, RANK_SUBSETS


def is_worth_alone(instance: Instance) -> bool:
    """Return True if the model of each rank alone has few enough ops to prove much soon."""
    return all(
        _num_ops(instance, (rank,)) <= RANK_SUBSETS.most_ops_alone
        for rank in range(instance.num_ranks)
    )


def _num_ops(instance: Instance, ranks: tuple[int, ...]) -> int:
    copies = (instance[index] for rank in ranks for index in instance.held[rank])
    return sum(len(SPLIT) * copy.num_micro_batches for copy in copies)


@dataclass
class RankSubsets:
    """Bounds from models of some ranks, first of one at a time, then of growing sets.

    The other ranks become delays: F k cannot arrive before its head and k F's of the slowest stage
    above, B k not before F k's round trip, and after B k a rank above still has its own B's and
    W's left. Every schedule satisfies all of this, so any bound of the part bounds the whole. Where
    memory binds, a few ranks that are far apart prove nearly the whole bound, because their ops
    have to agree over the length of the pipeline.

    Attributes:
        reference: called at the beginning of each proof for the best value known then.
        should_stop: polled during each proof.
        of_rank: the bound of each rank alone, where it was above the best one known before.
        spacings: proven distances between forwards of the first stage.
        proven_us: the best bound so far; each proof begins there and raises it.
        solved: ranks whose own bound cannot be raised.
    """

    part: ClassVar[Part] = Part.RANK_SUBSETS
    prover: ClassVar[ProverName] = ProverName.RANKS

    instance: Instance
    objective: Objective
    options: SolveOptions
    reference: Callable[[], Reference]
    should_stop: Callable[[], bool]
    of_rank: dict[int, int] = field(default_factory=dict)
    spacings: Spacings = field(default_factory=Spacings)
    proven_us: int = 0
    solved: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, setting: BoundSetting) -> Self:
        """Begin from the best bound known."""
        return cls(
            setting.instance,
            setting.objective,
            setting.exact_options,
            setting.reference,
            setting.should_stop,
            setting.known.of_rank,
            setting.known.spacings,
            setting.known.bound_us,
            setting.known.solved,
        )

    @property
    def bound_us(self) -> int:
        """The best bound so far, or that with which the proofs began."""
        return self.proven_us

    def one_by_one(self, limit_s: float) -> Iterator[ProvenBound]:
        """Yield bounds from each rank alone.

        Args:
            limit_s: for all of them; seconds of the clock, or deterministic ones.
        """

        def prove(rank: int, limit_s: float) -> tuple[ProvenBound, float]:
            known_us = self.proven_us
            outcome = self.alone(rank, limit_s)
            if outcome.bound_us > known_us:
                self.of_rank[rank] = outcome.bound_us
            if outcome.optimal or outcome.infeasible:
                self.solved.add(rank)
            return self._proven(outcome, (rank,)), outcome.spent_s

        ranks = self._by_promise()
        if self.instance.holds_several:
            yield from self._by_halving(ranks, limit_s, prove)
        else:
            share = RANK_SUBSETS.first_rank_share
            yield from rank_by_rank(ranks, share, limit_s, prove, self.should_stop)

    def _by_halving(
        self,
        ranks: Sequence[int],
        limit_s: float,
        prove: Callable[[int, float], tuple[ProvenBound, float]],
    ) -> Iterator[ProvenBound]:
        """Yield bounds from each rank in rounds, half as many ranks for twice as long each.

        The best of the ranks that are not solved continue (successive halving: Jamieson and
        Talwalkar, AISTATS 2016). Closed forms do not tell which rank proves most, and most are
        solved in less than a second.
        """
        num_rounds = len(ranks).bit_length()
        turn_s = max(RANK_SUBSETS.shortest_trial_s, limit_s / (len(ranks) * num_rounds))
        left_s, bounds_us = limit_s, dict[int, int]()
        while ranks:
            for rank in ranks:
                proven, spent_s = prove(rank, min(turn_s, left_s))
                bounds_us[rank] = max(proven.bound_us, bounds_us.get(rank, 0))
                left_s -= spent_s
                yield proven
                if left_s <= 0 or self.should_stop():
                    return
            unsolved = [rank for rank in ranks if rank not in self.solved]
            best_first = sorted(unsolved, key=lambda rank: -bounds_us[rank])
            ranks, turn_s = best_first[: max(1, len(ranks) // 2)], 2 * turn_s

    def _by_promise(self) -> Sequence[int]:
        """Return the ranks, those that may prove most first.

        Where they hold one stage and limits are alike, rank 0 waits longest for its first B, so
        memory binds there first. Where they hold several, the closed forms tell.
        """
        ranks = range(self.instance.num_ranks)
        if not self.instance.holds_several:
            return ranks
        closed_us = [self.objective.value_us(spans) for spans in rank_bounds(self.instance)]
        return sorted(ranks, key=lambda rank: -closed_us[rank])

    def _promise(self, rank: int) -> tuple[int, bool]:
        """The bound of a rank alone, and whether it may be raised, which breaks ties."""
        may_rise = self.instance.holds_several and rank not in self.solved
        return self.of_rank.get(rank, 0), may_rise

    def alone(self, rank: int, limit_s: float) -> ModelOutcome:
        """Bound by one rank; never above the reference's value."""
        return self._solve((rank,), limit_s)

    def prove(self, limit_s: float) -> TimedBounds:
        """Yield bounds from a growing set of ranks, each time by the rank that raises it most.

        Where ranks hold several stages, the best rank alone comes first, if it is not solved. Sets
        of two and three ranks get a share of the time. The rest goes to all ranks at once, or to
        growing sets where all would be too many ops. Where spacings are known, the sets of two
        and three are ranks far apart. A second call begins again with the best rank, and each model
        with the best bound.
        """
        chosen: tuple[int, ...] = (max(self._by_promise(), key=self._promise),)
        left_s = limit_s
        if self._continues_alone(chosen[0]):
            outcome = self._solve(chosen, RANK_SUBSETS.share * left_s)
            left_s -= outcome.spent_s
            yield self._proven(outcome, chosen)
        while tried := self._wider(chosen):
            found: list[tuple[int, tuple[int, ...]]] = []
            share_s = left_s * self._share(tried) / len(tried)
            for wider in tried:
                if left_s <= 0 or self.should_stop():
                    return limit_s - left_s
                outcome = self._solve(wider, max(share_s, RANK_SUBSETS.shortest_trial_s))
                left_s -= outcome.spent_s
                found.append((outcome.bound_us, wider))
                yield self._proven(outcome, wider)
            chosen = max(found, key=lambda one: one[0])[1]  # the first of several
        return limit_s - left_s

    def _continues_alone(self, rank: int) -> bool:
        """Return True if a rank alone may prove more, and soon."""
        several = self.instance.holds_several and is_worth_alone(self.instance)
        return several and rank not in self.solved

    def _share(self, tried: list[tuple[int, ...]]) -> float:
        """Return the share of the remaining time for these sets."""
        if len(tried[0]) == self.instance.num_ranks:
            return 1.0
        is_far = self.spacings.say_more and tried[0] == far_apart(self.instance, 2)
        return RANK_SUBSETS.far_apart_share if is_far else RANK_SUBSETS.share

    def _wider(self, chosen: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the sets to try after the chosen one; empty after the set of all ranks."""
        ranks = range(self.instance.num_ranks)
        others = [rank for rank in ranks if rank not in chosen]
        sets: list[tuple[int, ...]] = []
        if self.spacings.say_more and len(chosen) < RANK_SUBSETS.few_ranks:
            far = far_apart(self.instance, len(chosen) + 1)
            if len(far) > len(chosen):
                sets = [far]
                if not self.instance.holds_several:
                    return sets
        if len(chosen) < RANK_SUBSETS.few_ranks:
            further = _spread(
                others,
                RANK_SUBSETS.second_rank_trials
                if len(chosen) == 1
                else RANK_SUBSETS.further_rank_trials,
            )
            sets += [tuple(sorted((*chosen, rank))) for rank in further]
            return list(dict.fromkeys(sets))
        if others and self.instance.num_ops <= RANK_SUBSETS.most_ops:
            return [tuple(ranks)]
        sets = [
            tuple(sorted((*chosen, rank)))
            for rank in _spread(others, RANK_SUBSETS.further_rank_trials)
        ]
        return [wider for wider in sets if _num_ops(self.instance, wider) <= RANK_SUBSETS.most_ops]

    def _solve(self, ranks: tuple[int, ...], limit_s: float) -> ModelOutcome:
        began_s = time.monotonic()
        value_us, hint = self.reference()
        has_pairs = Part.PASSING_PAIRS not in self.options.without and len(ranks) > 1
        if has_pairs:
            self.options.report_part(Part.PASSING_PAIRS)
        model = model_of(
            self.instance,
            self.objective,
            value_us,
            ranks,
            self.spacings,
            passing_pairs=has_pairs,
            closed_forms=Part.CLOSED_FORMS not in self.options.without,
        )
        model.at_least(min(self.proven_us, value_us))
        if hint is not None:
            model.hint(hint, value_us)
        outcome = run(model, self.options, limit_s, should_stop=self.should_stop, began_s=began_s)
        bound_us = value_us if outcome.infeasible else min(outcome.bound_us, value_us)
        self.proven_us = max(self.proven_us, bound_us)
        return replace(outcome, bound_us=bound_us)

    def _proven(self, outcome: ModelOutcome, ranks: tuple[int, ...]) -> ProvenBound:
        """Certify a bound. An earlier bound is no lemma: it only says where the search begins."""
        first = self.instance[0]
        lemmas = self.spacings.lemmas(first.last) if first.rank in ranks else ()
        counts = (c.num_micro_batches for c in self.instance.copies if c.rank in ranks)
        certificate = Certificate(
            prover=self.prover,
            ranks=ranks,
            num_micro_batches=max(counts),
            forward_spacings=lemmas,
        )
        return ProvenBound(outcome.bound_us, certificate)

    @classmethod
    def recheck(cls, certificate: Certificate, again: Rechecker) -> None:
        """Prove the spacings, then that the model of the ranks has no value below the claim."""
        ranks = again.ranks(certificate.ranks)
        known = recheck_spacings(certificate.forward_spacings, again)
        model = model_of(again.instance, again.objective, again.claimed_us - 1, ranks, known)
        again.refute_below(model, again.claimed_us)


def model_of(
    instance: Instance,
    objective: Objective,
    value_us: int,
    ranks: tuple[int, ...],
    spacings: Spacings,
    *,
    passing_pairs: bool = True,
    closed_forms: bool = True,
) -> ExactModel:
    """Make the exact model of some ranks, with the spacings that are known.

    Args:
        value_us: upper limit of the objective.
        passing_pairs: let ops pass each other on omitted ranks one at a time.
        closed_forms: begin from the closed forms of all ranks.
    """
    # In a model of so few ranks memory can be counted for more ops of each.
    are_few = len(ranks) <= RANK_SUBSETS.few_ranks
    model = ExactModel(
        instance,
        objective,
        value_us,
        ranks,
        passing_pairs=passing_pairs and len(ranks) > 1,
        most_counted=(
            EXACT_MODEL.most_counted_ops_of_few_ranks if are_few else EXACT_MODEL.most_counted_ops
        ),
        tune=partial(_tune, num_ranks=len(ranks)),
    )
    if closed_forms and objective.is_sum:
        model.both_at_least(work_bounds(instance))
    _add_caps_in_flight(model.ops)
    if (0, OpIndex(F, 0)) in model.ops.start:
        spacings.add_to(model.ops, model.spans)
    return model


def _add_caps_in_flight(ops: OpVariables) -> None:
    """Let F's wait for B's where memory requires it; this follows from the limit, and propagates.

    The caps are proven in `instance.in_flight`. Where a rank holds one stage, all its memory is
    such precedences already.
    """
    for copy, freed, most in in_flight_caps(ops.instance):
        if copy in ops.copies and not ops.instance.is_alone(copy):
            for k in range(most, ops.instance[copy].num_micro_batches):
                ops.cp.add(ops.start[copy, OpIndex(F, k)] >= ops.end(freed, OpIndex(B, k - most)))


def _tune(parameters: cp_model.SatParameters, num_ranks: int) -> None:
    """Search from below, with precedence literals where several ranks are modelled."""
    search_from_below(parameters)
    if num_ranks >= RANK_SUBSETS.ranks_with_precedence_literals:
        parameters.use_strong_propagation_in_disjunctive = True
        parameters.max_size_to_create_precedence_literals_in_disjunctive = (
            RANK_SUBSETS.most_ops_with_precedence_literals
        )


def _spread(ranks: list[int], most: int) -> list[int]:
    """Return a few of the ranks, far apart."""
    size = min(len(ranks), most)
    return [ranks[(2 * i + 1) * len(ranks) // (2 * size)] for i in range(size)]


BOUND = RankSubsets
