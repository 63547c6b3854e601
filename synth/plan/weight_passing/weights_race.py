"""A search over the places of weights: candidates share the time, and the best gets most of it.

Each candidate with weight passing gets an equal part of the first share of the time. With `auto`
data parallelism is judged beside them, and then pipelines are searched. The time that is left goes
to the candidates that can still win by their bounds and are near the best.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from synth.objective import BoundScope
from synth.plan.choose.candidates import Candidate, Chosen, Partitioning, Trial, why_ended
from synth.plan.choose.race_run import solve_best_of
from synth.plan.recompute.choice import bound_us
from synth.plan.weight_passing.choice import WeightCandidate
from synth.plan.weight_passing.data_parallel import data_parallel_trial
from synth.profile import Profile
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Incumbent, rank_key, relative_gap
from synth.solver.search_state import OnImprovement
from synth.solver.tuning import WEIGHT_PASSING

Listener = Callable[[Problem], OnImprovement | None]


def solve_choosing_weights(
    weight_passing: Sequence[WeightCandidate],
    staying: Sequence[Candidate],
    profile: Profile,
    partitioning: Partitioning,
    options: SolveOptions,
    listener: Listener = lambda _: None,
    stop: threading.Event | None = None,
) -> Chosen:
    """Search all candidates, and return the best result with a bound that holds for all of them.

    Args:
        weight_passing: problems with weight passing, at least one.
        staying: placements whose weights stay with their stages; if there are any, data parallelism
            is one more choice.
        profile: the profile of the layers.
        partitioning: the partitioning of the model where weights stay.
        options: limits and seed.
        listener: makes the listener of a problem.
        stop: set it to get the best so far.
    """
    return _Choosing(weight_passing, options, listener, stop or threading.Event()).run(
        staying, profile, partitioning
    )


class _Choosing:
    def __init__(
        self,
        weight_passing: Sequence[WeightCandidate],
        options: SolveOptions,
        listener: Listener,
        stop: threading.Event,
    ) -> None:
        self.options, self._given_listener, self.stop = options, listener, stop
        self._announced_us: int | None = None
        self.searches = [
            one.begin(options, self._listener(one.problem), stop) for one in weight_passing
        ]
        self.trials = [
            Trial(Candidate(one.name, one.problem), search.state.bound_us)
            for one, search in zip(weight_passing, self.searches, strict=True)
        ]
        self._candidates = weight_passing
        self.left_s = options.time_limit_s

    def _listener(self, problem: Problem) -> OnImprovement | None:
        """Let a listener hear only what is no worse than the best of all candidates."""
        listener = self._given_listener(problem)
        if listener is None:
            return None

        def tell(found: Incumbent) -> None:
            if self._announced_us is None or found.value_us <= self._announced_us:
                self._announced_us = found.value_us
                listener(found)

        return tell

    def run(
        self, staying: Sequence[Candidate], profile: Profile, partitioning: Partitioning
    ) -> Chosen:
        """Share the time, and rank what was found."""
        share_s = WEIGHT_PASSING.trial_share * self.left_s / len(self.searches)
        for index in range(len(self.searches)):
            self._search(index, share_s)
        others: list[Trial] = []
        if staying:
            others.append(self._data_parallel())
            others += self._search_staying(staying, profile, partitioning, others)
        while chances := self._chances(others):
            part_s = max(WEIGHT_PASSING.shortest_part_s, self.left_s / (2 * len(chances)))
            for index in chances:
                self._search(index, min(part_s, self.left_s))
        return self._chosen([*self.trials, *others])

    def _search(self, index: int, seconds: float) -> None:
        search, trial = self.searches[index], self.trials[index]
        before_s = search.state.budget.elapsed_s()
        trial.found = search.run(seconds)
        trial.lower_bound_us = trial.found.lower_bound_us
        trial.certificate = trial.found.certificate
        trial.published = trial.found.baselines
        trial.is_over = search.is_over
        took_s = search.state.budget.elapsed_s() - before_s
        self.left_s -= seconds if self.options.deterministic else took_s

    def _best_us(self, trials: Sequence[Trial]) -> int | None:
        values = (trial.value_us for trial in trials)
        return min((us for us in values if us is not None), default=None)

    def _chances(self, others: Sequence[Trial]) -> list[int]:
        """The searches to continue: near the best, and able to win; none without time."""
        if self.left_s <= 0 or self.stop.is_set():
            return []
        best_us = self._best_us([*self.trials, *others])
        return [
            index
            for index, trial in enumerate(self.trials)
            if not trial.is_over
            and (
                best_us is None
                or trial.value_us is None
                or (
                    relative_gap(best_us, trial.lower_bound_us) > self.options.gap
                    and trial.value_us <= WEIGHT_PASSING.near * best_us
                )
            )
        ]

    def _data_parallel(self) -> Trial:
        problem = self.trials[0].problem
        return data_parallel_trial(problem, self.options, self._listener(problem))

    def _search_staying(
        self,
        staying: Sequence[Candidate],
        profile: Profile,
        partitioning: Partitioning,
        others: Sequence[Trial],
    ) -> list[Trial]:
        """Search the pipelines, for the most of the remaining time if they can win."""
        best_us = self._best_us([*self.trials, *others])
        least_us = min(bound_us(one.problem, one.choice) for one in staying)
        # The bounds are of the even partitions; others have the same work, but unequal stages.
        can_win = best_us is None or relative_gap(best_us, least_us) > self.options.gap
        seconds = (
            WEIGHT_PASSING.staying_share if can_win else WEIGHT_PASSING.unlikely_share
        ) * self.left_s
        options = replace(self.options, time_limit_s=seconds)
        chosen = solve_best_of(staying, profile, partitioning, options, self._listener, self.stop)
        self.left_s -= seconds if self.options.deterministic else chosen.result.wall_s
        return list(chosen.trials)

    def _chosen(self, trials: list[Trial]) -> Chosen:
        """The best trial's result, with the least bound of all trials that are possible."""
        trials.sort(key=lambda trial: (rank_key(trial.value_us), trial.is_impossible))
        possible = [trial for trial in trials if not trial.is_impossible]
        best = trials[0].found
        if best is None or not possible:
            tried = [trial for trial in trials if trial.found is not None]
            if not possible:  # the message of the candidate that needs least
                needed = {one.name: one.needed_bytes for one in self._candidates}
                tried.sort(key=lambda trial: needed.get(trial.candidate.name, math.inf))
            found = next(trial.found for trial in tried if trial.found is not None)
            if len(possible) > 1:
                us = min(trial.lower_bound_us for trial in possible)
                found = replace(found, lower_bound_us=us, certificate=None)
            return Chosen(found, tuple(trials))
        least_us = min(trial.lower_bound_us for trial in possible)
        baselines: dict[str, Baseline] = {
            one.name: one for trial in trials for one in (trial.published or _baselines(trial))
        }
        is_one = len(trials) == 1
        result = replace(
            best,
            lower_bound_us=least_us if best.value_us is None else min(least_us, best.value_us),
            certificate=best.certificate if is_one else None,
            bound_scope=best.bound_scope if is_one else BoundScope.CANDIDATES,
            baselines=tuple(baselines.values()),
            wall_s=self.searches[0].state.budget.elapsed_s(),
            stopped_by=why_ended(
                best,
                least_us,
                self.options.gap,
                is_interrupted=self.stop.is_set(),
                is_over=self.left_s > 0,
            ),
        )
        return Chosen(result, tuple(trials))


def _baselines(trial: Trial) -> tuple[Baseline, ...]:
    return () if trial.found is None else trial.found.baselines
