"""A race of cuts by annealing alone, before one of them gets a search of its own.

A search of the solver takes a second before it gains anything, and is worth most in one piece. So
where many cuts look alike, each is annealed from its best order, and the better ones go on:

    8 cuts    short rounds each, then layers move under the best order of all
    4 cuts    longer ones, from where they ended; layers move again
    2 cuts    a long round each

The heats take equally long: it is successive halving (Jamieson and Talwalkar, AISTATS 2016).
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property

from synth.plan.choose.candidates import Trial
from synth.plan.choose.judging import judged_result
from synth.plan.choose.standings import Standings
from synth.plan.tuning import CUT_RACE
from synth.search.clock import Clock
from synth.solver.evaluate.compiled import await_compiled
from synth.solver.improve.annealing import Annealing, is_loadable
from synth.solver.options import Part, SolveOptions
from synth.solver.tuning import ANNEALING


class CutRace:
    """The heats, and the state of the annealing of each cut."""

    def __init__(self, race: Standings, options: SolveOptions, clock: Clock) -> None:
        self.race, self.options, self.clock = race, options, clock
        self._annealings: dict[Trial, Annealing] = {}

    @cached_property
    def applies(self) -> bool:
        """True if one placement has many cuts and a memory limit, and annealing is compiled.

        Recomputation is not to be chosen. A deterministic search waits for the compilation.
        """
        candidate, options = self.race.candidates[0], self.options
        return (
            self.race.has_many_cuts
            and candidate.choice == ()
            and candidate.problem.caps_bytes is not None
            and Part.ANNEALING not in options.without
            and await_compiled(lambda: not options.deterministic or self.clock.stop.is_set())
            and is_loadable()
        )

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

    def _near(self) -> Sequence[Trial]:
        near = self.race.near(CUT_RACE.near_factor)
        return [one for one in near if not one.is_fixed and one.value_us is not None]

    def _anneal(
        self, trial: Trial, limit_s: float, tell: Callable[[Trial], None], *, is_last: bool
    ) -> None:
        """Anneal a trial's schedule for a time, or for as much effort."""
        assert trial.found is not None and trial.found.schedule is not None
        problem, schedule = trial.problem, trial.found.schedule
        if trial not in self._annealings:
            self._annealings[trial] = Annealing(problem, self.options.seed)
        annealing, clock = self._annealings[trial], self.clock
        annealing.add(schedule.programs, [schedule.buffering])
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
            if trial.value_us is None or better.value_us < trial.value_us:
                trial.found = judged_result(problem, better, least_us)
                tell(trial)
