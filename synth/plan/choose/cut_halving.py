"""Successive halving of cuts by annealing alone, before one of them gets a search of its own.

A search of the solver takes a second before it gains anything, and is worth most in one piece. So
where many cuts look alike, each is annealed from its best order, with the layers and stages that
this order recomputes, and the better ones go on:

    8 cuts    short rounds each, then layers move under the best order of all
    4 cuts    longer ones, from where they ended; layers move again
    2 cuts    a long round each

Several placements begin with more cuts, a few of each placement. There a cut whose bound is far
below its value comes first: annealing has much to gain.
Where recomputation is to be chosen, the best order gets a better choice after each rung, too.
Rungs (the word is of Li et al., MLSys 2020) take equally long, as in successive halving (Jamieson
and Talwalkar, AISTATS 2016).
Where the first rounds of annealing would take longer than a rung, building blocks get the time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from synth.plan.choose.candidates import Trial
from synth.plan.choose.race_state import RaceState
from synth.plan.recompute.attempts import ChoiceKey
from synth.plan.recompute.choice_moves import moved_within
from synth.plan.recompute.given_stages import solve_recomputing, with_merged
from synth.plan.tuning import CUT_HALVING
from synth.schedule.recomputed_stages import recomputed, without_recompute, written_out
from synth.search.clock import Clock
from synth.search.outcome import rank_key
from synth.solver.improve.annealing import Annealing, first_rounds_s
from synth.solver.improve.compiled_kernels import are_usable
from synth.solver.options import Part, SolveOptions
from synth.solver.watch import SolveWatch


class CutHalving:
    """The rungs, and the state of the annealing of each cut."""

    def __init__(self, race: RaceState, options: SolveOptions, clock: Clock) -> None:
        self.race, self.options, self.clock = race, options, clock
        self._annealings: dict[tuple[Trial, ChoiceKey], Annealing] = {}

    @cached_property
    def applies(self) -> bool:
        """True if there are many cuts and a memory limit, and annealing is compiled.

        What recomputes is none or to be chosen. A deterministic search waits for the compilation.
        """
        candidate, options = self.race.candidates[0], self.options
        return (
            (self.race.has_many_cuts or self.race.has_placements)
            and candidate.choice in ((), None)
            and candidate.problem.caps_bytes is not None
            and Part.ANNEALING not in options.without
            and are_usable(waits=options.deterministic, should_stop=self.clock.stop.is_set)
        )

    @property
    def is_of_several(self) -> bool:
        """True if it applies to several placements."""
        return self.race.has_placements and self.applies

    @property
    def share_of_left(self) -> float:
        """Its share of the remaining time."""
        return (
            CUT_HALVING.share_of_left_of_several
            if self.is_of_several
            else CUT_HALVING.share_of_left
        )

    @property
    def can_begin(self) -> bool:
        """True if it applies and a schedule is known to begin from."""
        return self.applies and self.race.best is not None

    def run(
        self, until_s: float, tell: Callable[[Trial], None], move_cuts: Callable[[], None]
    ) -> None:
        """Improve the schedules of the trials that look best.

        Args:
            until_s: the moment of the search at which the last rung ends.
            tell: called with a trial that has a better schedule.
            move_cuts: called after each rung; it may add a trial on another cut.
        """
        rungs = CUT_HALVING.rungs_of_several if self.race.has_placements else CUT_HALVING.rungs
        rung_s = self.clock.left_s(until_s) / len(rungs)
        large = [one for one in self._near(CUT_HALVING.cuts_of_blocks) if _has_blocks(one, rung_s)]
        if large and Part.MODULO not in self.options.without:
            self._place_blocks(large, until_s, tell)
            move_cuts()
            self._move_choice(tell)
            return
        self.options.report_part(Part.ANNEALING)
        for place, most in enumerate(rungs):
            num_left = len(rungs) - place
            end_s = until_s - (num_left - 1) / num_left * self.clock.left_s(until_s)
            for trial, seconds in self.clock.shared(self._near(most), end_s):
                if seconds > 0 and not self.clock.stop.is_set():
                    self._anneal(trial, seconds, tell, is_last=num_left == 1)
            move_cuts()
            self._move_choice(tell)

    def _place_blocks(
        self, trials: Sequence[Trial], until_s: float, tell: Callable[[Trial], None]
    ) -> None:
        """Improve cuts by building blocks, whose effort does not depend on micro-batches."""
        without = self.options.without | (frozenset(Part) - {Part.MODULO})
        for trial, seconds in self.clock.shared(trials, until_s):
            if self.clock.stop.is_set() or seconds <= 0:
                return
            assert trial.found is not None and trial.found.schedule is not None
            self.clock.grant(seconds)
            options = self.options.going_on_from(trial.found)
            options = replace(options, time_limit_s=seconds, without=without)
            stages = tuple(recomputed(trial.found.schedule))
            watch = SolveWatch(stop=self.clock.stop)
            found = solve_recomputing(trial.problem, stages, options, watch)
            if rank_key(found.value_us) < rank_key(trial.value_us):
                trial.take(found)
                tell(trial)

    def _near(self, most: int) -> Sequence[Trial]:
        """Return the best trials, of several placements by their estimates and some of each."""
        is_of_several = self.race.has_placements
        factor = CUT_HALVING.near_factor_of_several if is_of_several else CUT_HALVING.near_factor
        near = self.race.near(factor)
        able = [one for one in near if not one.is_fixed and one.value_us is not None]
        if not is_of_several:
            return able[:most]
        taken: list[Trial] = []
        most_of_each = math.ceil(most * CUT_HALVING.most_share_of_each)
        for one in sorted(able, key=_estimate_us):
            if sum(other.name == one.name for other in taken) < most_of_each:
                taken.append(one)
        return taken[:most]

    def _move_choice(self, tell: Callable[[Trial], None]) -> None:
        """Let the best trial recompute what is better under its order, if that is to be chosen."""
        best = self.race.best
        if best is None or best.found is None or best.candidate.choice is not None:
            return
        if best.problem.layer_menu is not None:
            return
        moved = moved_within(self.clock, best.problem, best.found)
        if moved is not None and best.offer(moved.problem, moved.found):
            tell(best)

    def _anneal(
        self, trial: Trial, limit_s: float, tell: Callable[[Trial], None], *, is_last: bool
    ) -> None:
        """Anneal a trial's schedule for a time, or for as much effort."""
        assert trial.found is not None and trial.found.schedule is not None
        problem, schedule = trial.problem, trial.found.schedule
        stages, clock = tuple(recomputed(schedule)), self.clock
        annealing = self._annealing_of(trial, stages)
        annealing.add(without_recompute(schedule).programs, [schedule.buffering])
        clock.grant(limit_s)
        is_late, left = clock.deadline(limit_s), annealing.left_of(limit_s, clock)
        least_us = trial.lower_bound_us
        if is_last:
            found = annealing.run_long(left, is_late, CUT_HALVING.long_rounds)
        else:
            units = left() if clock.is_deterministic else math.inf
            found = annealing.run(units, is_late, least_us)
        for better in found:
            whole = replace(better, schedule=written_out(better.schedule, stages))
            if trial.offer(problem, whole):
                tell(trial)

    def _annealing_of(self, trial: Trial, stages: tuple[int, ...]) -> Annealing:
        """Return the annealing of a trial with what it recomputes now, R and B as one op."""
        problem = trial.problem
        key = trial, ChoiceKey.of(problem, stages)
        if key not in self._annealings:
            seen = with_merged(problem, stages) if stages else problem
            self._annealings[key] = Annealing(seen, self.options.seed)
        return self._annealings[key]


def _has_blocks(trial: Trial, rung_s: float) -> bool:
    """Return True if ranks hold several stages, and a rung is shorter than the first rounds."""
    problem = trial.problem
    return problem.placement.holds_several and first_rounds_s(problem.num_ops) > rung_s


def _estimate_us(trial: Trial) -> float:
    """Return a value between that of a trial and its bound: little is gained near the bound.

    It stands for the estimate of the best-estimate search of branch and bound (Bénichou et al.,
    Mathematical Programming 1, 1971).
    """
    value_us, bound_us = trial.value_us or 0, trial.lower_bound_us
    return value_us - CUT_HALVING.estimate_share * max(0, value_us - bound_us)
