"""Trials of what to recompute: a number of the first stages, or single layers."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from synth.plan.recompute.attempts import ChoiceAttempt, ChoiceAttempts
from synth.plan.recompute.choice_moves import moved_within
from synth.plan.recompute.given_stages import solve_recomputing
from synth.plan.recompute.layer_bounds import bounds_of_every_choice
from synth.plan.recompute.layer_choice import applies
from synth.plan.recompute.menu_search import layer_search
from synth.plan.recompute.trial_choices import (
    Partitions,
    can_win,
    choices_tried,
    counts_tried,
    hinted,
    most_trials,
    num_partitions,
)
from synth.plan.tuning import RECOMPUTE_TRIALS
from synth.schedule.files.certificate import Certificate, ProvenBound, ProverName
from synth.search.best_so_far import BestSoFar
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Baseline, judged_result
from synth.solver.watch import UNWATCHED, OnImprovement, SolveWatch

# For a problem with layers recomputed, the same with a partition that counts their time; None: no
# other.
Repartition = Callable[[Problem], Problem | None]

_ANY_CHOICE = Certificate(prover=ProverName.ANY_CHOICE)


class ChoiceTrials:
    """The choices tried so far, each on a partition that suits it, and a bound of every choice."""

    def __init__(
        self,
        problem: Problem,
        partitions: Partitions,
        options: SolveOptions,
        watch: SolveWatch = UNWATCHED,
        repartition: Repartition = lambda problem: None,
        attempts: ChoiceAttempts | None = None,
    ) -> None:
        """Begin the time limit.

        Args:
            problem: without recomputation.
            partitions: returns the problems to try where some stages recompute: the first one for
                every number of stages, the others for the best number and its neighbours.
            repartition: makes the partition for the best choice of layers.
            attempts: those of earlier searches on the same problem; new ones are added.
        """
        self.problem, self.options = problem, options
        self.partitions, self.repartition = partitions, repartition
        self.on_improvement, self.clock = watch.on_improvement, self.options.clock(watch.stop)
        self.so_far = BestSoFar(watch.on_improvement)
        self.stop = self.clock.stop
        self.attempts = attempts or ChoiceAttempts()
        self.baselines: tuple[Baseline, ...] = ()
        self.searched_s = 0.0
        self.further: list[Problem] = []
        self.bounds_us: dict[tuple[int, ...] | None, int] = {}
        self.certificate = _ANY_CHOICE

    def run(self) -> None:
        """Try choices, and the best of them again for longer."""
        without = self.options.without | {Part.ROBUSTNESS, Part.BOUNDS}
        brief = replace(self.options, without=without)
        is_new = self.attempts.best is None
        self._try_hint()
        if is_new:
            self._try_all(brief)
        self.move()
        self._try_near_again(brief)

    def _try_all(self, brief: SolveOptions) -> None:
        """Give every choice a trial, or as many as there is time for once a schedule is known."""
        layered = self._with_layers(self.problem)
        share_s = RECOMPUTE_TRIALS.share_of_limit * self.options.time_limit_s
        left_s = max(0.0, share_s - self.searched_s)
        most = most_trials(self.problem, left_s)
        if most == 1 and self._has_schedule:  # all the time is for its order
            return
        choices = choices_tried(self.problem, self.options, layered, self._partitions, most)
        trials = min(most, len(choices)) + num_partitions(choices[:most], self._partitions)
        brief = replace(brief, time_limit_s=left_s / trials)
        for place, (problem, stages) in enumerate(choices):
            if place >= most and self._has_schedule:
                break
            self._try(problem, stages, brief)
        if most > len(choices):
            self._try_partitions(brief)
        self.clock.grant(share_s)

    @property
    def _has_schedule(self) -> bool:
        best = self.attempts.best
        return best is not None and best.found.schedule is not None

    def _try_hint(self) -> None:
        """Take the hint as it is, with its choice, if it fits."""
        hint, best = self.options.hint, self.attempts.best
        if hint is None or (best is not None and best.found.schedule == hint):
            return
        sizes = hint.placement, hint.num_micro_batches
        if sizes == (self.problem.placement, self.problem.num_micro_batches):
            problem, stages = hinted(self.problem, self.options)
            found = evaluate(problem, hint, self.options.hint_found_by)
            if found is not None:
                self._take_judged(problem, stages, found)

    def _try_near_again(self, brief: SolveOptions) -> None:
        """Give the best few choices a second, longer trial, the best one first."""
        share_s = RECOMPUTE_TRIALS.second_share_of_limit * self.options.time_limit_s
        near = self.attempts.near()[: most_trials(self.problem, share_s)]
        for problem, stages, _ in near if len(near) > 1 else ():
            self._try(problem, stages, replace(brief, time_limit_s=share_s / len(near)))
        self.clock.grant(share_s if len(near) > 1 else 0.0)
        self.move()

    def _try_partitions(self, brief: SolveOptions) -> None:
        """Try other partitions for the best choice, and for a step more and fewer stages."""
        assert self.attempts.best is not None
        best, best_stages, _ = self.attempts.best
        if best.recomputed_layers:
            other = self.repartition(best)
            for problem in () if other is None else self._with_layers(other)[:1]:
                self._try(problem, (), brief)
            return
        counts = counts_tried(self.problem)
        at = min(range(len(counts)), key=lambda place: abs(counts[place] - len(best_stages)))
        for count in counts[max(0, at - 1) : at + 2]:
            stages = tuple(range(count))
            for other in self._partitions(stages)[1:]:
                self._try(other, other.rebuildable(stages), brief)

    def _with_layers(self, problem: Problem) -> list[Problem]:
        """Return the problem with the best choices of layers; empty if layers are not known."""
        if not applies(problem) or self.stop.is_set():
            return []
        began_s = self.clock.elapsed_s
        limit_s = RECOMPUTE_TRIALS.layers_share_of_limit * self.options.time_limit_s
        search = layer_search(problem, limit_s, self.clock.deadline(limit_s))
        search.run()
        spent_s = limit_s if self.clock.is_deterministic else self.clock.elapsed_s - began_s
        self.searched_s += spent_s
        found = search.best(RECOMPUTE_TRIALS.further_choices)
        count = len(found) if search.are_few else RECOMPUTE_TRIALS.layer_choices
        self.further += found[count:]
        return found[:count]

    def _partitions(self, stages: tuple[int, ...]) -> Sequence[Problem]:
        return self.partitions(stages) if stages else (self.problem,)

    def _try(self, problem: Problem, stages: tuple[int, ...], options: SolveOptions) -> None:
        """Search with a choice, from its own best order, from the hint, or from the best one."""
        best = self.attempts.best
        if best is not None and self.stop.is_set():
            return
        if best is not None and not can_win(problem, stages, best.found, options.gap):
            return
        before = self.attempts.of(problem, stages)
        if before is not None:
            options = replace(options, without=options.without | {Part.FAMILIES})
        start = best if before is None else before
        if start is not None:
            options = options.going_on_from(start.found)
        found = solve_recomputing(
            problem, stages, options, SolveWatch(self.tell(problem), self.stop)
        )
        self.baselines = self.baselines or found.baselines
        self.attempts.take(ChoiceAttempt(problem, stages, found))

    def move(self) -> bool:
        """Move stages to other choices under the best order; return True if that was better."""
        best = self.attempts.best
        if best is None or best.found.schedule is None or self.problem.layer_menu is not None:
            return False
        moved = moved_within(self.clock, best.problem, best.found)
        if moved is None:
            return False
        self._take_judged(*moved)
        return True

    def _take_judged(
        self, problem: Problem, stages: tuple[int, ...], found: EvaluatedSchedule
    ) -> None:
        """Take a schedule that no search found, and announce it."""
        result = judged_result(problem, found, self.bound_us(problem))
        attempt = ChoiceAttempt(problem, stages, result)
        self.attempts.take(attempt)
        incumbent = attempt.found.as_incumbent()
        assert incumbent is not None
        self.tell(problem)(incumbent)

    def try_further(self, until_s: float, stop: threading.Event) -> None:
        """Try other choices of layers; a deterministic search has no time left for these."""
        limit_s = self.options.time_limit_s
        for problem in () if self.options.deterministic else self.further:
            left_s = self.clock.left_s(until_s)
            if left_s <= RECOMPUTE_TRIALS.least_share_of_limit * limit_s or stop.is_set():
                return
            options = replace(
                self.options, time_limit_s=RECOMPUTE_TRIALS.further_share_of_left * left_s
            )
            self._try(problem, (), options)

    def tell(self, problem: Problem) -> OnImprovement:
        """Return the listener for improvements, with a bound that holds for every choice."""
        return lambda incumbent: self.so_far(
            replace(
                incumbent,
                elapsed_s=self.clock.elapsed_s,
                lower_bound_us=min(self.bound_us(problem), incumbent.value_us),
                certificate=self.certificate_of(problem),
            )
        )

    def certificate_of(self, problem: Problem) -> Certificate:
        """Return the certificate of the bound on the problem's partition."""
        is_own = problem.partition == self.problem.partition
        return self.certificate if is_own else _ANY_CHOICE

    def bound_us(self, problem: Problem) -> int:
        """Return the lower bound over all choices on the problem's partition."""
        if problem.partition not in self.bounds_us:
            bound_us = problem.objective.value_us(bounds_of_every_choice(problem))
            self.bounds_us[problem.partition] = bound_us
        return self.bounds_us[problem.partition]

    def take_bound(self, proven: ProvenBound) -> None:
        """Take a bound of every choice on the problem's partition, if it is the best one."""
        if proven.bound_us > self.bound_us(self.problem):
            self.bounds_us[self.problem.partition] = proven.bound_us
            self.certificate = proven.certificate

    def best_us(self) -> int:
        """Return the value of the best schedule so far, which there must be."""
        assert self.attempts.best is not None and self.attempts.best.found.value_us is not None
        value_us = self.attempts.best.found.value_us
        return value_us if self.so_far.best is None else min(value_us, self.so_far.best.value_us)
