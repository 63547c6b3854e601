"""Drawings of plans, profiles, comparisons and memory curves in notebooks."""

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from synth.profile import Profile
from synth.schedule.files.plan_file import Plan
from synth.system.display import draw_with

if TYPE_CHECKING:
    from synth.plan.comparison import Comparison
    from synth.plan.memory_curve.curve_file import MemoryCurve

# Ops up to which a notebook gets a picture; one of 12,000 ops takes 0.7 s and 1.6 MB.
_MOST_OPS = 20_000

_PRE = "<pre style='line-height:1.2;font-size:12px;overflow-x:auto'>{}</pre>"


def register() -> None:
    """Tell notebooks how plans and profiles are drawn."""
    draw_with(Plan, plan_html)
    draw_with(Profile, profile_html)


def plan_html(plan: Plan) -> str:
    """Return a plan as HTML: its figures, a Gantt chart with memory, and the table of its ranks."""
    from synth.report.chart.chart import Chart
    from synth.report.picture.schedule import schedule_picture
    from synth.report.picture.svg import svg_text
    from synth.report.text.plan_table import plan_table

    lowered, timeline = plan.check()
    ranks = plan_table(plan, lowered, timeline)
    figures, num_ops = repr(plan), lowered.first_node[-1]
    if num_ops > _MOST_OPS:
        return _text(f"{figures}\n\n{num_ops:,} ops: `synth show --html` draws them\n\n{ranks}")
    picture = schedule_picture(plan.name, [Chart.planned(plan.name, plan, timeline)])
    return f"{_text(figures)}{_image(svg_text(picture), plan.name)}{_text(ranks)}"


def _image(svg: str, name: str) -> str:
    """Return an image of its own document, so that its styles do not reach the notebook's."""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f"<img alt='{escape(name)}' style='max-width:100%' src='data:image/svg+xml;base64,{data}'>"
    )


def profile_html(profile: Profile) -> str:
    """Return a profile as HTML: its origin, and a table of its distinct layers."""
    from synth.op_kinds import OpKind
    from synth.report.text.tables import milliseconds

    kinds = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP)
    head = ["layer", "count", *(f"{kind} (ms)" for kind in kinds), "saved (MB)", "parameters (MB)"]
    rows = []
    for name, layer in profile.layer_profiles.items():
        count = sum(entry.profile == name for entry in profile.layers)
        times = [milliseconds(layer.time_us[kind].median_us) for kind in kinds]
        sizes = [f"{size / 1e6:,.3f}" for size in (layer.saved_bytes, layer.parameter_bytes)]
        rows.append([name, str(count), *times, *sizes])
    return _text(repr(profile)) + table_html(head, rows)


def comparison_html(comparison: "Comparison") -> str:
    """Return a comparison as HTML: a row per schedule, best first."""
    objective = comparison.question.objective
    head = ["schedule", f"{objective.words} (ms)", "over ideal", "peak (GB)", "fits"]
    rows = []
    for entry in comparison.ranked():
        value_us = objective.value_us(entry)
        over = comparison.question.over_ideal(entry)
        peak, fits = max(entry.peak_bytes), {None: "", True: "yes", False: "no"}[entry.fits]
        times = [f"{value_us / 1000:,.3f}", f"{100 * over:.2f} %"]
        rows.append([entry.name, *times, f"{peak / 1e9:,.3f}", fits])
    return table_html(head, rows)


def curve_html(curve: "MemoryCurve") -> str:
    """Return a memory curve as HTML: a row per point."""
    head = ["memory limit (GB)", f"{curve.judged_by.words} (ms)", "lower bound (ms)", "gap"]
    rows = []
    for plan in curve.points:
        times = [f"{us / 1000:,.3f}" for us in (plan.claim.value_us, plan.claim.lower_bound_us)]
        cap = max(plan.caps_bytes or (0,))
        rows.append([f"{cap / 1e9:,.3f}", *times, f"{100 * plan.claim.gap:.2f} %"])
    return table_html(head, rows)


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    return _PRE.format(escape(text))
