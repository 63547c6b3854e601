"""Running CP-SAT so that it can be stopped from outside and reports as it goes."""

import queue
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from ortools.sat.python import cp_model

from synth.certificate import Proven
from synth.solve.cpsat import Model
from synth.solve.problem import SolveOptions
from synth.solve.solution import Solution

_POLL_S = 0.05

# Models of so many of CP-SAT's deterministic seconds are over before a stop would be of use.
_MOMENT_S = 0.02

# What a deterministic second takes of the clock, about, where orders are minded (`decide`).
_DETERMINISTIC_S = 8.0

_FOUND = (cp_model.OPTIMAL, cp_model.FEASIBLE)

# CP-SAT keeps its seed in 32 bits, signed.
_SEEDS = 1 << 31


# Proven bounds, and in the end what they took, in the terms of their limit.
TimedBounds = Generator[Proven, None, float]


@dataclass(frozen=True)
class Outcome:
    """What a run proved and found; `infeasible` and `optimal` are proofs.

    `spent_s` is in the terms of the run's limit: deterministic seconds, or those of the clock.
    """

    bound_us: int
    solution: Solution | None
    optimal: bool
    infeasible: bool
    spent_s: float = 0.0


def run(
    model: Model,
    options: SolveOptions,
    limit_s: float,
    on_event: Callable[[Solution | int], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    began_s: float | None = None,
) -> Outcome:
    """Solve in a worker thread while this one hands on solutions and bounds and watches for a stop.

    CP-SAT's own SIGINT handling is off: in a worker thread it would abort the process. `on_event`
    gets solutions and bounds in the calling thread, so it may take its time.

    Args:
        limit_s: seconds of the clock, or deterministic seconds with `options.deterministic`.
        began_s: when building the model began, `time.monotonic()`: of the clock's seconds those
            count as spent too.
    """
    if model.infeasible:
        return Outcome(0, None, optimal=False, infeasible=True)
    solver = _configured(options, limit_s)
    model.tune(solver.parameters)
    events: _Events = queue.SimpleQueue()
    solver.best_bound_callback = lambda bound: events.put(_integer_bound(bound))
    status = _solve(
        solver,
        model.cp,
        should_stop,
        events,
        _Listener(model, events),
        on_event,
        every_one=options.deterministic,
    )
    assert status != cp_model.MODEL_INVALID, solver.response_proto.solution_info
    response = solver.response_proto
    spent_s = response.wall_time if began_s is None else time.monotonic() - began_s
    spent_s = response.deterministic_time if options.deterministic else spent_s
    return replace(_outcome(model, solver, status), spent_s=spent_s)


class _End(NamedTuple):
    """What CP-SAT ended with, or the error, to be raised where it can be caught."""

    result: cp_model.CpSolverStatus | BaseException


_Events: TypeAlias = "queue.SimpleQueue[Solution | int | _End]"


def _solve(
    solver: cp_model.CpSolver,
    model: cp_model.CpModel,
    should_stop: Callable[[], bool],
    events: _Events,
    listener: "_Listener | None" = None,
    on_event: Callable[[Solution | int], None] | None = None,
    *,
    every_one: bool = False,
) -> cp_model.CpSolverStatus:
    """Solve in another thread, so that this one can stop it, be interrupted, and hand on events."""

    def work() -> None:
        try:
            events.put(_End(solver.solve(model, listener)))
        except BaseException as error:
            events.put(_End(error))

    thread = threading.Thread(target=work, name="cp-sat", daemon=True)
    thread.start()
    try:
        end = _attend(events, on_event, should_stop, solver, every_one)
    finally:
        while thread.is_alive():  # a stop asked for before the search has begun is lost
            solver.stop_search()
            thread.join(_POLL_S)
    if isinstance(end.result, BaseException):
        raise end.result
    return end.result


def _attend(
    events: _Events,
    on_event: Callable[[Solution | int], None] | None,
    should_stop: Callable[[], bool],
    solver: cp_model.CpSolver,
    every_one: bool,
) -> _End:
    """Hand on events until the search ends; of several solutions in a row only the last.

    Which are in a row is a matter of time, so a repeatable search hands on every one.
    """
    asked_at: float | None = None
    while True:
        try:
            event = events.get(timeout=_POLL_S)
        except queue.Empty:
            event = 0
        while isinstance(event, Solution) and not every_one and not events.empty():
            following = events.get()
            if not isinstance(following, Solution) and on_event:
                on_event(event)
            event = following
        if isinstance(event, _End):
            return event
        if on_event and event:
            on_event(event)
        # A stop asked for before the search has begun is lost, so it is asked for again.
        if should_stop() and (asked_at is None or time.monotonic() - asked_at > 2 * _POLL_S):
            asked_at = time.monotonic()
            solver.stop_search()


class _Listener(cp_model.CpSolverSolutionCallback):
    """Puts each solution into the queue; runs in CP-SAT's thread, so it does nothing else."""

    def __init__(self, model: Model, events: _Events) -> None:
        super().__init__()
        self._model, self._events = model, events

    def on_solution_callback(self) -> None:
        """Called by CP-SAT for every better solution."""
        self._events.put(self._model.read(self.value))


def quiet_solver(seed: int, workers: int, *, repeatable: bool) -> cp_model.CpSolver:
    """A solver as all parts of the search need it; `repeatable` whatever the threads do."""
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.random_seed = seed % _SEEDS
    parameters.num_workers = workers
    # Repeatable means interleaved; then OR-Tools 9.15 aborts on infeasible models without probing.
    parameters.interleave_search = repeatable and workers > 1
    parameters.cp_model_probing_level = 1 if parameters.interleave_search else 0
    parameters.expand_reservoir_constraints = False
    # Where micro-batches go in order, an op precedes nearly every other one of its rank. To look at
    # all these pairs at every step takes two thirds of the time, and next to nothing follows from
    # it. The older propagation of linear constraints is the quicker one for what is left.
    parameters.use_precedences_in_disjunctive_constraint = False
    parameters.new_linear_propagation = False
    parameters.catch_sigint_signal = False
    parameters.log_to_stdout = False
    return solver


def search_from_below(parameters: cp_model.SatParameters) -> None:
    """Ask at the bound, and raise it: where the least value is asked for, and not a schedule."""
    parameters.use_objective_lb_search = True
    parameters.linearization_level = 0


class Decided(NamedTuple):
    """What came of a small model: the solver where it has a solution, and the effort.

    `is_refuted` is proof that there is none.
    """

    solver: cp_model.CpSolver | None
    spent_s: float
    is_refuted: bool


def decide(
    model: cp_model.CpModel,
    seconds: float,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    is_thorough: bool = False,
) -> Decided:
    """Solve a small model of many ops with one worker.

    What is over in a moment is not stopped.

    Args:
        seconds: effort, which is counted and not measured, and takes about so long.
        is_thorough: to conclude more from ops that exclude each other, which takes its time.
    """
    solver = quiet_solver(seed, 1, repeatable=True)
    _mind_orders(solver.parameters)
    solver.parameters.use_strong_propagation_in_disjunctive = is_thorough
    if not model.has_objective():
        # With them OR-Tools 9.15 fails a check (`!assumptions_.empty()`), and aborts the process,
        # where it refutes some models; given an assumption, it never ends on others.
        solver.parameters.use_dynamic_precedence_in_disjunctive = False
    status = _solve_briefly(solver, model, seconds / _DETERMINISTIC_S, should_stop)
    return Decided(
        solver if status in _FOUND else None,
        _DETERMINISTIC_S * solver.response_proto.deterministic_time,
        status == cp_model.INFEASIBLE,
    )


def solve_briefly(
    model: cp_model.CpModel,
    seconds: float,
    seed: int,
    workers: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> cp_model.CpSolver | None:
    """Solve a model of few ops, with linear relaxations; None: nothing found.

    Args:
        seconds: CP-SAT's deterministic ones.
    """
    solver = quiet_solver(seed, workers, repeatable=True)
    return solver if _solve_briefly(solver, model, seconds, should_stop) in _FOUND else None


def _solve_briefly(
    solver: cp_model.CpSolver,
    model: cp_model.CpModel,
    seconds: float,
    should_stop: Callable[[], bool],
) -> cp_model.CpSolverStatus:
    solver.parameters.max_deterministic_time = seconds
    if seconds <= _MOMENT_S:
        status = solver.solve(model)
    else:
        status = _solve(solver, model, should_stop, queue.SimpleQueue())
    assert status != cp_model.MODEL_INVALID, solver.response_proto.solution_info
    return status


def _mind_orders(parameters: cp_model.SatParameters) -> None:
    """Let a single worker look at what precedes what, and not at linear relaxations.

    These say little where ops of a rank exclude each other, and take most of the time.
    """
    parameters.use_dynamic_precedence_in_disjunctive = True
    parameters.linearization_level = 0


def _configured(options: SolveOptions, limit_s: float) -> cp_model.CpSolver:
    # Several workers are repeatable where they take turns; then OR-Tools 9.15 fails a check where a
    # short limit ends the search (`solution->size() == postsolve_mapping.size()`), and aborts.
    workers = 1 if options.deterministic else options.num_workers
    solver = quiet_solver(options.seed, workers, repeatable=options.deterministic)
    parameters = solver.parameters
    parameters.use_dynamic_precedence_in_disjunctive = True  # proofs: up to four times as fast
    if workers == 1:
        _mind_orders(parameters)
    parameters.relative_gap_limit = options.gap
    if options.verbose is not None:
        parameters.log_search_progress = True
        solver.log_callback = options.verbose
    if options.deterministic:
        parameters.max_deterministic_time = max(limit_s, 0.01)
    else:
        parameters.max_time_in_seconds = max(limit_s, 0.01)
    return solver


def _integer_bound(bound: float) -> int:
    """Round a bound up to the next integer, minding the float's own error."""
    return max(0, int(-(-(bound - 1e-6) // 1)))


def _outcome(model: Model, solver: cp_model.CpSolver, status: cp_model.CpSolverStatus) -> Outcome:
    found = status in _FOUND
    known = found or status == cp_model.UNKNOWN
    return Outcome(
        _integer_bound(solver.best_objective_bound) if known else 0,
        model.read(solver.value) if found else None,
        optimal=status == cp_model.OPTIMAL,
        infeasible=status == cp_model.INFEASIBLE,
    )
