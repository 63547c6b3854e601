"""The search for the best choice of recomputation: trials, the best one, a proof for all."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from synth.costs.recomputation import NOT_RECOMPUTED
from synth.plan.recompute.attempts import ChoiceAttempt, ChoiceAttempts, ChoiceKey
from synth.plan.recompute.choice_proof import CERTIFICATE, ChoiceProof
from synth.plan.recompute.choice_trials import ChoiceTrials
from synth.plan.recompute.given_stages import solve_recomputing, without_schedule
from synth.plan.recompute.trial_choices import most_trials
from synth.plan.tuning import CHOICE_MOVES, CHOICE_PROOF
from synth.schedule.files.certificate import ProvenBound
from synth.search.conditional_stop import ConditionalStop
from synth.search.outcome import StoppedBy, reason_of_end, relative_gap
from synth.solver.background import Background
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.tuning import BOUND_POLICY
from synth.solver.watch import UNWATCHED, SolveWatch


def solve_choosing(
    problem: Problem,
    options: SolveOptions | None = None,
    watch: SolveWatch = UNWATCHED,
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
        watch: told of schedules whose problems have the choice of layers: one that fits there may
            not fit without that choice.
        attempts: those of earlier searches on the same problem; new ones are added.
    """
    trials = ChoiceTrials(
        problem, lambda stages: (problem,), options or SolveOptions(), watch, attempts=attempts
    )
    return ChoiceSearch(trials).run()


class ChoiceSearch:
    """Trials of choices, then a search with the best one and a proof for every choice."""

    def __init__(self, trials: ChoiceTrials) -> None:
        """Take trials, whose time limit has begun and is for all."""
        self.trials, self.problem, self.options = trials, trials.problem, trials.options
        self.attempts, self.clock, self.stop = trials.attempts, trials.clock, trials.clock.stop

    def run(self) -> Result:
        """Try choices, then search with the best one in the remaining time."""
        if self.problem.caps_bytes is None:  # without a memory limit recomputation only costs time
            tell = SolveWatch(self.trials.on_improvement, self.stop)
            return solve_recomputing(self.problem, (), self.options, tell)
        self.trials.run()
        self._search_and_prove()
        return self._result()

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
            proof = ChoiceProof(self.problem, options, self.trials.best_us, ended.is_set)
            self.attempts.proof = proof
        else:
            proof.go_on(options, self.trials.best_us, ended.is_set)
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
        self.trials.take_bound(proven)
        bound_us = self.trials.bound_us(self.problem)
        return relative_gap(self.trials.best_us(), bound_us) <= self.options.gap

    def _finish(self, options: SolveOptions, until_s: float, stop: threading.Event) -> None:
        """Search with the best choice until a moment, and with others if that ends early."""
        trials = most_trials(self.problem, self.clock.left_s(until_s))
        share = CHOICE_MOVES.search_share_of_left if trials >= CHOICE_MOVES.least_trials else 1
        first = self._search_best(options, until_s, share, stop)
        if not stop.is_set() and (self.trials.move() or first == StoppedBy.TIME_LIMIT):
            again = replace(options, without=options.without | {Part.FAMILIES})
            self._search_best(again, until_s, 1, stop)
        self.trials.try_further(until_s, stop)

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
        longer = solve_recomputing(
            problem, stages, last, SolveWatch(self.trials.tell(problem), stop)
        )
        self.attempts.take(ChoiceAttempt(problem, stages, longer))
        return longer.stopped_by

    def _result(self) -> Result:
        assert self.attempts.best is not None
        problem, _, found = self.attempts.best
        bound_us = self.trials.bound_us(problem)
        if found.value_us is None:
            found = without_schedule(found, problem, range(problem.costs.num_stages))
        else:
            bound_us = min(bound_us, found.value_us)
        return replace(
            found,
            lower_bound_us=bound_us,
            certificate=self.trials.certificate_of(problem),
            baselines=self.trials.baselines,
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
