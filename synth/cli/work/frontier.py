"""The work of `synth frontier`."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from synth.cli.answer.charts import write_choice
from synth.cli.answer.output import Format, answer, answer_json, percent, talk, window_columns
from synth.cli.frontier import FrontierRequest
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.progress.line import current_line
from synth.cli.read.plans import save_plans
from synth.errors import ExitCode, SynthError
from synth.options.curve import read_curve, read_effort
from synth.plan.memory_curve.curve_file import (
    MemoryCurve,
    cap_of,
    difference,
    empty_curve,
    value_of,
)
from synth.plan.memory_curve.curve_search import Effort, trace
from synth.plan.reason import reason_of
from synth.plan.search_space import LimitedSpace, Placements, WeightPlaces
from synth.profile import Profile
from synth.profile.estimate import ESTIMATED
from synth.profile.throughput import Throughput, throughput
from synth.records.file_lock import only_writer
from synth.report.chart.chart import Chart
from synth.report.html.page import ScheduleMenu
from synth.report.picture.curve import curve_picture
from synth.report.picture.formats import save_picture
from synth.report.picture.frame import BESIDE
from synth.report.picture.svg import svg_text
from synth.report.text.curve import Curve, Dot, Point, plot
from synth.report.text.tables import fitted_table, milliseconds, size_unit
from synth.schedule.files.plan_file import Plan
from synth.schedule.recomputed_stages import recomputed
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Route
from synth.units import counted, format_bytes, format_bytes_both, format_us


def work(request: FrontierRequest) -> None:
    given = request.arguments
    profile = given.hardware.profile(given.pipeline.profile)
    space = read_curve(given, profile)
    request.check_files(given.pipeline.profile_file)
    asked = _CurveTask(request, profile, space, read_effort(given))
    with only_writer(request.output, "let that end and run this again, or give another -o"):
        curve, is_cut_short = _trace(asked)
    if not curve.points:
        message = "interrupted before the first point; run the same command again"
        raise SynthError(message, ExitCode.INTERRUPTED)
    _answer(asked, curve, is_cut_short)
    if request.html is not None:
        write_frontier_page(request.html, curve, asked.title)
    if request.save is not None:
        plans = {f"{cap_of(plan)}B.json": plan for plan in curve.points}
        save_plans(plans, request.save, request.force)


@dataclass(frozen=True)
class _CurveTask:
    request: FrontierRequest
    profile: Profile
    space: LimitedSpace
    effort: Effort

    @property
    def title(self) -> str:
        space, problem = self.space, self.space.problem
        mark = "" if self.profile.provenance.estimate is None else ESTIMATED
        partition = f", in {'any' if isinstance(space, Placements) else 'one'} partition"
        if isinstance(space, WeightPlaces):
            partition = ""
        return (
            f"{self.profile.name}{mark} on {counted(problem.num_ranks, 'rank')} "
            f"({'; '.join(space.names)}), "
            f"{counted(problem.num_micro_batches, 'micro-batch')}{partition}"
        )

    def save(self, curve: MemoryCurve) -> None:
        """Write the curve file and the plots."""
        curve.save(self.request.output)
        for path in self.request.pictures:
            save_picture(path, curve_picture(drawn(curve, self.title)))


def _trace(asked: _CurveTask) -> tuple[MemoryCurve, bool]:
    """Return the curve, and True if a stop was asked for."""
    begun, space, effort = _begun(asked), asked.space, asked.effort
    problem = space.problem
    there = f"; {len(begun.points)} points are there already" if begun else ""
    sizes = ",".join(map(str, problem.partition or ()))
    how = "in the best partition" if isinstance(space, Placements) else f"as {sizes}"
    if isinstance(space, WeightPlaces):
        how = f"with {'; '.join(space.names)}"
    talk(
        f"{asked.profile.name}: {counted(problem.num_ranks, 'rank')} {how}, "
        f"{counted(problem.num_micro_batches, 'micro-batch')}; {effort.points} points, "
        f"{effort.jobs} at once with {effort.workers} workers each{there}"
    )
    progress = _Progress(asked, begun)

    def search(stop: threading.Event) -> tuple[MemoryCurve, bool]:
        return trace(asked.profile, space, effort, begun, progress, stop), stop.is_set()

    curve, is_cut_short = run_interruptibly(search)
    if curve.points:
        asked.save(curve)
    return curve, is_cut_short


def _begun(asked: _CurveTask) -> MemoryCurve | None:
    """Return the verified curve of the output file; None if there is none.

    Raises:
        SynthError: the file is no curve, or that of another problem.
    """
    output = asked.request.output
    if not output.exists():
        return None
    begun = MemoryCurve.load(output)
    differs = difference(begun, empty_curve(asked.profile, asked.space), asked.profile)
    if differs is not None:
        raise SynthError(
            f"{output} holds the curve of another problem ({differs}); give another -o, or "
            f"remove the file"
        )
    begun.check()
    return begun


class _Progress:
    """Saves the curve after every point, and reports it."""

    def __init__(self, asked: _CurveTask, begun: MemoryCurve | None) -> None:
        self._asked = asked
        self._told = {} if begun is None else _values(begun)
        self._line = current_line()
        self._tell(len(self._told))

    def __call__(self, curve: MemoryCurve) -> None:
        """Save a curve with one more point, and report new values."""
        self._asked.save(curve)
        values = _values(curve)
        self._tell(len(curve.points), _widest(curve))
        for cap, (value_us, bound_us) in values.items():
            if self._told.get(cap) != (value_us, bound_us):
                talk(
                    f"{len(curve.points)}/{self._asked.effort.points}  limit "
                    f"{format_bytes(cap)}  {curve.judged_by.words} {format_us(value_us)}  bound "
                    f"{format_us(bound_us)}"
                )
        self._told = values

    def _tell(self, num_points: int, more: str = "") -> None:
        """Show how many points are there, and the time that the others take at most."""
        effort = self._asked.effort
        rounds = -(-max(0, effort.points - num_points) // effort.jobs)
        text = f"{num_points} of {effort.points} points{more}"
        self._line.tell(text, time.monotonic() + rounds * effort.time_limit_s)


def _widest(curve: MemoryCurve) -> str:
    """Return the point with the largest gap."""
    plan = max(curve.points, key=lambda plan: plan.claim.gap)
    return (
        f"; largest gap {percent(plan.claim.gap)} at {format_bytes(cap_of(plan))}: "
        f"{curve.judged_by.words} {format_us(value_of(plan))}, bound "
        f"{format_us(plan.claim.lower_bound_us)}"
    )


def _values(curve: MemoryCurve) -> dict[int, tuple[int, int]]:
    """Return value and bound of each point by its memory limit."""
    return {cap_of(p): (value_of(p), p.claim.lower_bound_us) for p in curve.points}


def _answer(asked: _CurveTask, curve: MemoryCurve, is_cut_short: bool) -> None:
    request = asked.request
    if request.format == Format.JSON:
        files = {"curve": str(request.output), "pictures": list(map(str, request.pictures))}
        answer_json(as_json(curve) | files)
    else:
        answer(as_text(curve, asked.title, request.width or window_columns() or 100))
    left = asked.effort.points - len(curve.points)
    if is_cut_short:
        talk("interrupted: the same command again continues from here")
    elif left > 0:
        talk(f"{left} points were not needed: the curve is complete between those found")
    drawn_in = f", drawn in {', '.join(map(str, request.pictures))}" if request.pictures else ""
    talk(f"saved as {request.output}{drawn_in}")


# The columns that a narrow window leaves out, in this order.
_SPARE = ("found by", "tokens", "samples", "peak", "bubble rate", "MFU")

_SPEED_HEAD = "{unit}\nper s"


def as_text(curve: MemoryCurve, title: str, width: int) -> str:
    """Return headline, table and plot for a terminal."""
    picture = plot(drawn(curve, title), width)
    rows = fitted_table(*_head_and_rows(curve, _listed(curve)), width, _SPARE)
    return "\n\n".join((_headline(curve, title), rows, _sentence(curve), picture))


def _headline(curve: MemoryCurve, title: str) -> str:
    """Return the problem, and the scope of times and bounds."""
    how = f"with partition {_sizes(curve.partition)}"
    if curve.partition_is_sought:
        how = (
            "with the partition of each row, and each bound for all partitions; published "
            "schedules are in the best partition without a memory limit"
        )
    if curve.candidates:
        return (
            f"{title}\neach row has the best of these, and each bound holds for all of them, in "
            f"even stages"
        )
    return f"{title}\nall times and bounds are for this placement, {how}"


def _sizes(partition: tuple[int, ...]) -> str:
    return ",".join(map(str, partition))


def drawn(curve: MemoryCurve, title: str) -> Curve:
    """Return the data of the plots."""
    points = tuple(
        Point(cap_of(plan), value_of(plan), plan.claim.lower_bound_us, max(plan.claim.peak_bytes))
        for plan in curve.points
    )
    dots = tuple(Dot(f.name, f.value_us, f.peak_bytes) for f in curve.families)
    return Curve(title, curve.judged_by.words, points, dots, curve.never_below_bytes)


def _listed(curve: MemoryCurve) -> Sequence[Plan]:
    """Return the points of the table: of those of equal peak and time the one of the least limit.

    Its bound is the highest of theirs, and the plan fits into the other limits, too.
    """
    least: dict[tuple[int, int], Plan] = {}
    for plan in curve.points:
        least.setdefault((max(plan.claim.peak_bytes), value_of(plan)), plan)
    return tuple(least.values())


def _head_and_rows(
    curve: MemoryCurve, points: Sequence[Plan]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the heads of the columns, and one row for each of some points."""
    factor, unit = size_unit(max(map(cap_of, curve.points)))
    header = [f"memory limit\n{unit}", f"peak\n{unit}", f"{curve.judged_by.words}\nms"]
    figures = [_Figures.of(plan, curve) for plan in points]
    speed = _SPEED_HEAD.format(unit=curve.points[0].workload.unit)
    has_mfu = any(each.speed.mfu is not None for each in figures)
    with_r = curve.choice != ()
    has_sizes = curve.partition_is_sought or bool(curve.candidates)
    rows = [
        (
            f"{cap_of(plan) / factor:,.3f}",
            f"{max(plan.claim.peak_bytes) / factor:,.3f}",
            milliseconds(value_of(plan)),
            milliseconds(plan.claim.lower_bound_us),
            f"{100 * plan.claim.gap:.2f}",
            f"{100 * each.bubble_rate:.2f}",
            f"{100 * each.mean_idle:.2f}",
            *([each.speed.mfu_cell()] if has_mfu else []),
            each.speed.cell,
            plan.claim.found_by,
            plan.claim.stopped_by,
            *([",".join(map(str, recomputed(plan.schedule()))) or "none"] if with_r else []),
            *([movement_of(plan)] if curve.candidates else []),
            *([_sizes(plan.partition)] if has_sizes else []),
        )
        for plan, each in zip(points, figures, strict=True)
    ]
    last = ["found by", "status", *(["recomputed\nstages"] if with_r else [])]
    last += ["weights"] if curve.candidates else []
    last += ["layers per stage"] if has_sizes else []
    return [
        *header,
        "lower bound\nms",
        "gap\n%",
        "bubble rate\n%",
        "mean idle\n%",
        *(["MFU\n%"] if has_mfu else []),
        speed,
        *last,
    ], rows


