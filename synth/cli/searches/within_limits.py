"""`synth solve` under given limits: the search, Ctrl-C, and the answer."""

import threading
from collections.abc import Callable
from typing import Any

from synth.cli.answer.output import AnswerForm, Format, answer, answer_json, talk
from synth.cli.answer.solve import as_json, as_text
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.progress.reporter import ProgressReporter
from synth.options.best_so_far import BestSoFar
from synth.options.request import NoSchedule, Request, announce
from synth.plan.weight_passing.data_parallel_plan import of_all
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result


def solve_within_limits(request: Request, form: AnswerForm) -> None:
    """Search, save every improvement, and answer.

    Raises:
        NoSchedule: nothing was found.
    """
    announce(request)
    found, deadline = BestSoFar(), request.deadline
    result = run_interruptibly(
        lambda stop: search(request, stop, found),
        deadline.until(),
        lambda: found.result(deadline.elapsed_s),
    )
    finish(request, result, form)


def search(request: Request, stop: threading.Event, found: BestSoFar | None = None) -> Result:
    """Find the best schedule on the given partition, or else on a balanced one."""
    so_far = found or BestSoFar()

    def listener(problem: Problem) -> Callable[[Incumbent], None]:
        if problem.partition != request.partition:
            sizes = ",".join(map(str, problem.partition or ()))
            talk(f"new partition, with recomputation counted: {sizes}")
        return so_far.listening(problem, ProgressReporter(request.on(problem)))

    return request.search(listener, stop)


def finish(
    request: Request,
    result: Result,
    form: AnswerForm,
    more_text: str = "",
    more_json: dict[str, Any] | None = None,
) -> None:
    """Save the result and print the answer, with additional text or JSON.

    Raises:
        NoSchedule: nothing was.
    """
    request = request.on(result.problem)
    num_pipelines, request = request.num_pipelines, request.of_all_pipelines()
    result = of_all(result, request.problem, num_pipelines, request.options.gap)
    plan = None if result.schedule is None else request.plan(result)
    if plan is not None and request.output is not None:
        plan.save(request.output)
    if form.format == Format.JSON:
        answer_json(as_json(request, result) | (more_json or {}))
    if plan is None:
        raise NoSchedule(result)
    if form.format == Format.TEXT:
        answer(as_text(request, result, plan, more_text, has_all_rows=form.has_all_rows))
    talk(f"saved as {request.output}" if request.output else "not saved: give -o plan.json")
