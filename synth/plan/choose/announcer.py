"""Announcing the trials of a race, and improvements: a better value, or a better common bound."""

from dataclasses import replace
from functools import partial

from synth.plan.choose.candidates import SearchWatch, Trial
from synth.plan.choose.race_state import RaceState
from synth.search.best_so_far import BestSoFar
from synth.search.clock import Clock
from synth.solver.result import Incumbent
from synth.solver.watch import OnImprovement


class Announcer:
    """Passes incumbents of single trials on, with the bound that holds for all candidates."""

    def __init__(self, race: RaceState, clock: Clock, watch: SearchWatch) -> None:
        self.race, self.clock, self._on_trials = race, clock, watch.on_trials
        tell = watch.on_improvement
        self._so_far = None if tell is None else BestSoFar(tell)

    def tell_trials(self) -> None:
        """Tell of all trials."""
        self._on_trials(self.race.copies())

    def listener(self, trial: Trial) -> OnImprovement | None:
        """Return the listener for the incumbents of a trial; None if nobody listens."""
        return None if self._so_far is None else partial(self.announce, trial=trial)

    def announce_judged(self, trial: Trial) -> None:
        """Announce the published schedule that was judged best on a candidate, if there is one."""
        incumbent = None if trial.found is None else trial.found.as_incumbent()
        if incumbent is not None:
            self.announce(incumbent, trial)

    def announce(self, incumbent: Incumbent, trial: Trial, *, of_others: bool = False) -> None:
        """Announce an incumbent of a trial if it is the best so far.

        Args:
            incumbent: the schedule, and a bound on its partition.
            trial: the trial of its candidate.
            of_others: the bound holds for further trials, too, so that the trial's own says nothing
                of them.
        """
        so_far = self._so_far
        if so_far is None or (so_far.best and incumbent.value_us > so_far.best.value_us):
            return
        known_us = 0 if of_others else trial.bound_on(incumbent.problem)
        own_us = max(known_us, incumbent.lower_bound_us)
        is_known = known_us > incumbent.lower_bound_us
        own = trial.certificate if is_known else incumbent.certificate
        bound_us = self.race.bound_us(incumbent.value_us, trial, own_us)
        so_far(
            replace(
                incumbent,
                elapsed_s=self.clock.elapsed_s,
                lower_bound_us=bound_us,
                bound_scope=self.race.bound_scope,
                certificate=self.race.certificate(bound_us, trial, own),
            )
        )
