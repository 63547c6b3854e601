"""Proving again: the models of one problem that a certificate names, within the time left.

Each model is asked for a solution below the claimed value, and only the proof that there is none
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from synth.objective import Spans
from synth.search.clock import Clock
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.run import ModelOutcome, run
from synth.solver.instance.instance import SPLIT, Instance
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

    workers = 1 if len(model.ops.ranks) <= RECHECK.few_ranks else options.workers
    part = replace(options, gap=0.0, workers=workers)
    limit_s = options.time_limit_s
    found = run(model, part, limit_s, note, lambda: has_solution or should_stop())
    return Recheck.REFUTED if has_solution else judged(found)


def judged(found: ModelOutcome) -> Recheck:
    """Translate an outcome; only the proof that there is no solution proves a bound."""
    if found.timing is not None:
        return Recheck.REFUTED
    return Recheck.PROVEN if found.infeasible else Recheck.OPEN


class RecheckEnded(Exception):
    """Ends all proofs with the outcome of a step without a proof."""

    def __init__(self, reason: Recheck) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Rechecker:
    """A claimed bound of a problem, the means to prove it, and the time left.

    Every method that asks for a proof raises `RecheckEnded` where there is none.

    Attributes:
        options: the time limit, the workers and the seed.
        should_stop: asked often.
        instance: the one that is relaxed for fusion.
        work: its closed-form bounds.
    """

    problem: Problem
    claimed_us: int
    options: SolveOptions
    should_stop: Callable[[], bool]
    instance: Instance
    work: Spans

    def __post_init__(self) -> None:
        self.objective = self.problem.objective
        self._clock = Clock(self.options.time_limit_s)

    def require(self, is_so: bool) -> None:
        """Refute the certificate if it does not fit the problem or its bound."""
        if not is_so:
            raise RecheckEnded(Recheck.REFUTED)

    def require_proof(self, found: Recheck) -> None:
        """End with the outcome of a model if it is no proof."""
        if found != Recheck.PROVEN:
            raise RecheckEnded(found)

    def require_time(self) -> None:
        """Give up if the time is over."""
        if self._clock.is_over() or self.should_stop():
            raise RecheckEnded(Recheck.OPEN)

    @property
    def left_s(self) -> float:
        """Seconds of the limit that are left."""
        return self._clock.left_s()

    def require_size(self, instance: Instance, ranks: Iterable[int], most_ops: int) -> None:
        """Give up where a model would be too large to solve."""
        copies = (instance[index] for rank in ranks for index in instance.held[rank])
        if sum(len(SPLIT) * copy.num_micro_batches for copy in copies) > most_ops:
            raise RecheckEnded(Recheck.OPEN)

    def ranks(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks to model, each once."""
        ranks = tuple(sorted(set(given)))
        self.require(bool(ranks) and ranks[-1] < self.instance.num_ranks)
        if len(ranks) > RECHECK.few_ranks:
            self.require_size(self.instance, ranks, RECHECK.most_ops)
        return ranks

    def refute_below(self, model: ExactModel, least_us: int) -> None:
        """Prove that a model has no value below one."""
        self.require_time()
        self.require_proof(refute_below(model, least_us, self._options(), self.should_stop))

    def refute(self, model: ExactModel, value: cp_model.LinearExprT, least_us: int) -> None:
        """Prove that no solution of a model has a value below one."""
        self.require_time()
        self.require_proof(refute(model, value, least_us, self._options(), self.should_stop))

    def _options(self) -> SolveOptions:
        return replace(self.options, time_limit_s=self.left_s)
