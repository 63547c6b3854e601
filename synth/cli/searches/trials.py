"""`synth solve` over several candidates: the search, its table and its preview."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from synth.cli.answer.output import AnswerForm, Format, answer, answer_json, percent, talk
from synth.cli.answer.preview import Infeasible
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.progress.reporter import ProgressReporter
from synth.cli.searches.within_limits import finish
from synth.objective import BoundScope
from synth.options.best_so_far import BestSoFar
from synth.options.candidates import Candidates
from synth.options.request import Request, announce_sizes
from synth.plan.choose.candidates import Chosen, Partitioning, Trial
from synth.plan.choose.race_run import solve_best_of
from synth.plan.choose.standings import cut_short, why_all_infeasible
from synth.plan.recompute.choice import needs_bytes, why_infeasible
from synth.report.text.tables import milliseconds, size_unit, table
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.units import format_bytes

# Rows of the table, unless all are asked for.
_SHOWN = 8


def solve_candidates(request: Request, candidates: Candidates, form: AnswerForm) -> None:
    """Search for all, save every improvement, and answer.

    Raises:
        NoSchedule: nothing was found.
    """
    announce_sizes(request)
    names = {candidate.problem.placement: candidate.name for candidate in candidates.them}
    if len(names) > 1 or candidates.refusals:
        talk(f"placements to try: {', '.join(names.values())}")
    for name, why in candidates.refusals.items():
        talk(f"not {name}: {why}")
    last: ProgressReporter | None = None
    so_far, deadline = BestSoFar(), request.deadline
    standings: deque[Sequence[Trial]] = deque(maxlen=1)

    def listener(problem: Problem) -> Callable[[Incumbent], None]:
        nonlocal last
        trial = request.on(problem)
        if last is None or not last.is_of(trial):
            last = ProgressReporter(trial, f"on {names[problem.placement]}: {sizes(problem)}", last)
        return so_far.listening(problem, last)

    chosen = run_interruptibly(
        lambda stop: solve_best_of(
            candidates.them,
            request.as_run,
            request.partitioning,
            request.options,
            listener,
            stop,
            standings.append,
        ),
        deadline.until(),
        lambda: _cut_short(so_far.result(deadline.elapsed_s), standings),
    )
    more = trials_table(
        chosen,
        with_partitions=request.partitioning != Partitioning.GIVEN or request.recompute != (),
        has_all_rows=form.has_all_rows,
    )
    finish(request, chosen.result, form, more, {"candidates": trials_json(chosen)})


def _cut_short(found: Result | None, standings: Sequence[Sequence[Trial]]) -> Chosen | None:
    """Take the best so far for the answer, and what is known of the other candidates."""
    return None if found is None else cut_short(standings[-1], found)


def trials_table(chosen: Chosen, *, with_partitions: bool, has_all_rows: bool) -> str:
    """Return a table with a row per candidate, best first, and the bound's scope."""
    best, objective = chosen.result, chosen.result.problem.objective
    header = ["placement", f"{objective.words}\nms", "lower bound\nms", "gap", "peak"]
    trials = chosen.trials if has_all_rows else chosen.trials[:_SHOWN]
    rows = [[trial.name, *_row(trial, chosen)] for trial in trials]
    if with_partitions:
        header.append("layers per stage")
        rows = [[*row, sizes(trial.problem)] for row, trial in zip(rows, trials, strict=True)]
    scope = "the placements and partitions in this table"
    if best.bound_scope == BoundScope.ALL:
        scope = "all partitions"
    missing = len(chosen.trials) - len(trials)
    if missing and best.bound_scope != BoundScope.ALL:
        scope = "the placements and partitions of all rows"
    more = f"({missing} more: --all)\n" if missing else ""
    return (
        f"{table(header, rows)}\n{more}\nbest: {chosen.name}, {sizes(best.problem)}; the bound "
        f"below, {milliseconds(best.lower_bound_us)} ms, holds for {scope}"
    )


def sizes(problem: Problem) -> str:
    return ",".join(map(str, problem.partition or ()))


def _row(trial: Trial, chosen: Chosen) -> list[str]:
    """Return value, bound, gap and peak, or why there are none."""
    bound = milliseconds(trial.lower_bound_us)
    if trial.is_impossible:
        return ["infeasible", "", "", ""]
    if trial.found is None:
        return [_without_result(trial, chosen), bound, "", ""]
    value_us, peak_bytes = trial.value_us, trial.found.peak_bytes
    if trial.gap is None or value_us is None or peak_bytes is None:
        return ["none found", bound, "", ""]
    return [milliseconds(value_us), bound, percent(trial.gap), format_bytes(max(peak_bytes))]


def _without_result(trial: Trial, chosen: Chosen) -> str:
    state, best_us = "no result" if chosen.is_cut_short else "not tried", chosen.result.value_us
    if best_us is None:
        return state
    left = 1 - trial.lower_bound_us / best_us
    return "cannot win" if left <= 0 else f"{state}: at most {percent(left)} less"


def trials_json(chosen: Chosen) -> list[dict[str, Any]]:
    return [
        {
            "name": trial.name,
            "partition": trial.problem.partition,
            "value_us": trial.value_us,
            "lower_bound_us": None if trial.is_impossible else trial.lower_bound_us,
            "peak_bytes": None if trial.found is None else trial.found.peak_bytes,
            "seconds": round(trial.seconds, 3),
        }
        for trial in chosen.trials
    ]


def preview_candidates(request: Request, candidates: Candidates, format: Format) -> None:
    """Answer with the least memory and the partition of each placement.

    Raises:
        Infeasible: no schedule is within the memory limits on any of them.
    """
    shortages = [why_infeasible(each.problem, each.choice) for each in candidates.them]
    needs = [max(needs_bytes(each.problem, each.choice)) for each in candidates.them]
    factor, unit = size_unit(max(needs))
    rows, found = [], []
    for each, shortage, need in zip(candidates.them, shortages, needs, strict=True):
        name, problem = each.name, each.problem
        fits = "no" if shortage else "yes"
        rows.append([name, f"{need / factor:,.3f}", fits, sizes(problem)])
        found.append(
            {
                "name": name,
                "placement": problem.placement.ranks,
                "partition": problem.partition,
                "needed_bytes": need,
                "feasible": shortage is None,
                "message": shortage,
            }
        )
    if format == Format.JSON:
        answer_json({"candidates": found, "refused": candidates.refusals})
    else:
        header = ["placement", f"least need\n{unit}", "can fit", "layers per stage"]
        refused = [f"not {name}: {why}" for name, why in candidates.refusals.items()]
        answer("\n".join((table(header, rows), "", *refused, request.limit.explanation)))
    if all(shortages):
        least = needs.index(min(needs))
        raise Infeasible(why_all_infeasible(candidates.them[least].name, shortages[least] or ""))
