"""The answer of `synth frontier`: table of points, feasibility limits and plot, as text or JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from synth.cli.answer.choice_page import write_choice
from synth.plan.memory_curve.curve_file import MemoryCurve, cap_of, value_of
from synth.plan.reason import reason_of
from synth.profile.throughput import Throughput, throughput
from synth.report.chart.chart import Chart
from synth.report.html.page import ScheduleMenu
from synth.report.picture.curve import curve_picture
from synth.report.picture.svg import svg_text
from synth.report.text.curve import Curve, Dot, Point, plot
from synth.report.text.tables import fitted_table, milliseconds, size_unit
from synth.schedule.files.plan_file import Plan
from synth.schedule.recomputed_stages import recomputed
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Route
from synth.units import format_bytes, format_bytes_both

# The columns that a narrow window leaves out, in this order.
_SPARE = ("found by", "tokens", "samples", "peak", "bubble rate", "MFU")

_SPEED_HEAD = "{unit}\nper s"


def as_text(curve: MemoryCurve, title: str, width: int) -> str:
    """Return headline, table and plot for a terminal."""
    picture = plot(drawn(curve, title), width)
    return "\n\n".join((_headline(curve, title), _table(curve, width), _sentence(curve), picture))


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


def _table(curve: MemoryCurve, width: int) -> str:
    return fitted_table(*_head_and_rows(curve), width, _SPARE)


def _head_and_rows(curve: MemoryCurve) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the heads of the columns, and one row per point."""
    factor, unit = size_unit(max(map(cap_of, curve.points)))
    header = [f"memory limit\n{unit}", f"peak\n{unit}", f"{curve.judged_by.words}\nms"]
    figures = [_Figures.of(plan, curve) for plan in curve.points]
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
        for plan, each in zip(curve.points, figures, strict=True)
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
    head, rows = _head_and_rows(curve)
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
        svg_text(curve_picture(drawn(curve, title))),
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
