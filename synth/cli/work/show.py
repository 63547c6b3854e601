"""The work of `synth show`."""

from synth.cli.answer.charts import ChartSet, chart_against
from synth.cli.answer.output import Format, answer, answer_json, talk
from synth.cli.answer.show import as_json, headline, steady_lines, version_lines
from synth.cli.read.plans import load_checked
from synth.cli.show import ShowRequest
from synth.plan.reason import reason_of
from synth.report.chart.excerpt import Excerpt
from synth.report.explain.overlay import Overlay, overlay, save_simulation
from synth.report.text.gantt import render
from synth.report.text.plan_table import plan_table
from synth.schedule.files.plan_file import Plan
from synth.schedule.measured.execution_trace import moved_spans


def work(request: ShowRequest) -> None:
    request.check_files()
    plan, lowered, timeline = load_checked(request.plan)
    reason = reason_of(plan, lowered, timeline)
    excerpt = request.excerpt.read(plan.num_ranks)
    measured = request.measured
    overlaid = Overlay(timeline) if measured is None else overlay(plan, lowered, measured)
    ran = overlaid.measured.ops if overlaid.measured else None
    moves = moved_spans(overlaid.planned)
    planned = overlaid.planned.ops
    gantt = render(planned, measured=ran, moves=moves, width=request.width, excerpt=excerpt)
    if request.trace is not None:
        save_simulation(plan, timeline, request.trace)
        talk(f"written: {request.trace}")
    if request.draws_files:
        _write_charts(plan, overlaid, excerpt, request)
    if request.format == Format.JSON:
        answer_json(as_json(plan, lowered, timeline, reason) | overlaid.as_json())
        return
    answer(headline(plan, timeline, reason))
    answer("".join(f"{line}\n" for line in (*version_lines(timeline), *steady_lines(plan))))
    answer(gantt + "\n")
    answer(plan_table(plan, lowered, timeline))
    if overlaid.difference is not None:
        answer("\n" + overlaid.text())


def _write_charts(
    plan: Plan, overlaid: Overlay, excerpt: Excerpt | None, request: ShowRequest
) -> None:
    """Write the chart, below those of other schedules, in all formats that are asked for."""
    charts = ChartSet.of(plan, overlaid, [chart_against(text, plan) for text in request.others])
    if request.perfetto is not None:
        charts.write_perfetto(request.perfetto)
    if request.html is not None:
        charts.write_page(request.html)
    charts.write_pictures(request.pictures, excerpt, request.memory)
