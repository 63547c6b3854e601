"""`synth compare`: the published schedules and the solver's on one profile."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.answer.compare import as_json, as_text, drawn
from synth.cli.answer.compare_page import write_compare_page
from synth.cli.answer.output import (
    Format,
    FormatOption,
    answer,
    answer_json,
    percent,
    talk,
    window_columns,
)
from synth.cli.progress.interrupt import Interrupted, run_interruptibly
from synth.cli.progress.line import current_line
from synth.cli.progress.reporter import bound_of
from synth.cli.read.options import (
    ChosenRecomputeOption,
    ForceOption,
    GapOption,
    LinkOption,
    MemReserveOption,
    MicroBatchesOption,
    ObjectiveOption,
    PeakFlopsOption,
    ProfileArgument,
    RanksOption,
    SeedOption,
    width_option,
)
from synth.cli.read.pictures import PictureOption, check_pictures
from synth.cli.read.plans import save_plans
from synth.errors import ExitCode, SynthError
from synth.options.deadline import Deadline
from synth.options.defaults import AUTO
from synth.options.keywords import word
from synth.options.memory_limit import MemoryLimit, is_least, read_limit
from synth.options.profiles import load_profile
from synth.options.question import read_planners, read_question, read_searches
from synth.overwrite_guard import PAGE, check_replaceable
from synth.profile import Profile
from synth.record import check_folder, check_outputs
from synth.units import format_us, parse_fraction, parse_seconds

if TYPE_CHECKING:
    from synth.plan.comparison import Comparison
    from synth.schedule.files.plan_file import Plan
    from synth.solver.result import Incumbent

# Least seconds between two messages about published schedules.
_PAUSE_S = 5.0


def command(
    profile_name: ProfileArgument,
    ranks: RanksOption,
    micro_batches: MicroBatchesOption,
    mem_limit: Annotated[
        str | None,
        typer.Option(
            help="Memory limit of each rank: 40GB; 40GB,36GB,…: one per rank; auto: the device's "
            "capacity less 10 %.",
            show_default="no limit",
        ),
    ] = None,
    mem_reserve: MemReserveOption = None,
    objective: ObjectiveOption = "makespan",
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Published schedule, with options: interleaved:3,group=8. Can be repeated.",
            show_default="all",
        ),
    ] = None,
    placement: Annotated[
        list[str] | None,
        typer.Option(
            help="Placement on which the solver searches: linear, v, bidirectional, …; auto: all "
            "of them. Can be repeated.",
            show_default="auto",
        ),
    ] = None,
    recompute: ChosenRecomputeOption = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="ring or gather: a further row of the solver, with weight passing. Can be "
            "repeated.",
            show_default="none",
        ),
    ] = None,
    planner: Annotated[
        list[str] | None,
        typer.Option(
            help="pipedream or 2bw: a further row, the choice of that published planner, with its "
            "prediction. Can be repeated.",
            show_default="none",
        ),
    ] = None,
    versions: Annotated[
        list[str] | None,
        typer.Option(
            help="2bw, 2bw:every=8, stash, vertical or none: a further row of the solver, which "
            "never flushes the pipeline and minimizes the time of a micro-batch while it is full. "
            "Can be repeated.",
            show_default="none",
        ),
    ] = None,
    link: LinkOption = None,
    peak_flops: PeakFlopsOption = None,
    no_solve: Annotated[
        bool, typer.Option("--no-solve", help="Compare published schedules only.")
    ] = False,
    partition: Annotated[
        str,
        typer.Option(
            help="Layers per stage, such as 3,3,2, on placements of as many stages; even: balance "
            "the work of the ranks; auto: even for published schedules, searched by the solver."
        ),
    ] = "auto",
    time_limit: Annotated[
        str,
        typer.Option(
            help="Time limit of each search, and of all published schedules together, such as 30s "
            "or 2m. Schedules that do not finish in time are left out."
        ),
    ] = "30s",
    gap: GapOption = "0.5%",
    seed: SeedOption = 0,
    picture: PictureOption = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write table, plot and charts of all schedules here, as one page for a browser."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Folder to write the plan file of every row to."),
    ] = None,
    width: Annotated[int | None, width_option("table and plot", "the terminal's, or 80")] = None,
    force: ForceOption = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Compare the published schedules, each on its own placement, with those of the solver.

    Sorted by the objective. Schedules that do not apply are listed with the reason.
    """
    from synth.plan.compare import compare
    from synth.plan.comparison import Comparison
    from synth.solver.options import SolveOptions

    deadline = Deadline.of(time_limit)
    profile = load_profile(profile_name, link, peak_flops)
    limit = _limit(mem_limit, ranks, profile, mem_reserve)
    question = read_question(profile, ranks, micro_batches, limit, objective, partition)
    pictures = picture or []
    _check_outputs(pictures, html, save, profile_name, force)
    if no_solve:
        _refuse_options_of_the_solver(recompute, weights, versions)
    searches = read_searches(placement or [AUTO], ranks, recompute, weights or (), versions or ())
    searches = [] if no_solve else searches
    planners = read_planners(planner or ())
    found = Comparison(question)
    options = SolveOptions(
        time_limit_s=parse_seconds(time_limit), gap=parse_fraction(gap), seed=seed
    )
    talk(
        f"{profile.name}: {len(profile.layers)} layers on {ranks} ranks, {micro_batches} "
        f"micro-batches; {limit.explanation}"
    )

    progress = _Progress(found)

    def work(stop: threading.Event) -> "tuple[Comparison, bool]":
        compared = compare(
            question,
            only,
            searches,
            options,
            progress,
            stop,
            found,
            progress.improved,
            planners=planners,
        )
        return compared, stop.is_set()

    def so_far() -> "tuple[Comparison, bool] | None":
        entries, refusals = list(found.entries), list(found.refusals)
        return (Comparison(question, entries, refusals), False) if entries else None

    comparison, is_cut_short = run_interruptibly(work, deadline.until(1 + len(searches)), so_far)
    if comparison.entries:
        _answer(comparison, pictures, format, width or window_columns() or 80)
        if html is not None:
            write_compare_page(html, comparison)
        if save is not None:
            save_plans(_by_file(comparison), save, force)
        return
    if format == Format.JSON:
        answer_json(as_json(comparison))
    if is_cut_short:
        raise Interrupted("interrupted before the first schedule; run the same command again")
    raise NothingToCompare(_reasons(comparison))


