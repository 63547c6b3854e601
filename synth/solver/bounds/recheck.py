"""Proving a lower bound again from its certificate, with only the models that it names.

The certificate is not trusted; it only says what to solve. Each model is asked for a solution below
the claimed value, and only the proof that there is none counts. A proven lemma helps the next
models, as it did when the bound was found.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from ortools.sat.python import cp_model

from synth.certificate import Certificate, ForwardSpacing, IdleTime, ProverName, Relaxation
from synth.solver.bounds import forward_spacing
from synth.solver.bounds.bound import Reference
from synth.solver.bounds.closed_form import work_bounds
from synth.solver.bounds.forward_spacing_model import SpacingModel, Spacings, SpacingToEndModel
from synth.solver.bounds.idle_time import IdleBounds
from synth.solver.bounds.idle_time_model import End, IdleTimeModel, IdleTimes, LeastIdle, Stretch
from synth.solver.bounds.rank_subsets import model_of
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.run import ModelOutcome, run
from synth.solver.crosscheck.milp import run_milp
from synth.solver.instance.instance import SPLIT, Instance
from synth.solver.instance.memory_models import relaxed_for_fusion, relaxed_memory
from synth.solver.instance.timing import TimedOrders
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.tuning import RECHECK


class Recheck(StrEnum):
    """The outcome of proving a bound from its certificate.

    REFUTED means that the models of the certificate do not prove the bound; the bound itself may
    hold.
    """

    PROVEN = "proven"
    OPEN = "not within the limit"
    REFUTED = "the certificate does not prove it"


def recheck(
    problem: Problem,
    certificate: Certificate,
    claimed_us: int,
    options: SolveOptions,
    should_stop: Callable[[], bool],
) -> Recheck:
    """Prove a bound of one partition from its certificate.

    Args:
        problem: the problem that the bound is for.
        claimed_us: the bound.
        options: time limit, workers and seed.
        should_stop: polled during each proof.
    """
    checker = _Checker(problem, claimed_us, options, should_stop)
    try:
        return checker.run(certificate)
    except _Ended as ended:
        return ended.reason


def refute_below(
    model: ExactModel, least_us: int, options: SolveOptions, should_stop: Callable[[], bool]
) -> Recheck:
    """Prove that a model has no value below one.

    The value of a model may be anything above its ends, so only the largest values are allowed.
    """
    model.at_least(max(0, least_us - 1 - RECHECK.spare_values))
    return refute(model, model.value, least_us, options, should_stop)


def refute(
    model: ExactModel,
    value: cp_model.LinearExprT,
    least_us: int,
    options: SolveOptions,
    should_stop: Callable[[], bool],
) -> Recheck:
    """Prove that no solution of a model is below a value."""
    if least_us <= 0:
        return Recheck.PROVEN
    model.cp.add(value <= least_us - 1)
    has_solution = False

    def note(event: TimedOrders | int) -> None:
        nonlocal has_solution
        has_solution |= isinstance(event, TimedOrders)

    workers = 1 if len(model.ranks) <= RECHECK.few_ranks else options.workers
    part = replace(options, gap=0.0, workers=workers)
    limit_s = options.time_limit_s
    found = run(model, part, limit_s, note, lambda: has_solution or should_stop())
    return Recheck.REFUTED if has_solution else _judged(found)


def _judged(found: ModelOutcome) -> Recheck:
    """Translate an outcome; only the proof that there is no solution proves a bound."""
    if found.timing is not None:
        return Recheck.REFUTED
    return Recheck.PROVEN if found.infeasible else Recheck.OPEN


class _Ended(Exception):
    """Ends all proofs with the outcome of a step without a proof."""

    def __init__(self, reason: Recheck) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class _Checker:
    """The models of one problem, and the time left for them."""

    problem: Problem
    claimed_us: int
    options: SolveOptions
    should_stop: Callable[[], bool]

    def __post_init__(self) -> None:
        self.objective = self.problem.objective
        self.instance = relaxed_for_fusion(self.problem)
        self.work = work_bounds(self.instance)
        self.until_s = time.monotonic() + self.options.time_limit_s

    def run(self, certificate: Certificate) -> Recheck:
        """Try the closed forms, which cost nothing, then the models that the certificate names."""
        if self.objective.value_us(self.work) >= self.claimed_us:
            return Recheck.PROVEN
        match certificate.prover:
            case ProverName.EXACT:
                self._by_exact_model(certificate.relaxation)
            case ProverName.MILP:
                self._by_milp()
            case ProverName.RANKS:
                self._by_ranks(certificate)
            case ProverName.SPACING:
                self._by_spacings(certificate)
            case ProverName.IDLE_TIME:
                self._by_idle_times(certificate)
            case _:
                return Recheck.REFUTED  # the closed forms have been looked at
        return Recheck.PROVEN

    # Provers

    def _by_exact_model(self, relaxation: Relaxation) -> None:
        """Prove that no schedule of all ranks is below the claim."""
        is_fusible = relaxation == Relaxation.FUSIBLE
        instance = relaxed_memory(self.problem) if is_fusible else self.instance
        self._require(instance.can_fuse_all or not is_fusible)
        self._mind_size(instance, range(instance.num_ranks), RECHECK.most_ops)
        model = ExactModel(instance, self.objective, self.claimed_us - 1, fusible=is_fusible)
        model.both_at_least(self.work)
        self._refute_below(model, self.claimed_us)

    def _by_milp(self) -> None:
        self._mind_size(self.instance, range(self.instance.num_ranks), RECHECK.most_milp_ops)
        self._mind_time()
        found = run_milp(self.instance, self.objective, self.claimed_us - 1, self._left_s())
        self._mind(_judged(found))

    def _by_ranks(self, certificate: Certificate) -> None:
        ranks = self._ranks(certificate.ranks)
        known = self._spacings(certificate.forward_spacings)
        model = model_of(self.instance, self.objective, self.claimed_us - 1, ranks, known)
        self._refute_below(model, self.claimed_us)

    def _by_spacings(self, certificate: Certificate) -> None:
        known = self._spacings(certificate.forward_spacings)
        whole_us = known.whole_us(self.instance.copies[0].last)
        self._require(self.objective.iterations * whole_us >= self.claimed_us)

    def _by_idle_times(self, certificate: Certificate) -> None:
        """Prove idle times, and add them to the work of their rank."""
        self._require(not self.objective.periods or self.instance.origins_us is not None)
        ranks = self._ranks(certificate.ranks)
        self._require(len(ranks) == 1)
        known: IdleTimes = {}
        for lemma in certificate.idle_times:
            self._prove_idle(ranks[0], lemma)
            of_end = known.setdefault(End(ranks[0], lemma.is_opening), {})
            of_end[lemma.length_us] = LeastIdle(lemma.least_us, lemma.ranks)
        self._require(self._by_idle(known) >= self.claimed_us)

    def _by_idle(self, known: IdleTimes) -> int:
        """The bound that follows from idle times."""
        claimed = Reference(self.claimed_us, None)
        bounds = IdleBounds(
            instance=self.instance,
            objective=self.objective,
            options=self.options,
            work=self.work,
            reference=lambda: claimed,
            should_stop=self.should_stop,
            least_us=known,
        )
        return bounds.bound_us

    # Lemmas

    def _spacings(self, lemmas: Iterable[ForwardSpacing]) -> Spacings:
        """Prove spacings one after the other, each with the help of those before."""
        known = Spacings()
        for lemma in lemmas:
            self._require(forward_spacing.applies(self.instance))
            known.to_end_us[0] = forward_spacing.closed_to_end_us(self.instance)
            self._prove_spacing(lemma, known)
            of_kind = known.to_end_us if lemma.is_to_end else known.apart_us
            of_kind[lemma.num_forwards] = lemma.least_us
        return known

    def _prove_spacing(self, lemma: ForwardSpacing, known: Spacings) -> None:
        ranks = self._ranks(lemma.ranks)
        first = self.instance.copies[0]
        self._require(first.rank in ranks and lemma.num_forwards <= first.last)
        few = forward_spacing.of_few(self.instance, lemma.num_forwards + 1)
        kind = SpacingToEndModel if lemma.is_to_end else SpacingModel
        model = kind(instance=few, scope=ranks, known=known)
        self._refute_below(model, lemma.least_us)

    def _prove_idle(self, rank: int, lemma: IdleTime) -> None:
        """Prove the idle time of a rank in all schedules below the claim."""
        ranks = self._ranks(lemma.ranks)
        self._require(rank in ranks and 0 < lemma.length_us < self.claimed_us)
        is_period = self.objective.periods > 0
        stretch = Stretch(rank, lemma.length_us, lemma.is_opening, is_period)
        longest_us = self.instance.longest_us(self.objective, self.claimed_us - 1)
        model = IdleTimeModel(self.instance, stretch, ranks, longest_us)
        self._mind_time()
        self._mind(refute(model, model.idle_us, lemma.least_us, self._options(), self.should_stop))

    # Models

    def _refute_below(self, model: ExactModel, least_us: int) -> None:
        self._mind_time()
        self._mind(refute_below(model, least_us, self._options(), self.should_stop))

    def _options(self) -> SolveOptions:
        return replace(self.options, time_limit_s=self._left_s())

    def _mind(self, found: Recheck) -> None:
        if found != Recheck.PROVEN:
            raise _Ended(found)

    def _require(self, is_so: bool) -> None:
        """Refute the certificate if it does not fit the problem or its bound."""
        if not is_so:
            raise _Ended(Recheck.REFUTED)

    def _ranks(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks to model, each once."""
        ranks = tuple(sorted(set(given)))
        self._require(bool(ranks) and ranks[-1] < self.instance.num_ranks)
        if len(ranks) > RECHECK.few_ranks:
            self._mind_size(self.instance, ranks, RECHECK.most_ops)
        return ranks

    def _mind_size(self, instance: Instance, ranks: Iterable[int], most_ops: int) -> None:
        """Give up where a model would be too large to solve."""
        copies = (instance[index] for rank in ranks for index in instance.held[rank])
        if sum(len(SPLIT) * copy.num_micro_batches for copy in copies) > most_ops:
            raise _Ended(Recheck.OPEN)

    def _left_s(self) -> float:
        return self.until_s - time.monotonic()

    def _mind_time(self) -> None:
        if self._left_s() <= 0 or self.should_stop():
            raise _Ended(Recheck.OPEN)
