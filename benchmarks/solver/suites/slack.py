"""Gain of the robustness moves: mean time in other scenarios than those they were chosen in.

Each problem is solved without these moves. Then ops are moved for robustness, and both schedules
are timed in scenarios of other seeds. In the first kind of scenario every op and transfer deviates
by 5 % (standard deviation) on its own. In the second kind, the profile is also wrong by 5 % for
each stage and kind of op.
"""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.solver.case import Case, Look, Suite
from benchmarks.solver.probe import Cell
from benchmarks.solver.suites import bidirectional, published, table, unequal, v_shaped
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.solver.evaluate.evaluate import EvaluatedSchedule
from synth.solver.evaluate.scenarios import ScenarioFactors, ScenarioTimes
from synth.solver.improve.robustness.robustness import improve_robustness
from synth.solver.options import Part
from synth.solver.problem import Problem
from synth.solver.result import Result

_SEED, _SCENARIOS = 1, 201
_BIAS = 0.05

_ROWS = (
    (table, ("4,8,0.75", "8,16,1", "8,32,0.75", "8,32,1", "8,32,1.5", "16,32,1")),
    (published, ("1.5b-p8-m24 1x period", "6.2b-p8-m24 2x period")),
    (unequal, ("jitter 0 1x", "jitter 1 1.5x", "head 1.2x 1x", "slow links 1.5x")),
    (v_shaped, ("8,32 1:1:1 +2/-1/-1 0.75x", "8,32 1:1:1 +2/-1/-1 1x")),
    (bidirectional, ("bidirectional 8,16 split",)),
)


def _look(result: Result) -> Look:
    assert result.schedule is not None and result.timeline is not None
    assert result.value_us is not None and result.peak_bytes is not None
    problem = result.problem
    found = (result.schedule, result.timeline, result.value_us, result.peak_bytes)
    slack = improve_robustness(problem, EvaluatedSchedule(*found, str(result.found_by)))
    lines = (result.timeline, slack.timeline)
    before_us, after_us = _means_us(problem, lines, bias=0.0)
    wrong_before_us, wrong_after_us = _means_us(problem, lines, bias=_BIAS)
    columns: dict[str, Cell] = {
        "mean without": round(before_us),
        "mean with": round(after_us),
        "change %": f"{100 * (after_us / before_us - 1):+.2f}",
        "change %, wrong profile": f"{100 * (wrong_after_us / wrong_before_us - 1):+.2f}",
    }
    return Look(columns, tuple(_failures(result, slack)))


def _means_us(problem: Problem, lines: tuple[Timeline, Timeline], bias: float) -> list[float]:
    scenario_factors = ScenarioFactors(problem, seed=_SEED, num_scenarios=_SCENARIOS, bias=bias)
    return [
        ScenarioTimes(line.lowered, scenario_factors, problem.objective).value_us for line in lines
    ]


def _failures(result: Result, slack: EvaluatedSchedule) -> Iterator[str]:
    problem = result.problem
    lowered, timeline = verify(slack.schedule, problem.costs, problem.caps_bytes)
    assert result.value_us is not None and result.peak_bytes is not None
    if problem.objective.value_us(timeline) > result.value_us:
        yield "slack made the value worse"
    if max(peak_bytes(lowered)) > max(result.peak_bytes):
        yield "slack took memory"


def _cases() -> Iterator[Case]:
    for module, labels in _ROWS:
        for case in module.SUITE.cases():
            if case.label in labels:
                without = frozenset({Part.ROBUSTNESS})
                yield replace(case, without=without, known=None, look=_look, time_limit_s=None)


SUITE = Suite("slack", "The mean time under noise, without and with slack.", _cases, 10.0)
