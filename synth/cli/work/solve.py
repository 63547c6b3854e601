"""The work of `synth solve`: one way for all searches, from the options to the answer."""

from collections import deque
from collections.abc import Sequence

from synth.cli.answer.candidates import candidates_json, candidates_table, stability_line
from synth.cli.answer.output import AnswerForm, Format, answer, answer_json, talk
from synth.cli.answer.preview import preview
from synth.cli.answer.solve import as_json, as_text
from synth.cli.progress.interrupt import is_stop_asked, run_interruptibly
from synth.cli.progress.reporter import ProgressReporter
from synth.cli.solve import SolveRequest
from synth.options.choice_stability import choice_stability
from synth.options.request import NoSchedule, announce, announce_sizes
from synth.options.solve_task import SolveTask, read_solve
from synth.plan.choose.candidates import Partitioning, Ranking, SearchWatch, Trial
from synth.plan.choose.ranking import interim_ranking
from synth.plan.weight_passing.data_parallel_plan import of_all
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy
from synth.solver.result import Incumbent
from synth.system.processor_waits import ProcessorWatch


def work(request: SolveRequest) -> None:
    task = read_solve(request.arguments)
    if request.dry_run:
        preview(task, request.format)
        return
    _announce(task)
    _answer(task, _search(task), AnswerForm(request.format, request.has_all_rows))


def _announce(task: SolveTask) -> None:
    if task.has_several:
        announce_sizes(task.request)
        talk(f"to try: {'; '.join(task.space.names)}")
    else:
        announce(task.request)
    for name, why in task.refusals.items():
        talk(f"not {name}: {why}")
    request = task.request
    if request.allowed.offloads and request.problem.costs.links.host is None:
        talk(
            "note: the profile has no link to the host's memory (links.host), so that only "
            "published schedules that offload to other ranks are tried"
        )
    if task.pairs is not None:
        talk(
            "note: published schedules whose F and BW run at once are tried first; the search "
            "orders ops that run one after the other"
        )
    elif task.request.profile.has_pairs:
        talk(
            "note: the profile has times of F and BW at once, which this search does not use; "
            "synth compare lists published schedules that do"
        )


def _search(task: SolveTask) -> Ranking:
    """Search, and save every improvement; without an end in time the best so far is the answer."""
    so_far, deadline = BestSoFar[Incumbent](ProgressReporter(task)), task.request.deadline
    reports: deque[Sequence[Trial]] = deque(maxlen=1)

    def ranking_so_far() -> Ranking | None:
        best = so_far.close()
        if best is None:
            return None
        reason = StoppedBy.INTERRUPT if is_stop_asked() else StoppedBy.TIME_LIMIT
        found = best.as_result(deadline.elapsed_s, reason)
        return interim_ranking(reports[-1], found) if reports else Ranking(found, ())

    machine = ProcessorWatch()
    with machine.looking():
        found = run_interruptibly(
            lambda stop: task.search(SearchWatch(so_far, stop, reports.append)),
            deadline.until(),
            ranking_so_far,
        )
    return found._replace(result=task.timed(found.result, machine))


def _answer(task: SolveTask, chosen: Ranking, form: AnswerForm) -> None:
    """Save the best plan, and print the answer.

    Raises:
        NoSchedule: nothing was found.
    """
    request, result = task.request.of(chosen.result), chosen.result
    num_pipelines, request = request.num_pipelines, request.of_all_pipelines()
    result = of_all(result, request.problem, num_pipelines, request.options.gap)
    plan = None if result.schedule is None else request.plan(result)
    if plan is not None and request.output is not None:
        plan.save(request.output)
    stability = choice_stability(task.request, chosen) if plan is not None else None
    if form.format == Format.JSON:
        candidates = {"candidates": candidates_json(chosen)} if chosen.trials else {}
        over = {} if stability is None else {"stability": stability.data()}
        answer_json(as_json(request, result) | candidates | over)
    if plan is None:
        raise NoSchedule(result)
    if form.format == Format.TEXT:
        more = _candidates(task, chosen, form) if chosen.trials else ""
        if stability is not None:
            more += f"\n\n{stability_line(stability)}"
        answer(as_text(request, result, plan, more, has_all_rows=form.has_all_rows))
    talk(f"saved as {request.output}" if request.output else "not saved: give -o plan.json")


def _candidates(task: SolveTask, chosen: Ranking, form: AnswerForm) -> str:
    """Return the table of the candidates, with their partitions if these differ."""
    request, partitions = task.request, {one.problem.partition for one in chosen.trials}
    is_given = request.partitioning == Partitioning.GIVEN and request.recompute == ()
    with_partitions = len(partitions) > 1 or not is_given
    return candidates_table(chosen, with_partitions=with_partitions, has_all_rows=form.has_all_rows)
