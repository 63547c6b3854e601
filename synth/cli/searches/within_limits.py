"""`synth solve` under given limits: the search, Ctrl-C, and the answer."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from synth.cli.answer.candidates import candidates_json, candidates_table, sizes
from synth.cli.answer.output import AnswerForm, Format, answer, answer_json, talk
from synth.cli.answer.solve import as_json, as_text
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.progress.reporter import ProgressReporter
from synth.options.best_so_far import BestSoFar
from synth.options.request import NoSchedule, Request, announce, announce_sizes
from synth.options.solve_task import SolveTask
from synth.plan.choose.candidates import Partitioning, Ranking, Trial
from synth.plan.choose.standings import cut_short
from synth.plan.weight_passing.data_parallel_plan import of_all
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result


def solve_within_limits(asked: SolveTask, form: AnswerForm) -> None:
    """Search, save every improvement, and answer.

    Raises:
        NoSchedule: nothing was found.
    """
    request = asked.request
    if asked.has_several:
        announce_sizes(request)
        talk(f"to try: {'; '.join(asked.space.names)}")
    else:
        announce(request)
    for name, why in asked.refusals.items():
        talk(f"not {name}: {why}")
    so_far, deadline = BestSoFar(), request.deadline
    standings: deque[Sequence[Trial]] = deque(maxlen=1)

    def so_far_chosen() -> Ranking | None:
        found = so_far.result(deadline.elapsed_s)
        if found is None:
            return None
        return cut_short(standings[-1], found) if standings else Ranking(found, ())

    chosen = run_interruptibly(
        lambda stop: asked.search(reporting(asked, so_far), stop, standings.append),
        deadline.until(),
        so_far_chosen,
    )
    if not chosen.trials:
        finish(request, chosen.result, form)
        return
    partitions = {trial.problem.partition for trial in chosen.trials}
    is_given = request.partitioning == Partitioning.GIVEN and request.recompute == ()
    with_partitions = len(partitions) > 1 or not is_given
    more = candidates_table(chosen, with_partitions=with_partitions, has_all_rows=form.has_all_rows)
    finish(request, chosen.result, form, more, {"candidates": candidates_json(chosen)})


def reporting(
    asked: SolveTask, so_far: BestSoFar
) -> Callable[[Problem], Callable[[Incumbent], None]]:
    """Return listeners that save and report improvements, and say once where the next ones are."""
    request, space = asked.request, asked.space
    # The only candidate was announced.
    last = None if asked.has_several else ProgressReporter(request)
    last_name = space.names[0]

    def listener(problem: Problem) -> Callable[[Incumbent], None]:
        nonlocal last, last_name
        trial, name = request.on(problem), space.name_of(problem)
        if last is None or name != last_name or not last.is_of(trial):
            last, last_name = ProgressReporter(trial, f"on {name}: {sizes(problem)}", last), name
        return so_far.listening(problem, last)

    return listener


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
