"""CP-SAT in a worker process: OR-Tools 9.15 fails checks on some models, and aborts its process.

Its parent sends a `ModelQuestion`; the worker reports `TAKEN`, solutions, bounds and lines of the
log as they come, and an `Answer`, or the text of an exception as a `Failure`. TAKEN distinguishes
the death of an idle worker from that of one that solves.

Models are sent as text, the only form that CP-SAT's bindings can read. Besides these the worker
imports the standard library alone: so it starts in 0.1 s.
"""

import threading
import time
import traceback
from array import array
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from synth.system.child_program import ParentProcess

TAKEN = None

# Interval at which a stop is requested again: CP-SAT loses one that comes before its search begins.
_STOP_AGAIN_S = 0.02
_IDLE_S = 0.5


class ModelQuestion(NamedTuple):
    """Parameters and a model in protobuf's text format.

    `reports` is True if the parent wants solutions and bounds as they come.
    """

    parameters: str
    model: str
    reports: bool


class ModelSolution(NamedTuple):
    """The values of all variables, with the deterministic seconds that they took."""

    objective: float
    deterministic_s: float
    values: "array[int]"


class Answer(NamedTuple):
    """The end of a search: CP-SAT's status, the proven bound, the effort, the best solution.

    `values` is empty without a solution. `info` is CP-SAT's remark: of an invalid model the reason.
    """

    status: int
    bound: float
    objective: float
    deterministic_s: float
    values: "array[int]"
    info: str = ""


class Failure(NamedTuple):
    """An exception of the worker's own program."""

    traceback: str


# A better solution, a better bound, or a line of CP-SAT's log.
Event: TypeAlias = ModelSolution | float | str


def no_values() -> "array[int]":
    """The values of no solution."""
    return array("q")


def serve(parent: ParentProcess) -> None:
    """Answer questions until the parent is gone."""
    _leave_no_core()
    from ortools.sat.python import cp_model_helper

    _Worker(parent, cp_model_helper).run()


class _Worker:
    def __init__(self, parent: ParentProcess, bindings: Any) -> None:
        self._parent, self._bindings = parent, bindings
        self._search: Any = None
        threading.Thread(target=self._stop_searches, daemon=True).start()

    def run(self) -> None:
        while True:
            question, began_s = self._parent.tasks.get(), time.monotonic()
            self._parent.report(TAKEN)
            try:
                answer: Answer | Failure = self._answer(question, began_s)
            except MemoryError:
                raise
            except Exception:
                answer = Failure(traceback.format_exc())
            self._parent.report(answer)

    def _stop_searches(self) -> None:
        """Request a stop again and again while a search that is to stop has yet to end."""
        while self._parent.stop.wait():
            search = self._search
            if search is not None and self._parent.stop.is_set():
                search.stop_search()
            time.sleep(_IDLE_S if search is None else _STOP_AGAIN_S)

    def _answer(self, question: ModelQuestion, began_s: float) -> Answer:
        parameters = self._parsed(self._bindings.SatParameters(), question.parameters)
        model = self._parsed(self._bindings.CpModelProto(), question.model)
        left_s = parameters.max_time_in_seconds - (time.monotonic() - began_s)
        parameters.max_time_in_seconds = max(0.0, left_s)
        search, report = self._bindings.SolveWrapper(), self._parent.report
        search.set_parameters(parameters)
        listener = self._listener()
        if question.reports:
            search.add_solution_callback(listener)
            search.add_best_bound_callback(report)
            if parameters.log_search_progress:
                search.add_log_callback(report)
        self._search = search
        response = search.solve(model)
        self._search = None
        if question.reports:
            search.clear_solution_callback(listener)
        return Answer(
            int(response.status),
            response.best_objective_bound,
            response.objective_value,
            response.deterministic_time,
            array("q", response.solution),
            response.solution_info,
        )

    def _parsed(self, message: Any, text: str) -> Any:
        if not message.parse_text_format(text):
            raise ValueError("CP-SAT's bindings do not read what they have written")
        return message

    def _listener(self) -> Any:
        report = self._parent.report

        class Listener(self._bindings.SolutionCallback):  # type: ignore[name-defined, misc]
            """Reports each better solution."""

            def OnSolutionCallback(self) -> None:
                values = array("q", self.Response().solution)
                report(ModelSolution(self.ObjectiveValue(), self.DeterministicTime(), values))

        return Listener()


def _leave_no_core() -> None:
    """Write no memory image into the user's folder where CP-SAT aborts."""
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
