"""Announcing improvements of a race: a better value, or a better bound that holds for all."""

from dataclasses import replace

from synth.plan.choose.candidates import Trial
from synth.plan.choose.standings import Standings
from synth.plan.recompute.choice_search import Listeners
from synth.plan.recompute.given_stages import OnImprovement
from synth.search.clock import Clock
from synth.solver.problem import Problem
from synth.solver.result import Incumbent


class Announcer:
    """Passes incumbents of single trials on, with the bound that holds for all candidates.

    Attributes:
        told_us: value and negated bound of the last announcement; None: there was none.
    """

    def __init__(self, race: Standings, clock: Clock, listeners: Listeners) -> None:
        self.race, self.clock, self.listeners = race, clock, listeners
        self.told_us: tuple[int, int] | None = None

    def announce_judged(self, trial: Trial, *, is_again: bool = False) -> None:
        """Announce a published schedule that was judged, if it is the best so far.

        Args:
            trial: the trial of its candidate.
            is_again: announce it for a better bound, too.
        """
        found = trial.found
        if found is None or found.schedule is None or found.value_us is None:
            return
        if self.told_us is not None and found.value_us >= self.told_us[0] + is_again:
            return
        listener = self.listener(trial, trial.problem)
        if listener is None or not (found.timeline and found.peak_bytes and found.found_by):
            return
        listener(
            Incumbent(
                elapsed_s=0.0,
                schedule=found.schedule,
                timeline=found.timeline,
                value_us=found.value_us,
                lower_bound_us=found.lower_bound_us,
                found_by=found.found_by,
                peak_bytes=found.peak_bytes,
            )
        )

    def listener(
        self, trial: Trial, problem: Problem, *, of_others: bool = False
    ) -> OnImprovement | None:
        """Return the listener for the incumbents of a trial; None if nobody listens.

        Args:
            trial: the trial.
            problem: the problem that is searched.
            of_others: the bounds of the incumbents hold for further trials, too, so that the
                trial's own says nothing of them.
        """
        heard_by = self.listeners(problem)
        if heard_by is None:
            return None

        def tell(incumbent: Incumbent) -> None:
            known_us = 0 if of_others else trial.bound_on(problem)
            own_us = max(known_us, incumbent.lower_bound_us)
            is_known = known_us > incumbent.lower_bound_us
            own = trial.certificate if is_known else incumbent.certificate
            bound_us = self.race.bound_us(incumbent.value_us, trial, own_us)
            news = (incumbent.value_us, -bound_us)
            if self.told_us is None or news < self.told_us:
                self.told_us = news
                heard_by(
                    replace(
                        incumbent,
                        elapsed_s=self.clock.elapsed_s,
                        lower_bound_us=bound_us,
                        bound_scope=self.race.bound_scope,
                        certificate=self.race.certificate(bound_us, trial, own),
                    )
                )

        return tell
