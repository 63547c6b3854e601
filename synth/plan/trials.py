"""Choosing placement and partition: a trial of each, a longer one of the best few, then the best.

Each trial starts from the best schedule that the one before it found for that candidate. One is out
as soon as its proven bound says that it cannot win, and what an ended trial leaves of its time is
for those that come after it.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from synth.plan import cut_bounds
from synth.plan.candidates import Candidate, Chosen, Cut, Tried, merit
from synth.plan.cuts import CutSearch
from synth.plan.further_cuts import FurtherCuts
from synth.plan.recompute import bounds_of_any_choice
from synth.plan.repartition import solve_repartitioning
from synth.plan.solve_recompute import Listeners, OnImprovement
from synth.profile import Profile
from synth.solve.feasible import needed_bytes
from synth.solve.problem import (
    Incumbent,
    Problem,
    Result,
    Rival,
    SolveOptions,
    StoppedBy,
    relative_gap,
)

# Of the time that is left, for a trial of every candidate, then for one of the best few, which are
# so many times as long as the best at most. Of the time limit, the least for which it is worth to
# begin once more.
_FIRST_SHARE = 0.3
_SECOND_SHARE = 0.4
_FEW = 3
_NEAR = 1.03
_LEAST_SHARE = 0.02

# Before these, for looking for partitions, and of that for proofs; and how many partitions have a
# trial, that to begin with among them: of one placement, and of each where there are several.
_CUTS_SHARE = 0.15
_PROOFS_SHARE = 0.6
_CUTS = 3
_CUTS_OF_EACH = 2

# Before that, for the partition to begin with, where there are no bounds of all partitions.
_START_SHARE = 0.5

# After them, for partitions that were not among them, and again when all near the best are over, or
# what is open of them is so small a part of what is open of others.
_FURTHER_SHARE = 0.25
_OWN_SHARE = 0.5


def solve_best_of(
    candidates: Sequence[Candidate],
    profile: Profile,
    cut: Cut = Cut.EVEN,
    options: SolveOptions | None = None,
    listeners: Listeners = lambda problem: None,
    stop: threading.Event | None = None,
) -> Chosen:
    """The best schedule found for any of the candidates.

    Args:
        candidates: at least one, all of one objective; the first ones win ties.
        profile: what their costs were cut from.
        cut: whether the partitions stay; where they are searched, it begins with those given.
        options: the time limit is for all candidates together. A hint is for none of them.
        listeners: called with the problem of each trial; who it returns hears of what is better
            than all before.
    """
    options, stop = options or SolveOptions(), stop or threading.Event()
    return _Trials(candidates, profile, cut, options, listeners, stop).run()


def nothing_fits(name: str, message: str) -> str:
    """Why nothing fits on any placement, in the words of the one that needs the least."""
    return f"on all placements nothing fits; on {name}, which needs the least: {message}"


class _Trials:
    """The trials so far."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        profile: Profile,
        cut: Cut,
        options: SolveOptions,
        listeners: Listeners,
        stop: threading.Event,
    ) -> None:
        self.profile, self.cut, self.options = profile, cut, options
        self.listeners, self.stop = listeners, stop
        self.began = time.monotonic()
        self.granted_s = 0.0
        self.candidates = candidates
        self.further: dict[str, FurtherCuts] = {}
        self.tried: list[Tried] = []
        self.told_us: tuple[int, int] | None = None
        self.is_over = False  # nothing more can be done, though there is time

    def _begin(self) -> None:
        """Look for partitions, if that is asked for; then all candidates are known.

        Where ranks hold several stages, a partition is best judged by what a good order makes of
        it, so that comes first.
        """
        first = self.candidates[0]
        if self.cut != Cut.SEARCHED:
            self.tried = [self._new(candidate) for candidate in self.candidates]
            return
        if len(self.candidates) == 1 and not cut_bounds.applies(first.problem):
            self.tried = [self._new(first)]
            self._try(self.tried[0], _START_SHARE * self.options.time_limit_s)
        self._cut()

    def _new(self, candidate: Candidate) -> Tried:
        """Nothing is known of it but a closed bound, or what is known of its partition."""
        problem = candidate.problem
        bound_us = problem.objective.value_us(bounds_of_any_choice(problem))
        if problem.partition is not None and candidate.name in self.further:
            bound_us = max(bound_us, self.further[candidate.name].bound_us(problem.partition))
        return Tried(candidate, bound_us)

    def _cut(self) -> None:
        """Try each candidate on the partitions that look best, if there are several on the best."""
        count, until_s = len(self.candidates), self._moment_s(_CUTS_SHARE)
        for place, candidate in enumerate(self.candidates):
            limit_s = self._left_s(until_s) / (count - place)
            search = self._looked_for(candidate, limit_s)
            bounds = search.bounds_of_all() if candidate.choice == () else None
            self.further[candidate.name] = FurtherCuts(search, bounds)
            known = self._cuts_of(candidate.name)
            found = map(candidate.on, search.best(_CUTS if count == 1 else _CUTS_OF_EACH))
            self.tried += [self._new(one) for one in found if one.problem.partition not in known]

    def _looked_for(self, candidate: Candidate, limit_s: float) -> CutSearch:
        """Look for partitions, where nothing fits without with stages that recompute."""
        self.granted_s += limit_s
        late_s = time.monotonic() + limit_s
        options = replace(self.options, time_limit_s=_PROOFS_SHARE * limit_s)
        asked = (self.profile, candidate.problem, limit_s, partial(self._is_late, late_s))
        best = self._best_of(candidate.name)
        order = None if best is None else best.schedule
        search = CutSearch(*asked, candidate.choice or (), options, order)
        if not search.run() and candidate.choice is None:
            search = CutSearch(*asked, range(candidate.problem.costs.num_stages), options)
            search.run()
        return search

    def _moment_s(self, share: float) -> float:
        """When a share of what is left of the time will be over."""
        limit_s = self.options.time_limit_s
        return limit_s - (1 - share) * self._left_s(limit_s)

    def _is_late(self, at_s: float) -> bool:
        late = not self.options.deterministic and time.monotonic() > at_s
        return late or self.stop.is_set()

    def run(self) -> Chosen:
        self._begin()
        limit_s = self.options.time_limit_s
        if len(self.tried) > 1:
            untried = [one for one in self._promising() if one.found is None]
            self._round(untried, self._moment_s(_FIRST_SHARE))
        if len(near := self._near()[:_FEW]) > 1:
            self._round(near, self._moment_s(_SECOND_SHARE))
        if self._is_of_all_cuts:
            self._try_further()
        while self._has_time(limit_s):
            near, promising = self._near(), self._promising()
            if near and not self._is_of_others(near[0], promising):
                waiting = sum(tried.found is None for tried in near) + self._others_can_win
                self._try(near[0], self._left_s(limit_s) / (waiting + 1))
            elif not self._try_further() and not self._try_least(promising):
                self.is_over = self._has_time(limit_s)
                break
        if all(tried.found is None for tried in self.tried):
            self._try(self.tried[0], limit_s)  # with what little time there was
        return self._result()

    @property
    def _is_of_all_cuts(self) -> bool:
        """Whether there are bounds of all partitions of all candidates."""
        further = self.further.values()
        return bool(further) and all(cuts.bounds is not None for cuts in further)

    def _has_time(self, until_s: float) -> bool:
        """Whether it is worth to begin once more before a moment of the search."""
        least_s = _LEAST_SHARE * self.options.time_limit_s
        return not self.stop.is_set() and self._left_s(until_s) > least_s

    def _is_of_others(self, best: Tried, promising: Sequence[Tried]) -> bool:
        """Whether most of what is open is not of the best candidate, but of others."""
        if best.value_us is None or not self._is_of_all_cuts:
            return False
        others = (one.lower_bound_us for one in promising if one is not best)
        others_us = min(self._others_us(), *others, best.value_us)
        own = relative_gap(best.value_us, best.lower_bound_us)
        return own < _OWN_SHARE * relative_gap(best.value_us, others_us)

    @property
    def _others_can_win(self) -> bool:
        """Whether a partition that was not tried may be better, by such bounds."""
        if not self._is_of_all_cuts:
            return False
        # What was judged by all micro-batches counts as well, where nothing is found yet.
        judged = [c.search.best_us for c in self.further.values() if c.bounds is c.search.bounds]
        values = [self._best_us] if self._best_us is not None else judged
        best_us = min((us for us in values if us is not None), default=None)
        if best_us is None:
            return True
        return relative_gap(best_us, min(best_us, self._others_us())) > self.options.gap

    def _others_us(self) -> int:
        """What no partition that was not tried can beat, where there are such bounds."""
        least = (cuts.least_us(self._cuts_of(name)) for name, cuts in self.further.items())
        return min(bound_us for bound_us in least if bound_us is not None)

    def _try_further(self) -> bool:
        """Try partitions that were not among the first and look good; whether there were any."""
        began, until_s = len(self.tried), self._moment_s(_FURTHER_SHARE)
        while self._has_time(until_s) and (further := self._next_further(until_s)):
            self.tried.append(further)
            self._try(further, self._left_s(until_s) / 2)
        return len(self.tried) > began

    def _next_further(self, until_s: float) -> Tried | None:
        """One more partition that can win; None: there is none, or none is found in time."""
        for name, cuts in self.further.items():
            while self._has_time(until_s):
                left_s = self._left_s(until_s) / 2
                options = replace(self.options, time_limit_s=left_s)
                is_late = partial(self._is_late, time.monotonic() + left_s)
                asked = (self._cuts_of(name), self._best_us, options, is_late)
                problem, spent_s = cuts.next(*asked)
                if problem is None:
                    self.granted_s += spent_s
                    break
                if one := self._further(name, problem, spent_s):
                    return one
        return None

    def _further(self, name: str, problem: Problem, spent_s: float) -> Tried | None:
        """A partition that was chosen, if it can win."""
        self.granted_s += spent_s
        candidate = next(one for one in self.candidates if one.name == name)
        one = self._new(candidate.on(problem))
        if self._can_win(one):
            return one
        self.further[name].leave_out(problem, one.lower_bound_us)
        return None

    def _try_least(self, promising: Sequence[Tried]) -> bool:
        """Try what bounds say least of, whatever it looks like; whether there is anything."""
        limit_s, least = self.options.time_limit_s, list(promising)
        for name, cuts in self.further.items():
            one = None
            while one is None and self._has_time(limit_s):
                asked = (self._cuts_of(name), self._best_us or 0, self.options.gap)
                problem, spent_s = cuts.least(*asked)
                if problem is None:
                    break
                one = self._further(name, problem, spent_s)
            least += [one] if one is not None else []
        if not least or not self._has_time(limit_s):
            return False
        one = min(least, key=lambda tried: tried.lower_bound_us)
        if one not in promising:
            self.tried.append(one)
        is_last = one in promising and len(least) == 1
        self._try(one, (1 if is_last else _FURTHER_SHARE) * self._left_s(limit_s))
        return True

    @property
    def _best_us(self) -> int | None:
        """The best value found."""
        values = (one.value_us for one in self.tried)
        return min((value_us for value_us in values if value_us is not None), default=None)

    def _cuts_of(self, name: str) -> list[tuple[int, ...]]:
        """The partitions that were tried or are to be."""
        problems = (one.problem for one in self.tried if one.name == name)
        return [problem.partition for problem in problems if problem.partition is not None]

    def _round(self, those: Sequence[Tried], until_s: float) -> None:
        for place, tried in enumerate(those):
            self._try(tried, self._left_s(until_s) / (len(those) - place))

    def _left_s(self, until_s: float) -> float:
        """What is left until a moment of the search; a deterministic one counts what it gave."""
        if self.options.deterministic:
            return until_s - self.granted_s
        return until_s - (time.monotonic() - self.began)

    def _promising(self) -> list[Tried]:
        """Those that may still win: what was not tried yet, then the best ones first."""
        ranked = sorted(self._ranked(), key=lambda tried: tried.found is not None)
        return [tried for tried in ranked if self._can_win(tried)]

    def _near(self) -> list[Tried]:
        """Of those that may still win, what is not far behind the best one."""
        most_us, promising = _NEAR * (self._best_us or 0), self._promising()
        return [one for one in promising if one.value_us is None or one.value_us <= most_us]

    def _ranked(self) -> list[Tried]:
        """The best ones first; those that were not tried behind those that were."""
        return sorted(
            self.tried,
            key=lambda tried: (merit(tried.value_us), tried.found is None, tried.is_impossible),
        )

    def _can_win(self, tried: Tried) -> bool:
        best_us = self._best_us
        # The bound says nothing of another cut, which the first trial may come to.
        is_new = tried.found is None and self.cut == Cut.EVEN and tried.candidate.choice != ()
        if tried.is_over or is_new or best_us is None:
            return not tried.is_over
        return relative_gap(best_us, tried.lower_bound_us) > self.options.gap

    def _try(self, tried: Tried, limit_s: float) -> None:
        """Search on one placement, from the best that is known there; on the first in any case."""
        is_first = all(other.found is None for other in self.tried)
        is_late = self.stop.is_set() or limit_s <= 0
        if not is_first and (is_late or not self._can_win(tried)):
            return
        self.granted_s += limit_s
        options = replace(self.options, time_limit_s=limit_s, hint=None)
        start = tried.found or self._best_of(tried.name)
        found = solve_repartitioning(
            self.profile if self.cut == Cut.EVEN else None,
            tried.candidate.problem,
            tried.candidate.choice,
            options if start is None else options.going_on_from(start),
            lambda problem: self._tell(tried, problem),
            self.stop,
        )
        tried.take(found)

    def _best_of(self, name: str) -> Result | None:
        """The best found on a placement, whose order may serve another partition too."""
        found = (one.found for one in self._ranked() if one.name == name)
        best = next((one for one in found if one is not None), None)
        keeps = best is not None and best.schedule is not None and best.schedule.keeps_saved
        return best if keeps else None

    def _tell(self, tried: Tried, problem: Problem) -> OnImprovement | None:
        """Tell of what is better than all before, or of a better bound that holds for all."""
        listener = self.listeners(problem)
        if listener is None:
            return None

        def tell(incumbent: Incumbent) -> None:
            own_us = max(tried.bound_on(problem), incumbent.lower_bound_us)
            others = [other.lower_bound_us for other in self._possible() if other is not tried]
            others += [self._others_us()] if self._is_of_all_cuts else []
            bound_us = min(incumbent.value_us, own_us, *others)
            news = (incumbent.value_us, -bound_us)
            if self.told_us is None or news < self.told_us:
                self.told_us = news
                elapsed_s = time.monotonic() - self.began
                listener(replace(incumbent, elapsed_s=elapsed_s, lower_bound_us=bound_us))

        return tell

    def _possible(self) -> Iterator[Tried]:
        return (tried for tried in self.tried if not tried.is_impossible)

    def _result(self) -> Chosen:
        ranked = self._ranked()
        best = ranked[0].found  # the first one is always tried
        assert best is not None
        bound_us = min((tried.lower_bound_us for tried in self._possible()), default=0)
        if best.value_us is None:
            best = self._without_schedule(best)
        else:
            others_us = self._others_us() if self._is_of_all_cuts else bound_us
            bound_us = min(bound_us, others_us, best.value_us)
        result = replace(
            best,
            lower_bound_us=bound_us,
            rivals=tuple(self._rivals()),
            wall_s=time.monotonic() - self.began,
            stopped_by=self._stopped(best, bound_us),
        )
        return Chosen(result, tuple(ranked), self._is_of_all_cuts)

    def _without_schedule(self, found: Result) -> Result:
        """Nothing at all: where nothing fits for certain, the placement that needs the least."""
        if not all(tried.is_impossible for tried in self.tried):
            reason = StoppedBy.INTERRUPT if self.stop.is_set() else StoppedBy.TIME_LIMIT
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
            if tried.found is None or tried.name in placements:
                continue
            placements.add(tried.name)
            for rival in tried.found.rivals:
                if rival.name not in names:
                    names.add(rival.name)
                    yield rival

    def _stopped(self, best: Result, bound_us: int) -> StoppedBy:
        """Why the search ends here, in terms of all candidates."""
        if best.value_us is None:
            return best.stopped_by
        if best.value_us <= bound_us:
            return StoppedBy.OPTIMAL
        if self.stop.is_set():
            return StoppedBy.INTERRUPT
        if relative_gap(best.value_us, bound_us) <= self.options.gap:
            return StoppedBy.GAP
        return StoppedBy.EXHAUSTED if self.is_over else StoppedBy.TIME_LIMIT
