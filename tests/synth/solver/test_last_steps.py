"""The last steps of a search keep to its time: what they build, and when they look at the clock."""

import time

import pytest

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.schedule.model import Buffering, Schedule
from synth.solver.evaluate import evaluate
from synth.solver.evaluate.scenarios import ScenarioFactors, ScenarioTimes
from synth.solver.improve import (
    list_scheduling,
    list_scheduling_step,
    priority_rules,
    published,
)
from synth.solver.improve.first_incumbents import offer_serial
from synth.solver.improve.robustness.robustness import Robustness
from synth.solver.improve.simplify import Simplification
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.search_state import SearchState
from synth.solver.tuning import LIST_SCHEDULING, SEARCH
from tests.synth.search_context import context_of


def problem_of(num_ranks: int, num_micro_batches: int) -> Problem:
    costs = uniform_costs(num_ranks, forward_us=55, backward_input_us=58, backward_weight_us=35)
    return Problem.linear(costs, num_micro_batches)


def late(problem: Problem, evaluation_s: float) -> SearchState:
    """A search whose time is up, with an incumbent, in its grace period."""
    state = SearchState(problem, SolveOptions(time_limit_s=0.001))
    schedule = generate("zb-h1", problem.num_ranks, problem.num_micro_batches)
    state.offer(evaluate.evaluate(problem, schedule, "zb-h1"))
    time.sleep(0.002)
    state.budget.evaluation_s = evaluation_s
    state.budget.begin_grace()
    return state


class Counted:
    """Counts the scenarios that are drawn, and the schedules that are timed in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn = 0
        self.timed: list[Buffering] = []
        draw, time_in = ScenarioFactors.__init__, ScenarioTimes.__init__

        def drawn(*args: object, **options: object) -> None:
            self.drawn += 1
            draw(*args, **options)  # type: ignore[arg-type]

        def timed(own: ScenarioTimes, lowered: object, *rest: object) -> None:
            self.timed.append(lowered.schedule.buffering)  # type: ignore[attr-defined]
            time_in(own, lowered, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(ScenarioFactors, "__init__", drawn)
        monkeypatch.setattr(ScenarioTimes, "__init__", timed)


def test_a_buffering_is_timed_in_scenarios_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, counted = problem_of(4, 8), Counted(monkeypatch)
    given = evaluate.evaluate(problem, generate("zb-h1", 4, 8), "zb-h1")
    assert given is not None
    evaluate.relax_buffering(problem, given, ScenarioFactors(problem))
    assert len(counted.timed) > 1
    assert len(counted.timed) == len(set(counted.timed))


def test_the_last_steps_draw_the_scenarios_once(monkeypatch: pytest.MonkeyPatch) -> None:
    state, counted = late(problem_of(4, 8), evaluation_s=0.0), Counted(monkeypatch)
    for step in (Simplification, Robustness):
        step(context_of(state)).run(1.0, is_brief=False)
    assert len(counted.timed) > 1
    assert counted.drawn == 1


@pytest.mark.parametrize("evaluations", [0.9, 1.9])
def test_scenarios_that_would_end_after_the_grace_period_are_left_out(
    evaluations: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation_s = SEARCH.grace_s / evaluations
    state, counted = late(problem_of(4, 8), evaluation_s), Counted(monkeypatch)
    Simplification(context_of(state)).run(1.0, is_brief=False)
    assert (counted.drawn, counted.timed) == (0, [])


def out_of_time(problem: Problem) -> SearchState:
    state = SearchState(problem, SolveOptions(time_limit_s=0.001))
    offer_serial(state)
    time.sleep(0.002)
    assert state.budget.time_is_up()
    return state


def test_the_first_schedule_beside_the_serial_one_is_finished_after_the_limit() -> None:
    problem = problem_of(16, 256)
    state = out_of_time(problem)
    assert not list_scheduling_step._must_stop(state)
    list_scheduling_step._run_in(state, relaxed_memory(problem), 1, 0.5, None, 0.0)
    assert state.best is not None
    assert state.best.found_by == "list scheduling"
    assert list_scheduling_step._must_stop(state)


def test_a_stop_ends_even_the_first_schedule() -> None:
    state = out_of_time(problem_of(16, 256))
    state.budget.stop.set()
    assert list_scheduling_step._must_stop(state)


@pytest.mark.parametrize(("limit_s", "makes_timed"), [(0.5, False), (20.0, True)])
def test_families_that_read_times_are_made_if_there_is_time(
    limit_s: float, makes_timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 × 1,024 micro-batches have 49,152 ops, which take the zero-bubble greedy seconds."""
    made = []

    def generated(*_: object, timed: bool, **__: object) -> list[tuple[str, Schedule]]:
        made.append(timed)
        return []

    monkeypatch.setattr(published, "generate_for", generated)
    state = SearchState(problem_of(16, 1024), SolveOptions(time_limit_s=limit_s))
    published.PublishedIncumbents(context_of(state)).run(1.0, is_brief=False)
    assert made == ([False, True] if makes_timed else [False])


def test_a_list_schedule_is_dropped_once_the_time_is_up() -> None:
    instance = relaxed_memory(problem_of(16, 256))
    polls = 0

    def is_time_up() -> bool:
        nonlocal polls
        polls += 1
        return polls == 2

    builder = list_scheduling.Builder(instance, problem_of(16, 256).objective, is_time_up)
    assert instance.num_ops > 2 * LIST_SCHEDULING.events_per_poll
    assert builder.build(next(priority_rules.variants(instance))) is None
    assert polls == 2


@pytest.mark.parametrize(("m", "ops"), [(2, 300 * 8 * 2 * 3), (64, 40_000)])
def test_short_orders_take_less_effort_at_the_beginning(
    m: int, ops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight stages of F, B and W have 48 ops, or 1,536; without limits one memory model has all."""
    efforts: list[int] = []

    def search(_: object, max_ops: int, *rest: object) -> list[object]:
        efforts.append(max_ops)
        return []

    monkeypatch.setattr(list_scheduling_step, "search", search)
    state = SearchState(problem_of(8, m), SolveOptions(deterministic=True))
    list_scheduling_step.ListSchedulingStep(context_of(state)).run(1.0, is_brief=True)
    assert efforts == [ops]
