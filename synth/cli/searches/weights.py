"""`synth solve --weights`: the search over places of weights, and the answer."""

from collections.abc import Callable
from dataclasses import replace

from synth.cli.answer.output import AnswerForm, Format, answer, answer_json, talk
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.progress.reporter import ProgressReporter
from synth.cli.searches.trials import sizes, trials_json, trials_table
from synth.cli.searches.within_limits import finish
from synth.objective import BoundScope
from synth.options.asked_solve import AskedSolve
from synth.options.best_so_far import BestSoFar
from synth.options.request import announce_sizes
from synth.plan.choose.candidates import Candidate, Chosen, Trial
from synth.report.text.tables import table
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.units import format_bytes


def solve_weights(asked: AskedSolve, form: AnswerForm, *, is_dry: bool = False) -> None:
    """Search all candidates, save every improvement, and answer.

    Args:
        asked: a request that has candidates whose weights do not stay.
        form: the form of the answer.
        is_dry: answer with the least memory of the candidates instead.

    Raises:
        NoSchedule: nothing was found.
    """
    if is_dry:
        _preview(asked, form.format)
        return
    request, pipelines = asked.request, asked.candidates.them if asked.candidates else ()
    announce_sizes(request)
    names = [one.name for one in asked.weight_choices]
    talk(f"to try: {'; '.join([*names, *(['as they stay'] if pipelines else [])])}")
    so_far, deadline = BestSoFar(), request.deadline

    def listener(problem: Problem) -> Callable[[Incumbent], None]:
        return so_far.listening(problem, ProgressReporter(request.on(problem)))

    chosen = run_interruptibly(
        lambda stop: asked.choose_weights(listener, stop),
        deadline.until(),
        lambda: _cut_short(so_far.result(deadline.elapsed_s), asked),
    )
    more = trials_table(chosen, with_partitions=True, has_all_rows=form.has_all_rows)
    finish(request, chosen.result, form, more, {"candidates": trials_json(chosen)})


def _preview(asked: AskedSolve, format: Format) -> None:
    """Answer with the least memory of each candidate."""
    rows, found, caps = [], [], asked.request.limit.caps_bytes
    for one in asked.weight_choices:
        name, need = one.name, one.needed_bytes
        fits = caps is None or min(caps) >= need
        rows.append([name, format_bytes(need), "yes" if fits else "no", sizes(one.problem)])
        found.append({"name": name, "needed_bytes": need, "feasible": fits})
    if format == Format.JSON:
        answer_json({"candidates": found})
    else:
        header = ["weights", "least need", "can fit", "layers per stage"]
        answer("\n".join((table(header, rows), "", asked.request.limit.explanation)))


def _cut_short(found: Result | None, asked: AskedSolve) -> Chosen | None:
    """Take the best so far for the answer; nothing is said of the other candidates' bounds."""
    if found is None:
        return None
    candidates = [Candidate(one.name, one.problem) for one in asked.weight_choices]
    result = replace(found, lower_bound_us=0, certificate=None, bound_scope=BoundScope.CANDIDATES)
    same = [one.name for one in candidates if one.problem is found.problem]
    name = (same or ["weights that stay"])[0]
    best = Trial(Candidate(name, found.problem), found.lower_bound_us, result)
    others = [Trial(one, 0) for one in candidates if one.name != name]
    return Chosen(result, (best, *others), is_cut_short=True)
