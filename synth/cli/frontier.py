"""`synth frontier`: the Pareto front of time and memory limit, with lower bounds."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.answer.frontier import as_json, as_text, drawn, write_frontier_page
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
from synth.cli.read.options import (
    MOST_AT_ONCE,
    AnyPartitionOption,
    ForceOption,
    GapOption,
    LinkOption,
    MicroBatchesOption,
    ObjectiveOption,
    PeakFlopsOption,
    PlacementOption,
    ProfileArgument,
    RanksOption,
    RecomputeOption,
    SeedOption,
    WeightsOption,
    width_option,
)
from synth.cli.read.pictures import CurvePictureOption, check_pictures
from synth.cli.read.plans import save_plans
from synth.errors import SynthError
from synth.file_lock import only_writer
from synth.options.curve import CurveProblem, read_curve
from synth.options.profiles import load_profile
from synth.overwrite_guard import PAGE, check_replaceable
from synth.processors import num_processors
from synth.profile import Profile
from synth.record import check_folder, check_outputs
from synth.units import format_bytes, format_us, parse_fraction, parse_seconds

if TYPE_CHECKING:
    from synth.plan.memory_curve.curve_file import MemoryCurve
    from synth.plan.memory_curve.curve_search import Effort
    from synth.schedule.files.plan_file import Plan

# More parallel searches leave each of them too few workers on most machines.
_MOST_JOBS = 4


def command(
    profile_name: ProfileArgument,
    ranks: RanksOption,
    micro_batches: MicroBatchesOption,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Curve file, written after every point; an existing one is continued.",
        ),
    ],
    placement: PlacementOption = "linear",
    objective: ObjectiveOption = "makespan",
    partition: AnyPartitionOption = "even",
    recompute: RecomputeOption = "none",
    weights: WeightsOption = "stay",
    link: LinkOption = None,
    peak_flops: PeakFlopsOption = None,
    points: Annotated[int, typer.Option(min=2, help="Number of memory limits to solve for.")] = 8,
    time_limit: Annotated[
        str, typer.Option(help="Time limit of each point, such as 30s or 2m.")
    ] = "30s",
    gap: GapOption = "0.5%",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_AT_ONCE, help="Points solved in parallel.", show_default="by the cores"
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_AT_ONCE, help="Solver threads per point.", show_default="cores / jobs"
        ),
    ] = None,
    seed: SeedOption = 0,
    picture: CurvePictureOption = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write table, plot and the charts of all points here, as one page for a browser."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Folder to write the plan file of every point to."),
    ] = None,
    width: Annotated[int | None, width_option("table and plot", "the terminal's, or 100")] = None,
    force: ForceOption = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Trace the Pareto front of time and memory limit, from the smallest feasible limit on.

    Every point is a plan with a proven lower bound. Ctrl-C keeps the points found so far, and the
    same command continues from them. Only one process at a time may write a curve.
    """
    from synth.plan.memory_curve.curve_search import Effort

    profile = load_profile(profile_name, link, peak_flops)
    asked = read_curve(
        profile,
        placement,
        ranks,
        micro_batches,
        objective=objective,
        partition=partition,
        recompute=recompute,
        time_limit=time_limit,
        weights=weights,
    )
    pictures = _pictures(output, picture or [], html, profile_name, force)
    check_replaceable(html, PAGE, "--html", force)
    check_folder("--save", save)
    cores = num_processors()
    at_once = jobs or max(1, min(_MOST_JOBS, cores // 2, points))
    effort = Effort(
        points,
        parse_seconds(time_limit),
        at_once,
        workers or max(1, cores // at_once),
        parse_fraction(gap),
        seed,
    )
    request = _Request(
        profile, asked, effort=effort, output=output, pictures=pictures, placement=placement
    )
    with only_writer(output, "let that end and run this again, or give another -o"):
        curve, is_cut_short = _trace(request)
    if not curve.points:
        raise Interrupted("interrupted before the first point; run the same command again")
    _answer(request, curve, is_cut_short, format, width or window_columns() or 100)
    if html is not None:
        write_frontier_page(html, curve, request.title)
    if save is not None:
        save_plans(_by_file(curve), save, force)


def _by_file(curve: "MemoryCurve") -> "dict[str, Plan]":
    """Return the plan of every point by file name, which is its limit in bytes."""
    from synth.plan.memory_curve.curve_file import cap_of

    return {f"{cap_of(plan)}B.json": plan for plan in curve.points}


def _pictures(
    output: Path, given: list[Path], html: Path | None, profile_name: str, force: bool
) -> list[Path]:
    """Return the paths of the plot, of which there is one at least, and check all outputs.

    Raises:
        SynthError: one of the paths cannot be written, or two are the same.
    """
    check_outputs(output, inputs=[profile_name])
    pictures = given or [output.with_suffix(".svg")]
    if output.resolve() in [path.resolve() for path in pictures]:
        raise SynthError(
            f"the curve and its picture would both be written to {output}; name the curve .json, "
            f"or give another --picture"
        )
    check_outputs(output, *pictures, html, inputs=[profile_name])
    check_pictures(pictures, force)
    return pictures


@dataclass(frozen=True)
class _Request:
    profile: Profile
    asked: CurveProblem
    effort: "Effort"
    output: Path
    pictures: list[Path]
    placement: str

    @property
    def title(self) -> str:
        """The title of the plot."""
        problem, candidates = self.asked.problem, self.asked.candidates
        if candidates is not None:
            return (
                f"{self.profile.name} on {problem.num_ranks} ranks ({'; '.join(candidates.names)}),"
                f" {problem.num_micro_batches} micro-batches"
            )
        return (
            f"{self.profile.name} on {problem.num_ranks} ranks ({self.placement}), "
            f"{problem.num_micro_batches} micro-batches, in "
            f"{'any' if self.asked.search_partitions else 'one'} partition"
        )

    def save(self, curve: "MemoryCurve") -> None:
        """Write the curve file and the plots."""
        from synth.report.picture.curve import curve_picture
        from synth.report.picture.formats import save_picture

        curve.save(self.output)
        for path in self.pictures:
            save_picture(path, curve_picture(drawn(curve, self.title)))


def _trace(request: _Request) -> "tuple[MemoryCurve, bool]":
    """Return the curve, and True if a stop was asked for."""
    from synth.plan.memory_curve.curve_search import trace

    begun, asked, effort = _begun(request), request.asked, request.effort
    problem = asked.problem
    there = f"; {len(begun.points)} points are there already" if begun else ""
    sizes = ",".join(map(str, problem.partition or ()))
    how = "in the best partition" if asked.search_partitions else f"as {sizes}"
    if asked.candidates is not None:
        how = f"with {'; '.join(asked.candidates.names)}"
    talk(
        f"{request.profile.name}: {problem.num_ranks} ranks {how}, {problem.num_micro_batches} "
        f"micro-batches;"
        f" {effort.points} points, {effort.jobs} at once with {effort.workers} workers each{there}"
    )
    progress = _Progress(request, begun)

    def work(stop: threading.Event) -> "tuple[MemoryCurve, bool]":
        traced = trace(
            request.profile,
            problem,
            effort=effort,
            begun=begun,
            on_point=progress,
            stop=stop,
            recompute=asked.recompute,
            search_partitions=asked.search_partitions,
            candidates=asked.candidates,
        )
        return traced, stop.is_set()

    curve, is_cut_short = run_interruptibly(work)
    if curve.points:
        request.save(curve)
    return curve, is_cut_short


def _begun(request: _Request) -> "MemoryCurve | None":
    """Return the verified curve of the output file; None if there is none.

    Raises:
        SynthError: the file is no curve, or that of another problem.
    """
    from synth.plan.memory_curve.curve_file import MemoryCurve, difference, empty_curve

    asked = request.asked
    if not request.output.exists():
        return None
    begun = MemoryCurve.load(request.output)
    differs = difference(
        begun,
        empty_curve(
            request.profile,
            asked.problem,
            asked.recompute,
            search_partitions=asked.search_partitions,
            candidates=asked.candidates,
        ),
    )
    if differs is not None:
        raise SynthError(
            f"{request.output} holds the curve of another problem ({differs}); give another -o, or "
            f"remove the file"
        )
    begun.check()
    return begun


class _Progress:
    """Saves the curve after every point, and reports it."""

    def __init__(self, request: _Request, begun: "MemoryCurve | None") -> None:
        self._request = request
        self._told = {} if begun is None else _values(begun)
        self._line = current_line()
        self._tell(len(self._told))

    def __call__(self, curve: "MemoryCurve") -> None:
        """Save a curve with one more point, and report new values."""
        self._request.save(curve)
        values = _values(curve)
        self._tell(len(curve.points), _widest(curve))
        for cap, (value_us, bound_us) in values.items():
            if self._told.get(cap) != (value_us, bound_us):
                talk(
                    f"{len(curve.points)}/{self._request.effort.points}  limit "
                    f"{format_bytes(cap)}  {curve.judged_by.words} {format_us(value_us)}  bound "
                    f"{format_us(bound_us)}"
                )
        self._told = values

    def _tell(self, num_points: int, more: str = "") -> None:
        """Show how many points are there, and the time that the others take at most."""
        effort = self._request.effort
        rounds = -(-max(0, effort.points - num_points) // effort.jobs)
        text = f"{num_points} of {effort.points} points{more}"
        self._line.tell(text, time.monotonic() + rounds * effort.time_limit_s)


def _widest(curve: "MemoryCurve") -> str:
    """Return the point with the largest gap."""
    from synth.plan.memory_curve.curve_file import cap_of, value_of

    plan = max(curve.points, key=lambda plan: plan.claim.gap)
    return (
        f"; largest gap {percent(plan.claim.gap)} at {format_bytes(cap_of(plan))}: "
        f"{curve.judged_by.words} {format_us(value_of(plan))}, bound "
        f"{format_us(plan.claim.lower_bound_us)}"
    )


def _values(curve: "MemoryCurve") -> dict[int, tuple[int, int]]:
    """Return value and bound of each point by its memory limit."""
    from synth.plan.memory_curve.curve_file import cap_of, value_of

    return {cap_of(p): (value_of(p), p.claim.lower_bound_us) for p in curve.points}


def _answer(
    request: _Request, curve: "MemoryCurve", is_cut_short: bool, format: Format, width: int
) -> None:
    if format == Format.JSON:
        files = {"curve": str(request.output), "picture": str(request.pictures[0])}
        answer_json(as_json(curve) | files)
    else:
        answer(as_text(curve, request.title, width))
    left = request.effort.points - len(curve.points)
    if is_cut_short:
        talk("interrupted: the same command again continues from here")
    elif left > 0:
        talk(f"{left} points were not needed: the curve is complete between those found")
    talk(f"saved as {request.output}, drawn in {', '.join(map(str, request.pictures))}")
