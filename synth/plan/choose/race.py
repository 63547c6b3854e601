"""Candidates against each other: what was found of each, which can still win, and the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from synth.certificate import Certificate, PartitionProof, ProverName
from synth.objective import BoundScope
from synth.plan.choose.candidates import Candidate, Chosen, Cut, Tried
from synth.plan.partition.paths import Sizes
from synth.plan.partition.queue import FurtherCuts
from synth.plan.recompute.choice import bound_us as closed_bound_us
from synth.solve.infeasibility import needed_bytes
from synth.solve.problem import Problem, Result, Rival, StoppedBy, merit, relative_gap

# So many times as long as the best at most is near it.
_NEAR = 1.03

# What is open of the best is little where it is less than so much of what is open of the others.
_OWN_SHARE = 0.5


class Contest:
    """All that is known of some candidates.

    Attributes:
        cut: whether their partitions stay.
        gap: what is open of the best at most for the others to be out.
        tried: what was found of each, also of those that are yet to be tried.
        is_judged: published schedules were judged before all trials, and some fit.
        further: of each placement by its name, where partitions are searched, which to try next.
    """

    def __init__(self, candidates: Sequence[Candidate], cut: Cut, gap: float) -> None:
        self.candidates, self.cut, self.gap = candidates, cut, gap
        self.further: dict[str, FurtherCuts] = {}
        self.tried: list[Tried] = []
        self.is_judged = False

    def new(self, candidate: Candidate) -> Tried:
        """Nothing is known of it but a closed bound, or what is known of its partition."""
        problem = candidate.problem
        bound_us = closed_bound_us(problem, candidate.choice)
        if problem.partition is not None and candidate.name in self.further:
            bound_us = max(bound_us, self.further[candidate.name].bound_us(problem.partition))
        return Tried(candidate, bound_us)

    def admitted(self, name: str, problem: Problem) -> Tried | None:
        """One more partition of a placement, if it can win; else it is never asked for again."""
        candidate = next(one for one in self.candidates if one.name == name)
        tried = self.new(candidate.on(problem))
        if self.can_win(tried):
            return tried
        self.further[name].leave_out(problem, tried.lower_bound_us)
        return None

    # What was found

    @property
    def best_us(self) -> int | None:
        """The best value found."""
        values = (one.value_us for one in self.tried)
        return min((value_us for value_us in values if value_us is not None), default=None)

    @property
    def is_untried(self) -> bool:
        """Whether nothing was tried yet."""
        return all(tried.found is None for tried in self.tried)

    def best_of(self, name: str) -> Result | None:
        """The best found on a placement, whose order may serve another partition too."""
        found = (one.found for one in self._ranked() if one.name == name and not one.is_fixed)
        best = next((one for one in found if one is not None), None)
        return None if best is None or best.schedule is None else best

    def cuts_of(self, name: str) -> list[tuple[int, ...]]:
        """The partitions of a placement that were tried or are to be."""
        problems = (one.problem for one in self.tried if one.name == name)
        return [problem.partition for problem in problems if problem.partition is not None]

    def _ranked(self) -> list[Tried]:
        """The best ones first; those that were not tried behind those that were."""
        return sorted(
            self.tried,
            key=lambda tried: (merit(tried.value_us), tried.found is None, tried.is_impossible),
        )

    # Which can win

    def can_win(self, tried: Tried) -> bool:
        """Whether it may still be better than all others."""
        best_us = self.best_us
        # The bound says nothing of another cut, which the first trial may come to.
        is_new = tried.found is None and self.cut == Cut.EVEN and tried.candidate.choice != ()
        if tried.is_over or is_new or best_us is None:
            return not tried.is_over
        return relative_gap(best_us, tried.lower_bound_us) > self.gap

    def promising(self) -> list[Tried]:
        """Those that may still win, the best ones first."""
        return [tried for tried in self._ranked() if self.can_win(tried)]

    def near(self, times: float = _NEAR, *, is_first_round: bool = False) -> list[Tried]:
        """Of those that may still win, what is not far behind the best one.

        Candidates on which no published schedule fits are behind once others were judged, but may
        have a trial in the first round.
        """
        most_us, promising = times * (self.best_us or 0), self.promising()
        with_unknown = is_first_round or not self.is_judged
        return [
            one
            for one in promising
            if (with_unknown if one.value_us is None else one.value_us <= most_us)
        ]

    @property
    def is_of_all_cuts(self) -> bool:
        """Whether there are bounds of all partitions of all candidates."""
        further = self.further.values()
        is_of_each = {candidate.name for candidate in self.candidates} == self.further.keys()
        return is_of_each and all(cuts.bounds is not None for cuts in further)

    @property
    def bound_scope(self) -> BoundScope:
        """What `bound_us` holds for."""
        return BoundScope.ALL if self.is_of_all_cuts else BoundScope.CANDIDATES

    @property
    def others_can_win(self) -> bool:
        """Whether a partition that was not tried may be better, by such bounds."""
        if not self.is_of_all_cuts:
            return False
        # What was judged by all micro-batches counts as well, where nothing is found yet.
        judged = [c.search.best_us for c in self.further.values() if c.bounds is c.search.bounds]
        values = [self.best_us] if self.best_us is not None else judged
        best_us = min((us for us in values if us is not None), default=None)
        if best_us is None:
            return True
        return relative_gap(best_us, min(best_us, self._others_us())) > self.gap

    def is_of_others(self, best: Tried, promising: Sequence[Tried]) -> bool:
        """Whether most of what is open is not of the best candidate, but of others."""
        if best.value_us is None or not self.is_of_all_cuts:
            return False
        others = (one.lower_bound_us for one in promising if one is not best)
        others_us = min(self._others_us(), *others, best.value_us)
        own = relative_gap(best.value_us, best.lower_bound_us)
        return own < _OWN_SHARE * relative_gap(best.value_us, others_us)

    def _others_us(self) -> int:
        """What no partition that was not tried can beat, where there are such bounds."""
        least = (cuts.least_us(self.cuts_of(name)) for name, cuts in self.further.items())
        return min(bound_us for bound_us in least if bound_us is not None)

    # What it comes to

    def bound_us(self, value_us: int, tried: Tried, own_us: int) -> int:
        """What holds for all, where a value was found and a bound on one candidate is proven."""
        others = [other.lower_bound_us for other in self._possible() if other is not tried]
        others += [self._others_us()] if self.is_of_all_cuts else []
        return min(value_us, own_us, *others)

    def certificate(
        self, bound_us: int, tried: Tried, own: Certificate | None
    ) -> Certificate | None:
        """The certificate of a bound of all partitions, or else of the bound on one candidate.

        Args:
            tried: the candidate.
            own: the certificate of the bound on it.
        """
        if not self.is_of_all_cuts:
            return own
        if len(self.further) > 1:
            return None
        ((name, cuts),) = self.further.items()
        proven: dict[Sizes | None, Certificate | None] = dict.fromkeys(cuts.out)
        of_name = (one for one in self.tried if one.name == name)
        proven |= {one.problem.partition: one.certificate for one in of_name}
        proven[tried.problem.partition] = own
        closed = Certificate(prover=ProverName.CLOSED_FORMS)
        proofs = (
            PartitionProof(sizes=sizes, certificate=certificate or closed)
            for sizes, certificate in proven.items()
            if sizes is not None
        )
        return None if cuts.bounds is None else cuts.bounds.certificate(bound_us, proofs)

    def _possible(self, best: Tried | None = None) -> Iterator[Tried]:
        """Those that bound what can be; what no search orders bounds itself alone."""
        for tried in self.tried:
            if not tried.is_impossible and (tried is best or not tried.is_fixed):
                yield tried

    def answer(self, wall_s: float, *, is_interrupted: bool, is_over: bool) -> Chosen:
        """The best, with the bound that holds for all.

        Args:
            is_interrupted: the search was asked to stop.
            is_over: nothing more could be done, though there was time.
        """
        ranked = self._ranked()
        best = ranked[0].found  # the first one is always tried
        assert best is not None
        possible = self._possible(ranked[0])
        bound_us = min((tried.lower_bound_us for tried in possible), default=0)
        if self.is_of_all_cuts:
            bound_us = min(bound_us, self._others_us())
        if best.value_us is None:
            best = self._without_schedule(best, is_interrupted)
        else:
            bound_us = min(bound_us, best.value_us)
        result = replace(
            best,
            lower_bound_us=bound_us,
            certificate=self.certificate(bound_us, ranked[0], ranked[0].certificate),
            rivals=tuple(self._rivals()),
            wall_s=wall_s,
            stopped_by=self._stopped(best, bound_us, is_interrupted, is_over),
            bound_scope=self.bound_scope,
        )
        return Chosen(result, tuple(ranked))

    def _without_schedule(self, found: Result, is_interrupted: bool) -> Result:
        """Nothing at all: where nothing fits for certain, the placement that needs the least."""
        if not all(tried.is_impossible for tried in self.tried):
            reason = StoppedBy.INTERRUPT if is_interrupted else StoppedBy.TIME_LIMIT
            message = "no schedule was found in the time given; allow more time or more memory"
            return replace(found, stopped_by=reason, message=message)
        if len(self.tried) == 1:
            return found
        least = min(self.tried, key=lambda tried: max(needed_bytes(tried.candidate.problem)))
        assert least.found is not None
        return replace(found, message=nothing_fits(least.name, least.found.message or ""))

    def _rivals(self) -> Iterator[Rival]:
        """The published schedules, each name once, on the best candidate of each placement."""
        placements, names = set(), set()
        for tried in self._ranked():
            published = tried.published or (tried.found.rivals if tried.found else ())
            if not published or tried.name in placements:
                continue
            placements.add(tried.name)
            for rival in published:
                if rival.name not in names:
                    names.add(rival.name)
                    yield rival

    def _stopped(
        self, best: Result, bound_us: int, is_interrupted: bool, is_over: bool
    ) -> StoppedBy:
        """Why the search ends here, in terms of all candidates."""
        if best.value_us is None:
            return best.stopped_by
        if best.value_us <= bound_us:
            return StoppedBy.OPTIMAL
        if is_interrupted:
            return StoppedBy.INTERRUPT
        if relative_gap(best.value_us, bound_us) <= self.gap:
            return StoppedBy.GAP
        return StoppedBy.EXHAUSTED if is_over else StoppedBy.TIME_LIMIT


def nothing_fits(name: str, message: str) -> str:
    """Why nothing fits on any placement, in the words of the one that needs the least."""
    return f"on all placements nothing fits; on {name}, which needs the least: {message}"
