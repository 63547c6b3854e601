"""Running CP-SAT so that it can be stopped from outside and reports as it goes."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from synth.schedule.files.certificate import ProvenBound
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.or_tools import cp_model, cp_model_helper
from synth.solver.cpsat.parameters import mind_orders, of_options, quiet, search_from_below
from synth.solver.cpsat.restarting_call import ask, has_values
from synth.solver.cpsat.worker_program import Answer, Event, ModelSolution
from synth.solver.instance.timing import TimedOrders
from synth.solver.options import SolveOptions
from synth.solver.tuning import CPSAT

__all__ = [
    "ModelOutcome",
    "SmallSolution",
    "TimedBounds",
    "Values",
    "decide",
    "decide_by_relaxation",
    "run",
    "search_from_below",
    "solve_briefly",
]


# Yields proven bounds, and returns the seconds spent, in the terms of their limit.
TimedBounds = Generator[ProvenBound, None, float]


@dataclass(frozen=True)
class ModelOutcome:
    """The bound and the solution of a run; `infeasible` and `optimal` are proofs.

    `spent_s` is in the terms of the run's limit: deterministic seconds, or those of the clock.
    """

    bound_us: int
    timing: TimedOrders | None
    optimal: bool
    infeasible: bool
    spent_s: float = 0.0


def run(
    model: ExactModel,
    options: SolveOptions,
    limit_s: float,
    on_event: Callable[[TimedOrders | int], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    began_s: float | None = None,
) -> ModelOutcome:
    """Solve in a worker process, and hand over solutions and bounds in this thread.

    `on_event` may take its time. If the worker dies, its reports still count, see
    `restarting_call`.

    Args:
        limit_s: seconds of the clock, or deterministic seconds with `options.deterministic`.
        began_s: the start of building the model (`time.monotonic()`), which counts as spent too.
    """
    if model.infeasible:
        return ModelOutcome(0, None, optimal=False, infeasible=True)
    began_s = time.monotonic() if began_s is None else began_s
    parameters = of_options(options, limit_s)
    model.tune(parameters)

    def hand_on(events: list[Event]) -> None:
        for event in events if options.deterministic else _without_overtaken(events):
            if isinstance(event, str):
                if options.verbose is not None:
                    options.verbose(event)
            elif on_event is None:
                continue
            elif isinstance(event, ModelSolution):
                on_event(model.read(Values(event.values).value))
            elif bound_us := _integer_bound(event):
                on_event(bound_us)

    answer = _checked(ask(model.cp.proto, parameters, hand_on, should_stop))
    spent_s = answer.deterministic_s if options.deterministic else time.monotonic() - began_s
    return _outcome(model, answer, spent_s)


def _without_overtaken(events: list[Event]) -> Iterator[Event]:
    """Drop all but the last of several solutions in a row.

    Events that come together depend on timing, so a repeatable search takes every one.
    """
    for event, following in pairwise([*events, None]):
        is_overtaken = isinstance(event, ModelSolution) and isinstance(following, ModelSolution)
        if event is not None and not is_overtaken:
            yield event


class Values:
    """The values of a solution."""

    def __init__(self, values: array[int], bound: float = 0.0) -> None:
        self._response = cp_model.CpSolverResponse()
        self._response.solution.extend(list(values))
        self.bound = bound

    def value(self, expression: cp_model.LinearExprT) -> int:
        """Evaluate a variable or a sum."""
        return int(cp_model_helper.ResponseHelper.value(self._response, expression))


class SmallSolution(NamedTuple):
    """The solution of a small model, if there is one, and the effort.

    `is_refuted` is a proof that there is none.
    """

    found: Values | None
    spent_s: float
    is_refuted: bool


def decide(
    model: cp_model.CpModel,
    seconds: float,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    is_thorough: bool = False,
    presolves: bool = True,
) -> SmallSolution:
    """Solve a small model of many ops with one worker.

    Args:
        seconds: effort, counted in deterministic steps that take about this long.
        is_thorough: use stronger disjunctive propagation, which is slower.
        presolves: simplify the model first, which may take longer than the search.
    """
    parameters = quiet(seed, 1, repeatable=True)
    parameters.cp_model_presolve = presolves
    mind_orders(parameters)
    parameters.use_strong_propagation_in_disjunctive = is_thorough
    if not model.has_objective():
        # With them OR-Tools 9.15 fails a check (`!assumptions_.empty()`), and aborts the process,
        # where it refutes some models; given an assumption, it never ends on others.
        parameters.use_dynamic_precedence_in_disjunctive = False
    parameters.max_deterministic_time = seconds / CPSAT.clock_s_per_deterministic_s
    answer = _checked(ask(model.proto, parameters, should_stop=should_stop))
    return SmallSolution(
        _found(answer),
        CPSAT.clock_s_per_deterministic_s * answer.deterministic_s,
        answer.status == cp_model.INFEASIBLE,
    )


def decide_by_relaxation(
    model: cp_model.CpModel,
    seconds: float,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> SmallSolution:
    """Solve a model whose constraints are nearly all linear, with one worker.

    Cycles of differences in large domains are refuted at once by the linear relaxation; bounds
    propagation would raise the domains step by step.

    Args:
        seconds: CP-SAT's deterministic ones.
    """
    parameters = quiet(seed, 1, repeatable=True)
    parameters.linearization_level = 2
    parameters.max_deterministic_time = seconds
    answer = _checked(ask(model.proto, parameters, should_stop=should_stop))
    is_refuted = answer.status == cp_model.INFEASIBLE
    return SmallSolution(_found(answer), answer.deterministic_s, is_refuted)


def solve_briefly(
    model: cp_model.CpModel,
    seconds: float,
    seed: int,
    workers: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> Values | None:
    """Solve a model of few ops, with linear relaxations; None: nothing found.

    Args:
        seconds: CP-SAT's deterministic ones.
    """
    parameters = quiet(seed, workers, repeatable=True)
    parameters.max_deterministic_time = seconds
    return _found(_checked(ask(model.proto, parameters, should_stop=should_stop)))


def _checked(answer: Answer) -> Answer:
    """Return the answer, or raise if the model is invalid, which is a bug in its builder."""
    if answer.status == cp_model.MODEL_INVALID:
        raise RuntimeError(f"CP-SAT rejects a model: {answer.info}")
    return answer


def _found(answer: Answer) -> Values | None:
    return Values(answer.values, answer.bound) if has_values(answer.status) else None


def _integer_bound(bound: float) -> int:
    """Round a bound up to the next integer, minding the float's own error."""
    return max(0, int(-(-(bound - 1e-6) // 1)))


def _outcome(model: ExactModel, answer: Answer, spent_s: float) -> ModelOutcome:
    found = _found(answer)
    known = found is not None or answer.status == cp_model.UNKNOWN
    return ModelOutcome(
        _integer_bound(answer.bound) if known else 0,
        model.read(found.value) if found is not None else None,
        optimal=answer.status == cp_model.OPTIMAL,
        infeasible=answer.status == cp_model.INFEASIBLE,
        spent_s=spent_s,
    )
