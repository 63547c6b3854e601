"""The page of `synth compare`: the table, the plot, and the chart of each schedule."""

from collections.abc import Callable
from pathlib import Path

from synth.cli.answer.charts import write_choice
from synth.cli.answer.compare import drawn, head_and_rows
from synth.cli.answer.output import talk
from synth.plan.comparison import Comparison, Entry
from synth.plan.reason import reason_of
from synth.report.chart.chart import Chart
from synth.report.html.page import ScheduleMenu
from synth.report.picture.pareto import pareto_picture_beside
from synth.report.picture.svg import svg_text

# Charts of more ops than these together make a page slow to write and to open.
_MOST_OPS = 1_000_000

# Columns of the table for which a page has no room.
_LEFT_OUT = ("static", "sent", "summed")


def write_compare_page(
    path: Path, comparison: Comparison, should_stop: Callable[[], bool] = lambda: False
) -> None:
    """Write the page; first are shown the best schedule, and above it the best published one.

    Of very large comparisons the fastest schedules have charts, those of the Pareto front first.

    Args:
        should_stop: ends the making of charts, but for those that are shown first.
    """
    pareto = drawn(comparison)
    head, rows = head_and_rows(comparison, pareto)
    ranked = comparison.ranked()
    charted = _charted(ranked, {mark.name for mark in pareto.front})
    charts = {}
    for place in sorted(charted, key=lambda place: place not in _shown(ranked, charted)):
        if should_stop() and place not in _shown(ranked, charted):
            break
        charts[place] = _chart(comparison, ranked[place])
    charted = sorted(charts)
    if len(charted) < len(ranked):
        talk(f"note: {len(charted)} of {len(ranked)} schedules have charts in {path}")
    places = [*charted, *(i for i in range(len(ranked)) if i not in charted)]
    columns = [i for i, name in enumerate(head) if name.split()[0] not in _LEFT_OUT]
    menu = ScheduleMenu(
        tuple(head[i].replace("\n", " ").strip() for i in columns),
        tuple((ranked[place].name, *(rows[place][i] for i in columns[1:])) for place in places),
        tuple(ranked[i].name for i in charted),
        svg_text(pareto_picture_beside(pareto)),
        tuple(map(charted.index, _shown(ranked, charted))),
    )
    write_choice(path, pareto.title, [charts[place] for place in charted], menu)


def _chart(comparison: Comparison, entry: Entry) -> Chart:
    plan = comparison.plan(entry)
    lowered, timeline = plan.check()
    reason = reason_of(plan, lowered, timeline) if entry.claim is not None else ""
    return Chart.planned(entry.name, plan, timeline, reason)


def _charted(ranked: list[Entry], front: set[str]) -> list[int]:
    """Return the places of the schedules that get a chart, in the order of the table."""
    found: list[int] = []
    num_ops = 0
    for place in sorted(range(len(ranked)), key=lambda i: ranked[i].name not in front):
        num_ops += sum(map(len, ranked[place].schedule.programs))
        if num_ops <= _MOST_OPS or not found:
            found.append(place)
    return sorted(found)


def _shown(entries: list[Entry], charted: list[int]) -> tuple[int, ...]:
    """Return the places of the best published schedule that fits, if any, and of the best one."""
    fitting = [i for i in charted if entries[i].fits is not False]
    best = next(iter(fitting), charted[0])
    published = next((i for i in fitting if i != best and entries[i].claim is None), best)
    return (published, best) if published != best else (best,)
