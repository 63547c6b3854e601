"""The work of `synth compare`."""

import threading
import time

from synth.cli.answer.compare import as_json, as_text, drawn
from synth.cli.answer.compare_page import write_compare_page
from synth.cli.answer.output import Format, answer, answer_json, percent, talk, window_columns
from synth.cli.compare import CompareRequest
from synth.cli.progress.interrupt import is_stop_asked, run_interruptibly
from synth.cli.progress.line import current_line
from synth.cli.progress.reporter import bound_of
from synth.cli.read.plans import save_plans
from synth.errors import ExitCode, SynthError
from synth.options.deadline import Deadline
from synth.options.question import ComparisonTask, read_comparison
from synth.plan.compare import compare
from synth.plan.comparison import SOLVED, WITH_R, Comparison
from synth.plan.comparison_entries import so_far as so_far_of
from synth.report.picture.formats import save_picture
from synth.report.picture.pareto import pareto_picture
from synth.schedule.files.plan_file import Plan
from synth.search.outcome import StoppedBy
from synth.solver.result import Incumbent
from synth.units import counted, format_us

# Least seconds between two messages about published schedules.
_PAUSE_S = 5.0


def work(request: CompareRequest) -> None:
    given = request.arguments
    deadline = Deadline.of(given.time_limit)
    request.check_files(given.pipeline.profile_file)
    asked = read_comparison(given)
    question = asked.question
    talk(
        f"{question.profile.name}: {counted(len(question.profile.layers), 'layer')} on "
        f"{counted(question.num_ranks, 'rank')}, "
        f"{counted(question.num_micro_batches, 'micro-batch')}; {asked.limit.explanation}"
    )
    comparison, is_cut_short = _compare(given.only, asked, deadline)
    if comparison.entries:
        _answer(comparison, request)
        return
    if request.format == Format.JSON:
        answer_json(as_json(comparison))
    if is_cut_short:
        message = "interrupted before the first schedule; run the same command again"
        raise SynthError(message, ExitCode.INTERRUPTED)
    raise SynthError(_reasons(comparison), ExitCode.NOTHING_FOUND)


def _compare(
    only: list[str] | None, asked: ComparisonTask, deadline: Deadline
) -> tuple[Comparison, bool]:
    """Return the comparison, and True if a stop was asked for."""
    found = Comparison(asked.question)
    progress = _Progress(found)

    def search(stop: threading.Event) -> tuple[Comparison, bool]:
        compared = compare(
            asked.question,
            only,
            asked.searches,
            asked.options,
            progress,
            stop,
            found,
            progress.improved,
            planners=asked.planners,
        )
        return compared, stop.is_set()

    def so_far() -> tuple[Comparison, bool] | None:
        reason = StoppedBy.INTERRUPT if is_stop_asked() else StoppedBy.TIME_LIMIT
        compared = so_far_of(found, asked.options, reason)
        return (compared, False) if compared.entries else None

    return run_interruptibly(search, deadline.until(1 + len(asked.searches)), so_far)


def _reasons(comparison: Comparison) -> str:
    """Return why no schedule applies: each reason once, after the schedules that it excludes."""
    names: dict[str, list[str]] = {}
    for refusal in comparison.refusals:
        names.setdefault(refusal.reason, []).append(refusal.name)
    lines = [f"{', '.join(kept_out)}: {reason}" for reason, kept_out in names.items()]
    return "\n  ".join(lines if len(lines) < 2 else ["none of these schedules applies:", *lines])


class _Progress:
    """Reports searches, and published schedules if they take long."""

    def __init__(self, found: Comparison) -> None:
        self._found = found
        self._told_at = time.monotonic()
        self._line = current_line()

    def __call__(self, name: str) -> None:
        """Report a schedule or a search that begins."""
        self._line.tell(f"{name}{self._best()}")
        if name.startswith(SOLVED):
            where = name.removeprefix(SOLVED)
            with_r = ", stages may recompute" if where.endswith(WITH_R) else ""
            talk(f"searching on {where.removesuffix(WITH_R)}{with_r}")
        elif time.monotonic() - self._told_at > _PAUSE_S:
            talk(f"simulating {name}")
            self._told_at = time.monotonic()

    def improved(self, name: str, incumbent: Incumbent) -> None:
        """Show the value, bound and gap of what a search has found."""
        objective = self._found.question.objective
        value = format_us(objective.value_us(incumbent.timeline))
        self._line.tell(f"{name}: {objective.words} {value}, {bound_of(incumbent)}{self._best()}")

    def _best(self) -> str:
        """Return the best value so far, with its bound and gap if a search has found it."""
        objective = self._found.question.objective
        entries = [entry for entry in self._found.entries if entry.fits is not False]
        if not entries:
            return ""
        best = min(entries, key=objective.value_us)
        gap = best.gap(objective)
        proven = "" if gap is None else f", gap {percent(gap)}"
        value = format_us(objective.value_us(best))
        return f"; best {objective.words} so far {value} ({best.name}{proven})"


def _answer(comparison: Comparison, request: CompareRequest) -> None:
    """Print the comparison, and write the files asked for."""
    if request.format == Format.JSON:
        answer_json(as_json(comparison))
    else:
        answer(as_text(comparison, request.width or window_columns() or 80))
    if request.save is not None:
        save_plans(_by_file(comparison), request.save, request.force)
    for path in request.pictures:
        save_picture(path, pareto_picture(drawn(comparison)))
        talk(f"drawn in {path}")
    if request.html is not None:
        write_compare_page(request.html, comparison, is_stop_asked)


def _by_file(comparison: Comparison) -> dict[str, Plan]:
    """Return the plan of every row by file name."""
    dashes = str.maketrans(" :,=", "----")
    return {f"{e.name.translate(dashes)}.json": comparison.plan(e) for e in comparison.entries}
