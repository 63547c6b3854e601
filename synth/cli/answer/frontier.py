"""The answer of `synth frontier`: table of points, feasibility limits and plot, as text or JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from synth.cli.answer.choice_page import write_choice
from synth.report.text.curve import Curve, Dot, Point, plot
from synth.report.text.tables import fitted_table, milliseconds, size_unit
from synth.throughput import tokens_per_s
from synth.units import format_bytes, format_bytes_both

if TYPE_CHECKING:
    from synth.plan.memory_curve.curve_file import MemoryCurve
    from synth.schedule.files.plan_file import Plan


_FIGURES = ("bubble_rate", "mean_idle", "tokens_per_second")

# The columns that a narrow window leaves out, in this order: how it was found, tokens, peak.
_SPARE = (8, 7, 1, 5)


def as_text(curve: "MemoryCurve", title: str, width: int) -> str:
    """Return headline, table and plot for a terminal."""
    picture = plot(drawn(curve, title), width)
    return "\n\n".join((_headline(curve, title), _table(curve, width), _sentence(curve), picture))


def _headline(curve: "MemoryCurve", title: str) -> str:
    """Return the problem, and the scope of times and bounds."""
    how = f"with partition {_sizes(curve.partition)}"
    if curve.partition_is_sought:
        how = (
            "with the partition of each row, and each bound for all partitions; published "
            "schedules are in the best partition without a memory limit"
        )
    return f"{title}\nall times and bounds are for this placement, {how}"


def _sizes(partition: tuple[int, ...]) -> str:
    return ",".join(map(str, partition))


def drawn(curve: "MemoryCurve", title: str) -> Curve:
    """Return the data of the plots."""
    from synth.plan.memory_curve.curve_file import cap_of, value_of

    points = tuple(
        Point(cap_of(plan), value_of(plan), plan.claim.lower_bound_us, max(plan.claim.peak_bytes))
        for plan in curve.points
    )
    dots = tuple(Dot(f.name, f.value_us, f.peak_bytes) for f in curve.families)
    return Curve(title, curve.judged_by.words, points, dots, curve.never_below_bytes)


def _table(curve: "MemoryCurve", width: int) -> str:
    return fitted_table(*_head_and_rows(curve), width, _SPARE)


def _head_and_rows(curve: "MemoryCurve") -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the heads of the columns, and one row per point."""
    from synth.plan.memory_curve.curve_file import cap_of, value_of
    from synth.plan.recompute.stages import recomputed

    factor, unit = size_unit(max(map(cap_of, curve.points)))
    header = [f"memory limit\n{unit}", f"peak\n{unit}", f"{curve.judged_by.words}\nms"]
    speed = f"{curve.points[0].workload.unit}\nper s"
    with_r = curve.choice != ()
    rows = [
        (
            f"{cap_of(plan) / factor:,.3f}",
            f"{max(plan.claim.peak_bytes) / factor:,.3f}",
            milliseconds(value_of(plan)),
            milliseconds(plan.claim.lower_bound_us),
            f"{100 * plan.claim.gap:.2f}",
            *(f"{100 * rate:.2f}" for rate in rates),
            "n/a" if per_s is None else f"{per_s:,.0f}",
            plan.claim.found_by,
            plan.claim.stopped_by,
            *([",".join(map(str, recomputed(plan.schedule()))) or "none"] if with_r else []),
            *([_sizes(plan.partition)] if curve.partition_is_sought else []),
        )
        for plan, (*rates, per_s) in ((plan, _figures(plan, curve)) for plan in curve.points)
    ]
    last = ["found by", "status", *(["recomputed\nstages"] if with_r else [])]
    last += ["layers per stage"] if curve.partition_is_sought else []
    return [
        *header,
        "lower bound\nms",
        "gap\n%",
        "bubble rate\n%",
        "mean idle\n%",
        speed,
        *last,
    ], rows


def write_frontier_page(path: Path, curve: "MemoryCurve", title: str) -> None:
    """Write table, plot and charts as a page; first are shown the smallest and largest limit."""
    from synth.plan.memory_curve.curve_file import cap_of
    from synth.report.chart.chart import Chart
    from synth.report.html.page import ScheduleMenu
    from synth.report.picture.curve import curve_picture
    from synth.report.picture.svg import svg_text

    head, rows = _head_and_rows(curve)
    charts = [
        Chart.planned(f"limit {format_bytes(cap_of(plan))}", plan, plan.check()[1])
        for plan in curve.points
    ]
    menu = ScheduleMenu(
        tuple(name.replace("\n", ", ") for name in head[:6]),
        tuple(row[:6] for row in rows),
        tuple(str(cap_of(plan)) for plan in curve.points),
        svg_text(curve_picture(drawn(curve, title))),
        tuple(sorted({0, len(charts) - 1})),
    )
    write_choice(path, title, charts, menu)


def _figures(plan: "Plan", curve: "MemoryCurve") -> tuple[float, float, float | None]:
    """Return bubble rate, mean idle share and tokens per second, of the curve's objective."""
    from synth.schedule.verify import verify

    timeline, asked = verify(plan.schedule(), plan.costs)[1], curve.judged_by
    return (
        asked.bubble_rate(timeline, max(timeline.work_us)),
        asked.bubble_rate(timeline, timeline.mean_work_us),
        tokens_per_s(asked, timeline, plan.num_micro_batches, plan.workload),
    )


def _sentence(curve: "MemoryCurve") -> str:
    least, never = curve.least_cap_bytes, curve.never_below_bytes
    where = "any" if curve.partition_is_sought else "this"
    first = f"infeasible below {format_bytes_both(never)} = {never}B, in {where} partition"
    if least == never:
        return first
    return f"{first}; always feasible from {format_bytes_both(least)} on"


def as_json(curve: "MemoryCurve") -> dict[str, Any]:
    """Return the curve for scripts, without the plans."""
    from synth.plan.memory_curve.curve_file import cap_of, value_of
    from synth.plan.recompute.stages import recomputed

    return {
        "objective": curve.objective,
        "partition": curve.partition,
        "partition_is_sought": curve.partition_is_sought,
        "placement": curve.placement,
        "never_below_bytes": curve.never_below_bytes,
        "points": [
            {
                "cap_bytes": cap_of(plan),
                "partition": plan.partition,
                "peak_bytes": plan.claim.peak_bytes,
                "value_us": value_of(plan),
                "lower_bound_us": plan.claim.lower_bound_us,
                "gap": plan.claim.gap,
                **dict(zip(_FIGURES, _figures(plan, curve), strict=True)),
                "found_by": plan.claim.found_by,
                "stopped_by": plan.claim.stopped_by,
                "recomputed": recomputed(plan.schedule()),
            }
            for plan in curve.points
        ],
        "families": [family.model_dump() for family in curve.families],
    }
