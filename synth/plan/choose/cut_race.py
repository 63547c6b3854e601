"""A race of cuts by annealing alone, before one of them gets a search of its own.

A search of the solver takes a second before it gains anything, and is worth most in one piece. So
where many cuts look alike, each is annealed from its best order, with the layers and stages that
this order recomputes, and the better ones go on:

    8 cuts    short rounds each, then layers move under the best order of all
    4 cuts    longer ones, from where they ended; layers move again
    2 cuts    a long round each

Where recomputation is to be chosen, the best order gets a better choice after each heat, too.
The heats take equally long: it is successive halving (Jamieson and Talwalkar, AISTATS 2016).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from synth.costs.merged_recomputation import merged
from synth.plan.choose.candidates import Trial
from synth.plan.choose.standings import Standings
from synth.plan.recompute.attempts import ChoiceKey
from synth.plan.recompute.choice_moves import moved_within
from synth.plan.recompute.given_stages import with_r
from synth.plan.recompute.stages import recomputed, without_recompute
from synth.plan.tuning import CUT_RACE
from synth.search.clock import Clock
from synth.search.outcome import rank_key
from synth.solver.evaluate.compiled import await_compiled
from synth.solver.improve.annealing import Annealing, is_loadable
from synth.solver.options import Part, SolveOptions
from synth.solver.result import judged_result
from synth.solver.tuning import ANNEALING


class CutRace:
    """The heats, and the state of the annealing of each cut."""

    def __init__(self, race: Standings, options: SolveOptions, clock: Clock) -> None:
        self.race, self.options, self.clock = race, options, clock
        self._annealings: dict[tuple[Trial, ChoiceKey], Annealing] = {}

    @cached_property
    def applies(self) -> bool:
        """True if one placement has many cuts and a memory limit, and annealing is compiled.

        What recomputes is none or to be chosen. A deterministic search waits for the compilation.
        """
        candidate, options = self.race.candidates[0], self.options
        return (
            self.race.has_many_cuts
            and candidate.choice in ((), None)
            and candidate.problem.caps_bytes is not None
            and Part.ANNEALING not in options.without
            and await_compiled(lambda: not options.deterministic or self.clock.stop.is_set())
            and is_loadable()
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
            until_s: the moment of the search at which the race ends.
            tell: called with a trial that has a better schedule.
            move_cuts: called after each heat; it may add a trial on another cut.
        """
        self.options.report_part(Part.ANNEALING)
        for place, most in enumerate(CUT_RACE.heats):
            num_left = len(CUT_RACE.heats) - place
            end_s = until_s - (num_left - 1) / num_left * self.clock.left_s(until_s)
            for trial, seconds in self.clock.shared(self._near()[:most], end_s):
                if seconds > 0 and not self.clock.stop.is_set():
                    self._anneal(trial, seconds, tell, is_last=num_left == 1)
            move_cuts()
            self._move_choice(tell)

    def _near(self) -> Sequence[Trial]:
        near = self.race.near(CUT_RACE.near_factor)
        return [one for one in near if not one.is_fixed and one.value_us is not None]

    def _move_choice(self, tell: Callable[[Trial], None]) -> None:
        """Let the best trial recompute what is better under its order, if that is to be chosen."""
        best = self.race.best
        if best is None or best.found is None or best.candidate.choice is not None:
            return
        if best.problem.layer_menu is not None:
            return
        moved = moved_within(self.clock, best.problem, best.found)
        if moved is not None:
            best.found = judged_result(moved.problem, moved.found, best.lower_bound_us)
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
        is_late, last_units, end_s = clock.deadline(limit_s), math.inf, clock.elapsed_s + limit_s
        if clock.is_deterministic:
            last_units = annealing.units_spent + limit_s * ANNEALING.units_per_s

        def left() -> float:
            if clock.is_deterministic:
                return last_units - annealing.units_spent
            return end_s - clock.elapsed_s

        least_us = trial.lower_bound_us
        if is_last:
            found = annealing.run_long(left, is_late, CUT_RACE.long_rounds)
        else:
            found = annealing.run(last_units - annealing.units_spent, is_late, least_us)
        for better in found:
            whole = with_r(problem, stages, better) if stages else better
            if whole is not None and rank_key(whole.value_us) < rank_key(trial.value_us):
                trial.found = judged_result(problem, whole, least_us)
                tell(trial)

    def _annealing_of(self, trial: Trial, stages: tuple[int, ...]) -> Annealing:
        """Return the annealing of a trial with what it recomputes now, R and B as one op."""
        problem = trial.problem
        key = trial, ChoiceKey.of(problem, stages)
        if key not in self._annealings:
            seen = replace(problem, costs=merged(problem.costs, stages))
            self._annealings[key] = Annealing(seen, self.options.seed)
        return self._annealings[key]
