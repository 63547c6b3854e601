"""A call of CP-SAT that survives its worker's death: a second worker continues from its reports.

first worker | solutions, bounds ... dies
second       |                       begins from the best solution and the bound, without the
                                     parameters known to abort, for the rest of the limit

A bound counts as soon as it is reported, even if its worker fails a check of its own later. That
there is no solution counts only if a single worker has proven it from the model alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from synth.solver.cpsat import worker_pool
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.parameters import without_aborts
from synth.solver.cpsat.worker_pool import WorkerDied
from synth.solver.cpsat.worker_program import Answer, Event, ModelSolution, no_values
from synth.solver.tuning import CPSAT


def has_values(status: int) -> bool:
    """True if a status of CP-SAT's comes with a solution."""
    return status in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def ask(
    model: cp_model.CpModelProto,
    parameters: cp_model.SatParameters,
    on_events: Callable[[list[Event]], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Answer:
    """Minimise, or find any solution of a model without an objective.

    If two workers die, the answer is made of their reports, else it is "unknown".

    Args:
        on_events: called in this thread with all new reports, in order. None: workers report
            nothing before the answer, which makes short calls cheaper, and a second worker begins
            anew.
        should_stop: polled; the search ends within about a second after it returns True.

    Raises:
        RunFailure: no worker can be started.
    """
    reports = _Reports(model.has_objective())

    def take(events: list[Event]) -> None:
        reports.note(events)
        if on_events is not None:
            on_events(events)

    listener = None if on_events is None else take
    began_s = time.monotonic()
    try:
        return worker_pool.solve(model, parameters, listener, should_stop)
    except WorkerDied as death:
        take([f"CP-SAT's process ended without an answer: {death}"])
        left = _what_is_left(parameters, time.monotonic() - began_s, reports.deterministic_s)
    # Of what a worker that died did not report, a deterministic limit counts as spent.
    limit_s, spent_s = parameters.max_deterministic_time, reports.deterministic_s
    whole_s = limit_s if math.isfinite(limit_s) else spent_s
    if reports.is_proven or left is None or should_stop():
        return reports.answer(whole_s if left is None else spent_s)
    try:
        answer = worker_pool.solve(reports.continued(model), left, listener, should_stop)
    except WorkerDied as death:
        take([f"CP-SAT's process ended without an answer: {death}"])
        return reports.answer(whole_s)
    return reports.better_of(answer._replace(deterministic_s=spent_s + answer.deterministic_s))


def _what_is_left(
    parameters: cp_model.SatParameters, clock_s: float, deterministic_s: float
) -> cp_model.SatParameters | None:
    """Return the parameters for the second worker; None if nothing is left of the limit."""
    left = without_aborts(parameters)
    left.max_time_in_seconds -= clock_s
    left.max_deterministic_time -= deterministic_s
    is_over = min(left.max_time_in_seconds, left.max_deterministic_time) < CPSAT.shortest_limit_s
    return None if is_over else left


@dataclass
class _Reports:
    """The best solution and bound that workers have reported of a model, and their effort."""

    has_objective: bool
    best: ModelSolution | None = None
    bound: float = -math.inf
    deterministic_s: float = 0.0

    def note(self, events: list[Event]) -> None:
        """Record reports."""
        for event in events:
            if isinstance(event, ModelSolution):
                self.deterministic_s = max(self.deterministic_s, event.deterministic_s)
                if self.best is None or event.objective <= self.best.objective:
                    self.best = event
            elif isinstance(event, float):
                self.bound = max(self.bound, event)

    @property
    def is_proven(self) -> bool:
        """True if no solution is better than the best reported one."""
        return self.best is not None and (
            not self.has_objective or self.best.objective <= self.bound + CPSAT.bound_tolerance
        )

    def answer(self, deterministic_s: float) -> Answer:
        """Make an answer of the reports."""
        bound = self.bound if math.isfinite(self.bound) else 0.0
        if self.best is None:
            unknown = int(cp_model.UNKNOWN)
            return Answer(unknown, bound, math.inf, deterministic_s, no_values())
        status = int(cp_model.OPTIMAL if self.is_proven else cp_model.FEASIBLE)
        return Answer(status, bound, self.best.objective, deterministic_s, self.best.values)

    def better_of(self, answer: Answer) -> Answer:
        """Return the second worker's answer, with the first one's reports where they are better."""
        if answer.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE, cp_model.MODEL_INVALID):
            return answer
        if has_values(answer.status):  # its earlier reports, if any were requested, have been noted
            self.note([ModelSolution(answer.objective, 0.0, answer.values)])
        if math.isfinite(answer.bound):
            self.note([answer.bound])
        return self.answer(answer.deterministic_s)

    def continued(self, model: cp_model.CpModelProto) -> cp_model.CpModelProto:
        """Return the model with the best solution as its hint and the bound as least objective.

        Without a solution the bound is left out: a proof that there is none must not rest on
        reports of a worker that failed.
        """
        copy = cp_model.CpModelProto()
        copy.copy_from(model)
        if self.best is None:
            return copy
        copy.clear_solution_hint()
        copy.solution_hint.vars.extend(range(len(self.best.values)))
        copy.solution_hint.values.extend(list(self.best.values))
        objective = copy.objective
        if self.has_objective and math.isfinite(self.bound) and not len(objective.domain):
            factor = objective.scaling_factor or 1.0
            least = math.ceil(self.bound / factor - objective.offset - CPSAT.bound_tolerance)
            objective.domain.extend([least, cp_model.INT_MAX])
        return copy