def _reasons(comparison: "Comparison") -> str:
    """Return why no schedule applies: each reason once, after the schedules that it excludes."""
    names: dict[str, list[str]] = {}
    for refusal in comparison.refusals:
        names.setdefault(refusal.reason, []).append(refusal.name)
    lines = [f"{', '.join(kept_out)}: {reason}" for reason, kept_out in names.items()]
    return "\n  ".join(lines if len(lines) < 2 else ["none of these schedules applies:", *lines])


class NothingToCompare(SynthError):
    """No schedule applies."""

    exit_code = ExitCode.NOTHING_FOUND


def _refuse_options_of_the_solver(
    recompute: str | None, weights: Sequence[str] | None, versions: Sequence[str] | None
) -> None:
    """Refuse options that say what the solver searches."""
    given = [f"--weights {name}" for name in weights or ()]
    given += [f"--versions {name}" for name in versions or ()]
    if word(recompute or "none") != "none":
        given.append(f"--recompute {recompute}")
    if given:
        raise SynthError(
            f"{given[0]} is for the solver, and --no-solve leaves the solver out; give one of them"
        )


def _limit(
    mem_limit: str | None, ranks: int, profile: Profile, mem_reserve: str | None
) -> MemoryLimit:
    if is_least(mem_limit):
        raise SynthError(
            "--mem-limit min minimizes memory subject to a time, which only synth solve does; "
            "give a size here, or none"
        )
    return read_limit(mem_limit, ranks, profile, mem_reserve)


def _check_outputs(
    pictures: list[Path], html: Path | None, save: Path | None, profile_name: str, force: bool
) -> None:
    """Check before the search that the outputs can be written.

    Raises:
        SynthError: a picture, the page or the folder cannot be written.
    """
    check_outputs(*pictures, html, inputs=[profile_name])
    check_pictures(pictures, force)
    check_replaceable(html, PAGE, "--html", force)
    check_folder("--save", save)


class _Progress:
    """Reports searches, and published schedules if they take long."""

    def __init__(self, found: "Comparison") -> None:
        self._found = found
        self._told_at = time.monotonic()
        self._line = current_line()

    def __call__(self, name: str) -> None:
        """Report a schedule or a search that begins."""
        from synth.plan.comparison import SOLVED, WITH_R

        self._line.tell(f"{name}{self._best()}")
        if name.startswith(SOLVED):
            where = name.removeprefix(SOLVED)
            with_r = ", stages may recompute" if where.endswith(WITH_R) else ""
            talk(f"searching on {where.removesuffix(WITH_R)}{with_r}")
        elif time.monotonic() - self._told_at > _PAUSE_S:
            talk(f"simulating {name}")
            self._told_at = time.monotonic()

    def improved(self, name: str, incumbent: "Incumbent") -> None:
        """Show the value, bound and gap of the search that is running."""
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


def _answer(comparison: "Comparison", pictures: list[Path], format: Format, width: int) -> None:
    from synth.report.picture.formats import save_picture
    from synth.report.picture.pareto import pareto_picture

    for path in pictures:
        save_picture(path, pareto_picture(drawn(comparison)))
    if format == Format.JSON:
        answer_json(as_json(comparison))
    else:
        answer(as_text(comparison, width))
    for path in pictures:
        talk(f"drawn in {path}")


def _by_file(comparison: "Comparison") -> "dict[str, Plan]":
    """Return the plan of every row by file name."""
    dashes = str.maketrans(" :,=", "----")
    return {f"{e.name.translate(dashes)}.json": comparison.plan(e) for e in comparison.entries}