def write_frontier_page(path: Path, curve: MemoryCurve, title: str) -> None:
    """Write table, plot and charts as a page; first are shown the smallest and largest limit."""
    head, rows = _head_and_rows(curve, curve.points)
    charts = [
        Chart.planned(
            f"limit {format_bytes(cap_of(plan))}",
            plan,
            timeline,
            reason_of(plan, lowered, timeline),
        )
        for plan in curve.points
        for lowered, timeline in [plan.check()]
    ]
    shown = head.index(_SPEED_HEAD.format(unit=curve.points[0].workload.unit)) + 1
    menu = ScheduleMenu(
        tuple(name.replace("\n", ", ") for name in head[:shown]),
        tuple(row[:shown] for row in rows),
        tuple(str(cap_of(plan)) for plan in curve.points),
        svg_text(curve_picture(drawn(curve, title), BESIDE)),
        tuple(sorted({0, len(charts) - 1})),
    )
    write_choice(path, title, charts, menu)


@dataclass(frozen=True)
class _Figures:
    """Bubble rate, mean idle share and throughput of a point, by the curve's objective."""

    bubble_rate: float
    mean_idle: float
    speed: Throughput

    @classmethod
    def of(cls, plan: Plan, curve: MemoryCurve) -> Self:
        """Simulate a point's plan."""
        timeline, asked = verify(plan.schedule(), plan.costs)[1], curve.judged_by
        per_s = asked.iterations_per_s(timeline)
        return cls(
            asked.bubble_rate(timeline, max(timeline.work_us)),
            asked.bubble_rate(timeline, timeline.mean_work_us),
            throughput(per_s, plan.num_micro_batches, plan.num_ranks, plan),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures for scripts."""
        rates = {"bubble_rate": self.bubble_rate, "mean_idle": self.mean_idle}
        return rates | self.speed.as_json()


def movement_of(plan: Plan) -> str:
    """Return the place of a plan's weights, as a word of `--weights`."""
    flow = plan.schedule().weights
    if flow is None:
        return "stay"
    return "ring" if flow.weights == Route.CHAIN else "gather"


def _sentence(curve: MemoryCurve) -> str:
    least, never = curve.least_cap_bytes, curve.never_below_bytes
    where = f"in {'any' if curve.partition_is_sought else 'this'} partition"
    if curve.candidates:
        where = "by a closed form"
    first = f"infeasible below {format_bytes_both(never)} = {never}B, {where}"
    if least == never:
        return first
    return f"{first}; always feasible from {format_bytes_both(least)} on"


def as_json(curve: MemoryCurve) -> dict[str, Any]:
    """Return the curve for scripts, without the plans."""
    return {
        "objective": curve.objective,
        "partition": curve.partition,
        "partition_is_sought": curve.partition_is_sought,
        "placement": curve.placement,
        "candidates": curve.candidates,
        "never_below_bytes": curve.never_below_bytes,
        "points": [
            {
                "cap_bytes": cap_of(plan),
                "partition": plan.partition,
                **({"weights": movement_of(plan)} if curve.candidates else {}),
                "peak_bytes": plan.claim.peak_bytes,
                "value_us": value_of(plan),
                "lower_bound_us": plan.claim.lower_bound_us,
                "gap": plan.claim.gap,
                **_Figures.of(plan, curve).as_json(),
                "found_by": plan.claim.found_by,
                "stopped_by": plan.claim.stopped_by,
                "recomputed": recomputed(plan.schedule()),
            }
            for plan in curve.points
        ],
        "families": [family.model_dump() for family in curve.families],
    }
