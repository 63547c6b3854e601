"""Choosing recomputation by trials: a number of the first stages, or single layers."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from synth.costs.recomputation import NOT_RECOMPUTED
from synth.plan.recompute.attempts import ChoiceAttempt, ChoiceAttempts, ChoiceKey
from synth.plan.recompute.choice_moves import moved_within
from synth.plan.recompute.choice_proof import CERTIFICATE, ChoiceProof
from synth.plan.recompute.given_stages import solve_recomputing, without_schedule
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
from synth.plan.tuning import CHOICE_MOVES, CHOICE_PROOF, RECOMPUTE_TRIALS
from synth.schedule.files.certificate import Certificate, ProvenBound, ProverName
from synth.search.best_so_far import BestSoFar
from synth.search.conditional_stop import ConditionalStop
from synth.search.outcome import StoppedBy, reason_of_end, relative_gap
from synth.solver.background import Background
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Result, judged_result
from synth.solver.search_state import OnImprovement
from synth.solver.tuning import BOUND_POLICY

# For a problem with layers recomputed, the same with a partition that counts their time; None: no
# other.
Repartition = Callable[[Problem], Problem | None]

_ANY_CHOICE = Certificate(prover=ProverName.ANY_CHOICE)


def solve_choosing(
    problem: Problem,
    options: SolveOptions | None = None,
    on_improvement: OnImprovement | None = None,
    stop: threading.Event | None = None,
    attempts: ChoiceAttempts | None = None,
) -> Result:
    """Choose layers, or a number of first stages, to recompute, and solve with these.

    A stage holds what F keeps for as long as the micro-batch is in the stages after it, so the
    first stages are those that gain most; how many of them is found by trying. Layers are chosen
    where the problem has its profile (see `layer_search`), and tried against that. The bound holds
    for every choice (see `bounds_of_every_choice`).

    Which stages they are, the schedule says (see `recomputed`), and the result's problem which
    layers.

    Args:
        on_improvement: called with improvements. The problem of each has the choice of layers: a
            schedule that fits there may not fit without that choice.
        attempts: those of earlier searches on the same problem; new ones are added.
    """
    return ChoiceSearch(
        problem,
        lambda stages: (problem,),
        options or SolveOptions(),
        on_improvement,
        stop,
        attempts=attempts,
    ).run()


class ChoiceSearch:
    """Trials of what to recompute, each on a partition that suits it, with the best one so far."""

    def __init__(
        self,
        problem: Problem,
        partitions: Partitions,
        options: SolveOptions,
        on_improvement: OnImprovement | None = None,
        stop: threading.Event | None = None,
        repartition: Repartition = lambda problem: None,
        attempts: ChoiceAttempts | None = None,
    ) -> None:
        """Begin the time limit.

        Args:
            problem: without recomputation.
            partitions: returns the problems to try where some stages recompute: the first one for
                every number of stages, the others for the best number and its neighbours.
            on_improvement: called with improvements on any of the partitions.
            stop: set it to get the best so far.
            repartition: makes the partition for the best choice of layers.
            attempts: those of earlier searches on the same problem; new ones are added.
        """
        self.problem, self.options = problem, options
        self.partitions, self.repartition = partitions, repartition
        self.on_improvement, self.clock = on_improvement, self.options.clock(stop)
        self.so_far = BestSoFar(on_improvement)
        self.stop = self.clock.stop
        self.attempts = attempts or ChoiceAttempts()
        self.baselines: tuple[Baseline, ...] = ()
        self.searched_s = 0.0
        self.further: list[Problem] = []
        self.bounds_us: dict[tuple[int, ...] | None, int] = {}
        self.certificate = _ANY_CHOICE

    def run(self) -> Result:
        """Try choices, then search with the best one in the remaining time."""
        if self.problem.caps_bytes is None:  # without a memory limit recomputation only costs time
            return solve_recomputing(self.problem, (), self.options, self.on_improvement, self.stop)
        without = self.options.without | {Part.ROBUSTNESS, Part.BOUNDS}
        brief = replace(self.options, without=without)
        is_new = self.attempts.best is None
        self._try_hint()
        if is_new:
            self._try_all(brief)
        self._move()
        self._try_near_again(brief)
        self._search_and_prove()
        return self._result()

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
        self._move()

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
                self._try(other, stages, brief)

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
        found = solve_recomputing(problem, stages, options, self._tell(problem), self.stop)
        self.baselines = self.baselines or found.baselines
        self.attempts.take(ChoiceAttempt(problem, stages, found))

    def _move(self) -> bool:
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
        result = judged_result(problem, found, self._bound_us(problem))
        attempt = ChoiceAttempt(problem, stages, result)
        self.attempts.take(attempt)
        incumbent = attempt.found.as_incumbent()
        assert incumbent is not None
        self._tell(problem)(incumbent)

    def _search_and_prove(self) -> None:
        """Search with the best choice, and prove bounds of every choice beside it or in turn."""
        options, limit_s = self.options, self.clock.limit_s
        is_provable = Part.BOUNDS not in options.without and self.problem.layer_menu is None
        if (
            not is_provable
            or self.attempts.best is None
            or self.attempts.best.found.value_us is None
        ):
            self._finish(options, limit_s, self.stop)
            return
        ended = ConditionalStop(self.stop, self._take_bound)
        apart = replace(options, without=options.without | {Part.BOUNDS})
        if most_trials(self.problem, self.clock.left_s()) < CHOICE_PROOF.least_trials:
            self._finish(apart, self.clock.moment_s(1 - CHOICE_PROOF.share_after), ended)
        proof = self.attempts.proof
        if proof is None:
            proof = ChoiceProof(self.problem, options, self._best_us, ended.is_set)
            self.attempts.proof = proof
        else:
            proof.go_on(options, self._best_us, ended.is_set)
            ended.watch(ProvenBound(proof.bound_us, CERTIFICATE))
        if proof.is_decided:
            self._finish(options, limit_s, self.stop)
            if self.attempts.best.choice == ChoiceKey(self.problem.partition, NOT_RECOMPUTED, ()):
                ended.watch(ProvenBound(self.attempts.best.found.lower_bound_us, CERTIFICATE))
            return
        if options.deterministic or options.num_workers == 1:
            self._prove(proof, CHOICE_PROOF.share_before, ended)
            self._finish(apart, self.clock.moment_s(1 - CHOICE_PROOF.share_after), ended)
            self._prove(proof, 1.0, ended)
            return
        beside = options.num_workers // 2
        proof.options, left_s = replace(proof.options, workers=beside), self.clock.left_s()
        proving = Background(lambda _: map(_watched(ended), proof.prove(left_s)))
        try:
            apart = replace(apart, workers=options.num_workers - beside)
            self._finish(apart, limit_s, ended)
            while not (proving.is_over or self.clock.is_over() or ended.is_set()):
                time.sleep(BOUND_POLICY.poll_s)
        finally:
            ended.set()
            proving.join()
            proving.collect(lambda _: None)

    def _prove(self, proof: ChoiceProof, share: float, ended: ConditionalStop[ProvenBound]) -> None:
        """Prove bounds of every choice for a share of the remaining time."""
        left_s = share * self.clock.left_s()
        self.clock.grant(max(0.0, left_s))
        for proven in proof.prove(left_s):
            ended.watch(proven)

    def _take_bound(self, proven: ProvenBound) -> bool:
        """Take a bound of every choice; return True if the gap is closed."""
        if proven.bound_us > self._bound_us(self.problem):
            self.bounds_us[self.problem.partition] = proven.bound_us
            self.certificate = proven.certificate
        value_us = self._best_us()
        return relative_gap(value_us, self._bound_us(self.problem)) <= self.options.gap

    def _best_us(self) -> int:
        """Return the value of the best schedule so far."""
        assert self.attempts.best is not None and self.attempts.best.found.value_us is not None
        value_us = self.attempts.best.found.value_us
        return value_us if self.so_far.best is None else min(value_us, self.so_far.best.value_us)

    def _finish(self, options: SolveOptions, until_s: float, stop: threading.Event) -> None:
        """Search with the best choice until a moment, and with others if that ends early."""
        trials = most_trials(self.problem, self.clock.left_s(until_s))
        share = CHOICE_MOVES.search_share_of_left if trials >= CHOICE_MOVES.least_trials else 1
        first = self._search_best(options, until_s, share, stop)
        if not stop.is_set() and (self._move() or first == StoppedBy.TIME_LIMIT):
            again = replace(options, without=options.without | {Part.FAMILIES})
            self._search_best(again, until_s, 1, stop)
        self._try_further(until_s, stop)

    def _search_best(
        self, options: SolveOptions, until_s: float, share: float, stop: threading.Event
    ) -> StoppedBy | None:
        """Search with the best choice for a share of the time; return why that ended, if begun."""
        assert self.attempts.best is not None
        problem, stages, found = self.attempts.best
        left_s = share * self.clock.left_s(until_s)
        least_s = CHOICE_MOVES.least_share_of_limit * self.options.time_limit_s
        if found.schedule is None or left_s <= least_s or stop.is_set():
            return None
        self.clock.grant(left_s)
        last = replace(options, time_limit_s=left_s).going_on_from(found)
        longer = solve_recomputing(problem, stages, last, self._tell(problem), stop)
        self.attempts.take(ChoiceAttempt(problem, stages, longer))
        return longer.stopped_by

    def _try_further(self, until_s: float, stop: threading.Event) -> None:
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

    def _tell(self, problem: Problem) -> OnImprovement:
        """Return the listener for improvements, with a bound that holds for every choice."""
        return lambda incumbent: self.so_far(
            replace(
                incumbent,
                elapsed_s=self.clock.elapsed_s,
                lower_bound_us=min(self._bound_us(problem), incumbent.value_us),
                certificate=self._certificate(problem),
            )
        )

    def _certificate(self, problem: Problem) -> Certificate:
        """Return the certificate of the bound on the problem's partition."""
        is_own = problem.partition == self.problem.partition
        return self.certificate if is_own else _ANY_CHOICE

    def _bound_us(self, problem: Problem) -> int:
        """Return the lower bound over all choices on the problem's partition."""
        if problem.partition not in self.bounds_us:
            bound_us = problem.objective.value_us(bounds_of_every_choice(problem))
            self.bounds_us[problem.partition] = bound_us
        return self.bounds_us[problem.partition]

    def _result(self) -> Result:
        assert self.attempts.best is not None
        problem, _, found = self.attempts.best
        bound_us = self._bound_us(problem)
        if found.value_us is None:
            found = without_schedule(found, problem, range(problem.costs.num_stages))
        else:
            bound_us = min(bound_us, found.value_us)
        return replace(
            found,
            lower_bound_us=bound_us,
            certificate=self._certificate(problem),
            baselines=self.baselines,
            wall_s=self.clock.elapsed_s,
            stopped_by=_stopped(found, bound_us, self.options.gap),
        )


def _watched(ended: ConditionalStop[ProvenBound]) -> Callable[[ProvenBound], ProvenBound]:
    """Return a function that passes on a bound after it was watched."""

    def watch(proven: ProvenBound) -> ProvenBound:
        ended.watch(proven)
        return proven

    return watch


def _stopped(found: Result, bound_us: int, gap: float) -> StoppedBy:
    if found.value_us is None:
        return found.stopped_by
    return reason_of_end(
        found.value_us,
        bound_us,
        gap,
        is_interrupted=found.stopped_by == StoppedBy.INTERRUPT,
        is_exhausted=found.stopped_by != StoppedBy.TIME_LIMIT,
    )
