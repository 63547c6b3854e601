"""Choosing placement and partition: a trial of each, a longer one of the best few, then the best.

Each trial starts from the best schedule that the one before it found for that candidate. One is out
as soon as its proven bound says that it cannot win, and what an ended trial leaves of its time is
for those that come after it.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from synth.plan import cut_bounds
from synth.plan.candidates import Candidate, Chosen, Cut, Tried
from synth.plan.contest import Contest
from synth.plan.cuts import CutSearch
from synth.plan.further_cuts import FurtherCuts
from synth.plan.repartition import solve_repartitioning
from synth.plan.solve_recompute import Listeners, OnImprovement
from synth.profile import Profile
from synth.solve.problem import Incumbent, Problem, SolveOptions

# Of the time that is left, for a trial of every candidate, then for one of the best few. Of the
# time limit, the least for which it is worth to begin once more.
_FIRST_SHARE = 0.3
_SECOND_SHARE = 0.4
_FEW = 3
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
# little of what is open is theirs.
_FURTHER_SHARE = 0.25


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
        self.profile, self.options = profile, options
        self.listeners, self.stop = listeners, stop
        self.began = time.monotonic()
        self.granted_s = 0.0
        self.contest = Contest(candidates, cut, options.gap)
        self.told_us: tuple[int, int] | None = None
        self.is_over = False  # nothing more can be done, though there is time

    def _begin(self) -> None:
        """Look for partitions, if that is asked for; then all candidates are known.

        Where ranks hold several stages, a partition is best judged by what a good order makes of
        it, so that comes first.
        """
        contest = self.contest
        first = contest.candidates[0]
        if contest.cut != Cut.SEARCHED:
            contest.tried = [contest.new(candidate) for candidate in contest.candidates]
            return
        if len(contest.candidates) == 1 and not cut_bounds.applies(first.problem):
            contest.tried = [contest.new(first)]
            self._try(contest.tried[0], _START_SHARE * self.options.time_limit_s)
        self._cut()

    def _cut(self) -> None:
        """Try each candidate on the partitions that look best, if there are several on the best."""
        contest, until_s = self.contest, self._moment_s(_CUTS_SHARE)
        count = len(contest.candidates)
        for place, candidate in enumerate(contest.candidates):
            limit_s = self._left_s(until_s) / (count - place)
            search = self._looked_for(candidate, limit_s)
            bounds = search.bounds_of_all() if candidate.choice == () else None
            contest.further[candidate.name] = FurtherCuts(search, bounds)
            known = contest.cuts_of(candidate.name)
            best = search.best(_CUTS if count == 1 else _CUTS_OF_EACH)
            found = (candidate.on(problem) for problem in best if problem.partition not in known)
            contest.tried += [contest.new(one) for one in found]

    def _looked_for(self, candidate: Candidate, limit_s: float) -> CutSearch:
        """Look for partitions, where nothing fits without with stages that recompute."""
        self.granted_s += limit_s
        late_s = time.monotonic() + limit_s
        options = replace(self.options, time_limit_s=_PROOFS_SHARE * limit_s)
        asked = (self.profile, candidate.problem, limit_s, partial(self._is_late, late_s))
        best = self.contest.best_of(candidate.name)
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
        contest, limit_s = self.contest, self.options.time_limit_s
        if len(contest.tried) > 1:
            untried = [one for one in contest.promising() if one.found is None]
            self._round(untried, self._moment_s(_FIRST_SHARE))
        if len(near := contest.near()[:_FEW]) > 1:
            self._round(near, self._moment_s(_SECOND_SHARE))
        if contest.is_of_all_cuts:
            self._try_further()
        while self._has_time(limit_s):
            near, promising = contest.near(), contest.promising()
            if near and not contest.is_of_others(near[0], promising):
                waiting = sum(tried.found is None for tried in near) + contest.others_can_win
                self._try(near[0], self._left_s(limit_s) / (waiting + 1))
            elif not self._try_further() and not self._try_least(promising):
                self.is_over = self._has_time(limit_s)
                break
        if contest.is_untried:
            self._try(contest.tried[0], limit_s)  # with what little time there was
        wall_s = time.monotonic() - self.began
        return contest.answer(wall_s, is_interrupted=self.stop.is_set(), is_over=self.is_over)

    def _has_time(self, until_s: float) -> bool:
        """Whether it is worth to begin once more before a moment of the search."""
        least_s = _LEAST_SHARE * self.options.time_limit_s
        return not self.stop.is_set() and self._left_s(until_s) > least_s

    def _try_further(self) -> bool:
        """Try partitions that were not among the first and look good; whether there were any."""
        tried, until_s = self.contest.tried, self._moment_s(_FURTHER_SHARE)
        began = len(tried)
        while self._has_time(until_s) and (further := self._next_further(until_s)):
            tried.append(further)
            self._try(further, self._left_s(until_s) / 2)
        return len(tried) > began

    def _next_further(self, until_s: float) -> Tried | None:
        """One more partition that can win; None: there is none, or none is found in time."""
        contest = self.contest
        for name, cuts in contest.further.items():
            while self._has_time(until_s):
                left_s = self._left_s(until_s) / 2
                options = replace(self.options, time_limit_s=left_s)
                is_late = partial(self._is_late, time.monotonic() + left_s)
                asked = (contest.cuts_of(name), contest.best_us, options, is_late)
                problem, spent_s = cuts.next(*asked)
                self.granted_s += spent_s
                if problem is None:
                    break
                if one := contest.admitted(name, problem):
                    return one
        return None

    def _try_least(self, promising: Sequence[Tried]) -> bool:
        """Try what bounds say least of, whatever it looks like; whether there is anything."""
        contest, limit_s, least = self.contest, self.options.time_limit_s, list(promising)
        for name, cuts in contest.further.items():
            one = None
            while one is None and self._has_time(limit_s):
                asked = (contest.cuts_of(name), contest.best_us or 0, self.options.gap)
                problem, spent_s = cuts.least(*asked)
                if problem is None:
                    break
                self.granted_s += spent_s
                one = contest.admitted(name, problem)
            least += [one] if one is not None else []
        if not least or not self._has_time(limit_s):
            return False
        one = min(least, key=lambda tried: tried.lower_bound_us)
        if one not in promising:
            contest.tried.append(one)
        is_last = one in promising and len(least) == 1
        self._try(one, (1 if is_last else _FURTHER_SHARE) * self._left_s(limit_s))
        return True

    def _round(self, those: Sequence[Tried], until_s: float) -> None:
        for place, tried in enumerate(those):
            self._try(tried, self._left_s(until_s) / (len(those) - place))

    def _left_s(self, until_s: float) -> float:
        """What is left until a moment of the search; a deterministic one counts what it gave."""
        if self.options.deterministic:
            return until_s - self.granted_s
        return until_s - (time.monotonic() - self.began)

    def _try(self, tried: Tried, limit_s: float) -> None:
        """Search on one placement, from the best that is known there; on the first in any case."""
        is_late = self.stop.is_set() or limit_s <= 0
        if not self.contest.is_untried and (is_late or not self.contest.can_win(tried)):
            return
        self.granted_s += limit_s
        options = replace(self.options, time_limit_s=limit_s, hint=None)
        start = tried.found or self.contest.best_of(tried.name)
        found = solve_repartitioning(
            self.profile if self.contest.cut == Cut.EVEN else None,
            tried.candidate.problem,
            tried.candidate.choice,
            options if start is None else options.going_on_from(start),
            lambda problem: self._tell(tried, problem),
            self.stop,
        )
        tried.take(found)

    def _tell(self, tried: Tried, problem: Problem) -> OnImprovement | None:
        """Tell of what is better than all before, or of a better bound that holds for all."""
        listener = self.listeners(problem)
        if listener is None:
            return None

        def tell(incumbent: Incumbent) -> None:
            known_us = tried.bound_on(problem)
            own_us = max(known_us, incumbent.lower_bound_us)
            own = (
                tried.certificate if known_us > incumbent.lower_bound_us else incumbent.certificate
            )
            bound_us = self.contest.bound_us(incumbent.value_us, tried, own_us)
            news = (incumbent.value_us, -bound_us)
            if self.told_us is None or news < self.told_us:
                self.told_us = news
                listener(
                    replace(
                        incumbent,
                        elapsed_s=time.monotonic() - self.began,
                        lower_bound_us=bound_us,
                        bound_scope=self.contest.bound_scope,
                        certificate=self.contest.certificate(bound_us, tried, own),
                    )
                )

        return tell
