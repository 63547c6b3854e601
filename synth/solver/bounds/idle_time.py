"""Bounds from the least idle time of each rank in its warm-up and its drain."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from synth.objective import Objective, Spans
from synth.schedule.files.certificate import Certificate, IdleTime, ProvenBound, ProverName
from synth.solver.bounds.bound import BoundSetting, Reference, rank_by_rank
from synth.solver.bounds.closed_form import work_bounds_of_search
from synth.solver.bounds.idle_time_agenda import IdleAgenda, IdleGrowth
from synth.solver.bounds.idle_time_model import (
    End,
    IdleTimes,
    LeastIdle,
    Stretch,
    base_length_us,
    idle_time_model,
)
from synth.solver.bounds.idle_time_sums import IdleTimeSums
from synth.solver.bounds.rechecker import Rechecker
from synth.solver.cpsat.run import ModelOutcome, TimedBounds, run
from synth.solver.instance.instance import Instance
from synth.solver.options import Part, SolveOptions
from synth.solver.tuning import IDLE_TIME


@dataclass
class IdleBounds:
    """Bounds from the work of a rank plus its least idle time at both ends.

    Attributes:
        work: closed-form bounds.
        reference: called at the beginning of each proof for the best value known then.
        should_stop: polled during each proof.
        least_us: proven idle times by the length of the stretch.
    """

    part: ClassVar[Part] = Part.IDLE_TIME
    prover: ClassVar[ProverName] = ProverName.IDLE_TIME

    instance: Instance
    objective: Objective
    options: SolveOptions
    work: Spans
    reference: Callable[[], Reference]
    should_stop: Callable[[], bool]
    least_us: IdleTimes = field(default_factory=dict)

    @classmethod
    def of(cls, setting: BoundSetting) -> Self | None:
        """Begin from the idle times known.

        None where the origins of the ranks vary and the period counts.
        """
        if setting.objective.periods and setting.instance.origins_us is None:
            return None
        return cls(
            setting.instance,
            setting.objective,
            # One worker searches from below; further ones would look for schedules.
            replace(setting.exact_options, workers=1),
            work_bounds_of_search(setting.instance, setting.options),
            setting.reference,
            setting.should_stop,
            setting.known.idle_us,
        )

    def __post_init__(self) -> None:
        self._sums = IdleTimeSums(self.instance, self._is_period, self.least_us)
        # Idle times of pairs of ranks in the warm-up; the agenda, once all pairs are solved; and
        # models not solved since `prove` was called.
        self._pairs: dict[IdleGrowth, int] = {}
        self._agenda: IdleAgenda | None = None
        self._unsolved: list[IdleGrowth] = []

    @property
    def _is_period(self) -> bool:
        """True if ranks are judged by their own time; it bounds the makespan too."""
        return self.objective.periods > 0

    @property
    def bound_us(self) -> int:
        """The best bound so far."""
        rank_us = self._sums.rank_us(self._sums.longest_rank())
        spans = Spans.most([self.work, Spans(rank_us, rank_us if self._is_period else 0)])
        return min(self.reference().value_us, self.objective.value_us(spans))

    def _proven(self) -> ProvenBound:
        """Return the bound with the lemmas of the rank with the largest least time."""
        rank = self._sums.longest_rank()
        lemmas = tuple(self._sums.lemmas(rank))
        counts = [lemma.num_micro_batches for lemma in lemmas]
        certificate = Certificate(
            prover=self.prover,
            ranks=(rank,),
            num_micro_batches=max(counts, default=None),
            idle_times=lemmas,
        )
        return ProvenBound(self.bound_us, certificate)

    def one_by_one(self, limit_s: float) -> Iterator[ProvenBound]:
        """Yield bounds from the warm-up of each rank alone, which is solved quickly.

        Args:
            limit_s: for all of them; seconds of the clock, or deterministic ones.
        """

        def prove(rank: int, limit_s: float) -> tuple[ProvenBound, float]:
            spent_s = self._solve(IdleGrowth(End(rank, True), (rank,)), limit_s).spent_s
            return self._proven(), spent_s

        # Python's sort keeps ranks of equal work in order.
        ranks = sorted(range(self.instance.num_ranks), key=lambda rank: -self._sums.rank_us(rank))
        yield from rank_by_rank(ranks, IDLE_TIME.first_rank_share, limit_s, prove, self.should_stop)

    def prove(self, limit_s: float) -> TimedBounds:
        """Yield bounds of the most promising rank, from more ranks and longer stretches.

        The warm-up, which is solved more quickly, selects the ranks to add. A stretch whose growth
        was all idle time grows again at once. A second call continues, first with the models not
        solved.

        Args:
            limit_s: seconds of the clock, or deterministic ones.
        """
        left_s = limit_s
        self._resume()
        while left_s > 0 and not self.should_stop() and (growth := self._next()):
            left_s -= self._try(growth, IDLE_TIME.share_of_one * left_s)
            yield self._proven()
        return limit_s - left_s

    def _resume(self) -> None:
        unsolved, self._unsolved = self._unsolved, []
        if self._agenda is None:
            self._pairs = {p: us for p, us in self._pairs.items() if p not in unsolved}
        else:
            self._agenda.resume(unsolved)

    def _next(self) -> IdleGrowth | None:
        """Return the next pair of ranks, or else the next model of the agenda."""
        if self._agenda is None:
            rank = self._most_promising() if not self._pairs else next(iter(self._pairs)).end.rank
            pairs = (IdleGrowth(End(rank, True), (rank, *other)) for other in self._partners(rank))
            pair = next((pair for pair in pairs if pair not in self._pairs), None)
            if pair is not None:
                return pair
            self._agenda = IdleAgenda(self._after(self._pairs))
        return self._agenda.next()

    def _try(self, growth: IdleGrowth, limit_s: float) -> float:
        """Solve a model, queue larger ones, and return the seconds spent."""
        length_us, before_us = self._length_us(growth), self._sums.rank_us(growth.end.rank)
        outcome = self._solve(growth, limit_s)
        if not outcome.optimal:
            self._unsolved.append(growth)
        if self._agenda is None:
            self._pairs[growth] = outcome.bound_us
        else:
            gained_us = self._sums.rank_us(growth.end.rank) - before_us
            is_worth_it = gained_us > IDLE_TIME.worthwhile_share * length_us
            larger = self._larger(growth, length_us) if outcome.optimal else ()
            self._agenda.note(growth.end, outcome.spent_s, larger, is_worth_it)
        return outcome.spent_s

    def _after(self, pairs: Mapping[IdleGrowth, int]) -> Iterator[IdleGrowth]:
        """Yield the first models of the agenda, once all pairs were solved for the warm-up."""
        best, *others = sorted(pairs, key=lambda growth: -pairs[growth])
        best = replace(best, further=tuple(rank for other in others for rank in other.ranks[1:]))
        yield replace(best, end=End(best.end.rank, False))
        yield from self._larger(best, self._length_us(best))

    def _larger(self, growth: IdleGrowth, length_us: int) -> Iterator[IdleGrowth]:
        """Yield the larger models to try after this one, whose stretch has the given length."""
        longer = replace(growth, stretched=IDLE_TIME.growth * growth.stretched)
        if self._length_us(longer) > IDLE_TIME.least_growth * length_us:
            yield longer
        if growth.further:
            ranks = (*growth.ranks, growth.further[0])
            yield replace(growth, ranks=ranks, further=growth.further[1:])

    def _most_promising(self) -> int:
        """Return the rank with the longest round trip among those with nearly the best bound."""
        ranks = range(self.instance.num_ranks)
        enough_us = IDLE_TIME.nearly_best_share * max(self._sums.rank_us(rank) for rank in ranks)
        nearly = [rank for rank in ranks if self._sums.rank_us(rank) >= enough_us]
        return max(nearly, key=lambda rank: base_length_us(self.instance, rank))

    def _partners(self, rank: int) -> list[tuple[int, ...]]:
        """Return other ranks, far apart, farthest first; one empty tuple if there are none."""
        others = [other for other in range(self.instance.num_ranks) if other != rank]
        size = min(len(others), IDLE_TIME.second_rank_trials)
        some = [others[(2 * i + 1) * len(others) // (2 * size)] for i in range(size)]
        return [(other,) for other in sorted(some, key=lambda other: -abs(other - rank))] or [()]

    def _length_us(self, growth: IdleGrowth) -> int:
        """Return the length of a stretch, cut so that the shortest one at the other end fits."""
        rank = growth.end.rank
        shortest_us = base_length_us(self.instance, rank)
        length_us = round(growth.stretched * shortest_us)
        if not self._is_period:
            length_us += min(self.instance.head_us[copy] for copy in self.instance.held[rank])
        other_us = min(shortest_us, self._sums.work_us(rank) // 2)
        return min(length_us, self._sums.rank_us(rank) - other_us)

    def _solve(self, growth: IdleGrowth, limit_s: float) -> ModelOutcome:
        end, length_us = growth.end, self._length_us(growth)
        stretch = Stretch(end.rank, length_us, end.is_opening, self._is_period)
        longest_us = self.instance.longest_us(self.objective, self.reference().value_us)
        model = idle_time_model(self.instance, stretch, growth.ranks, longest_us)
        outcome = run(model, self.options, limit_s, should_stop=self.should_stop)
        self._sums.add(end, length_us, LeastIdle(outcome.bound_us, growth.ranks))
        return outcome

    @classmethod
    def recheck(cls, certificate: Certificate, again: Rechecker) -> None:
        """Prove the idle times of one rank, and add them to its work."""
        is_period = again.objective.periods > 0
        again.require(not is_period or again.instance.origins_us is not None)
        ranks = again.ranks(certificate.ranks)
        again.require(len(ranks) == 1)
        known: IdleTimes = {}
        for lemma in certificate.idle_times:
            stretch = Stretch(ranks[0], lemma.length_us, lemma.is_opening, is_period)
            _recheck_idle_time(lemma, stretch, again)
            of_end = known.setdefault(End(ranks[0], lemma.is_opening), {})
            of_end[lemma.length_us] = LeastIdle(lemma.least_us, lemma.ranks)
        claimed = Reference(again.claimed_us, None)
        bounds = cls(
            instance=again.instance,
            objective=again.objective,
            options=again.options,
            work=again.work,
            reference=lambda: claimed,
            should_stop=again.should_stop,
            least_us=known,
        )
        again.require(bounds.bound_us >= again.claimed_us)


def _recheck_idle_time(lemma: IdleTime, stretch: Stretch, again: Rechecker) -> None:
    """Prove the idle time of a rank in all schedules below the claim."""
    ranks = again.ranks(lemma.ranks)
    again.require(stretch.rank in ranks and 0 < lemma.length_us < again.claimed_us)
    longest_us = again.instance.longest_us(again.objective, again.claimed_us - 1)
    model = idle_time_model(again.instance, stretch, ranks, longest_us)
    again.refute(model, model.value, lemma.least_us)


BOUND = IdleBounds
