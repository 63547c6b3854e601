"""Windows and robustness moves in turns: their order, and the end of each turn."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.solver.suites import bidirectional, table
from synth.families import generate
from synth.solver.evaluate import evaluate
from synth.solver.evaluate.evaluate import EvaluatedSchedule
from synth.solver.improve.lns import search, window_step
from synth.solver.improve.lns.window_step import WindowTurns
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.instance.timing import TimedOrders
from synth.solver.options import Part, SolveOptions
from synth.solver.order_pool import split_timing
from synth.solver.problem import Problem
from synth.solver.search_state import SearchState

LIMIT_S = 100.0


def begun(problem: Problem, family: str, **options: Any) -> tuple[WindowTurns, SearchState]:
    """Windows from a published schedule."""
    asked = SolveOptions(time_limit_s=LIMIT_S, **options)
    now = SearchState(problem, asked)
    schedule = generate(family, problem.num_ranks, problem.num_micro_batches, costs=problem.costs)
    now.offer(evaluate.evaluate(problem, schedule, family))

    return WindowTurns(now, 1), now


class Fruitless:
    """Windows that find nothing, and robustness moves that gain `gains` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gains: int, last: int) -> None:
        self.patience: list[float] = []
        self.gains, self.last = gains, last
        monkeypatch.setattr(search, "improve", self.improve)
        monkeypatch.setattr(window_step, "improve_robustness", self.improve_robustness)

    def improve(
        self,
        instance: Instance,
        objective: object,
        starts: Sequence[TimedOrders],
        limits: search.EffortLimits,
        *rest: Any,
    ) -> search.LnsResult:
        self.patience.append(limits.patience_s)
        return search.LnsResult(starts[0], 1.0, len(self.patience) == self.last)

    def improve_robustness(
        self, problem: Problem, candidate: EvaluatedSchedule, should_stop: object
    ) -> EvaluatedSchedule:
        self.gains -= 1
        return replace(candidate) if self.gains >= 0 else candidate


def test_without_slack_to_gain_windows_are_given_ever_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fruitless = Fruitless(monkeypatch, gains=2, last=6)
    search, _ = begun(table.problem(4, 8, 1), "zb-h1")
    search.run(math.inf, LIMIT_S, is_patient=True)
    assert fruitless.patience == pytest.approx([3, 3, 3, 6, 12, 24])


def test_an_impatient_search_ends_where_neither_finds_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fruitless = Fruitless(monkeypatch, gains=2, last=6)
    search, _ = begun(table.problem(4, 8, 1), "zb-h1")
    search.run(math.inf, LIMIT_S, is_patient=False)
    assert fruitless.patience == pytest.approx([3, 3, 3])


def test_turns_end_with_the_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    fruitless = Fruitless(monkeypatch, gains=100, last=0)
    search, _ = begun(table.problem(4, 8, 1), "zb-h1")
    search.run(math.inf, 7.5, is_patient=True)
    assert len(fruitless.patience) == 8


def test_where_slack_is_left_out_windows_never_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fruitless = Fruitless(monkeypatch, gains=100, last=1)
    search, _ = begun(table.problem(4, 8, 1), "zb-h1", without=frozenset({Part.ROBUSTNESS}))
    search.run(math.inf, LIMIT_S, is_patient=True)
    assert fruitless.patience == [math.inf]
    assert fruitless.gains == 100


def test_both_together_better_a_published_schedule_and_can_be_repeated() -> None:
    problem = bidirectional.problem("bidirectional", 4, 8, split=True)
    values = []
    for _ in range(2):
        search, now = begun(problem, "chimera", deterministic=True)
        assert now.best is not None
        start_us = now.best.value_us
        search.run(0.0, 3.0, is_patient=True)
        values.append(now.best.value_us)
    assert values[0] == values[1] < start_us


def test_an_order_that_shares_micro_batches_unevenly_is_no_start() -> None:
    problem = bidirectional.problem("bidirectional", 4, 5, split=True)
    instance = relaxed_memory(replace(problem, caps_bytes=None))
    uneven = generate("chimera:doubling", 4, 5, costs=problem.costs)
    even = generate("chimera", 4, 5, costs=problem.costs)
    assert split_timing(uneven.programs, instance) is None
    assert split_timing(even.programs, instance) is not None
