"""The work of `synth explain`."""

import threading

from synth.cli.answer.charts import ChartSet
from synth.cli.answer.explain import explanation_text
from synth.cli.answer.output import Format, answer, answer_json, talk
from synth.cli.explain import EXPLAIN_LIMIT_S, ExplainRequest
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.read.plans import estimate_on_trust, load_checked, plan_estimate_lines
from synth.options.plan_profile import costs_of
from synth.plan.explain.explanation import Explanation, explain
from synth.report.explain.overlay import Overlay
from synth.solver.options import SolveOptions


def work(request: ExplainRequest) -> None:
    request.check_files(request.plan)
    plan, _, timeline = load_checked(request.plan)
    profile = costs_of(plan, request.profile, request.link, {}, {})
    limit_s = request.time_limit or EXPLAIN_LIMIT_S
    options = SolveOptions(time_limit_s=limit_s, workers=request.workers)
    talk(f"computing what changes would give, for {limit_s:g}s at most")

    def run(stop: threading.Event) -> Explanation:
        return explain(plan, timeline, options, profile, stop)

    explained = run_interruptibly(run)
    if request.html is not None:
        ChartSet.of(plan, Overlay(timeline), explained=explained).write_page(request.html)
    if request.format == Format.JSON:
        on_trust = estimate_on_trust(plan)
        answer_json(explained.to_data() | ({"on_trust": on_trust} if on_trust else {}))
    else:
        answer("\n".join([*plan_estimate_lines(plan), explanation_text(explained)]))
