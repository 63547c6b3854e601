"""Recomputation by the rules of a runtime: the choices on its menu, and bounds over all of them."""

import random
from dataclasses import replace

import pytest

from synth.costs.recomputation import NOT_RECOMPUTED, Recomputation
from synth.plan.recompute.choice import bound_us, needs_bytes, why_infeasible
from synth.plan.recompute.choice_search import solve_choosing
from synth.plan.recompute.layer_bounds import bounds_of_every_choice
from synth.plan.recompute.menu_search import MenuSearch, problems_on_menu
from synth.schedule.recomputation_rules import MEGATRON, TORCHTITAN, RecomputationMenu
from synth.search.outcome import StoppedBy
from synth.solver.infeasibility import needed_bytes
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.synth.effort import HOURS_S, counted
from tests.synth.layered import block, invented, problem_of, random_layer


def small(seed: int, menu: RecomputationMenu, cap: int | None = None) -> Problem:
    """Without a cap, the largest one under which nothing fits unless layers recompute."""
    draw = random.Random(seed)
    profile = invented([block(draw) for _ in range(5)])
    free = problem_of(profile, (2, 3), 2, 10**9)
    caps = (cap or max(needed_bytes(free)) - 1,) * 2
    return replace(free, caps_bytes=caps, layer_menu=menu, further_ops=frozenset())


def best_of_each(problem: Problem) -> list[tuple[Recomputation, int]]:
    """The best value with each rule by itself, as the exact search proves it."""
    found = []
    for one in problems_on_menu(problem):
        result = solve(one, SolveOptions(HOURS_S, gap=0.0, workers=1))
        assert result.stopped_by in (StoppedBy.OPTIMAL, StoppedBy.INFEASIBLE)
        if result.value_us is not None:
            found.append((one.recomputed_layers, result.value_us))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("menu", [TORCHTITAN, MEGATRON])
@pytest.mark.parametrize("seed", range(2))
def test_the_rule_found_is_the_best_of_all_and_the_bound_is_below_every_one(
    seed: int, menu: RecomputationMenu
) -> None:
    problem = small(seed, menu)
    each = dict(best_of_each(problem))
    assert each and NOT_RECOMPUTED not in each
    found = solve_choosing(problem, counted(0.1))
    assert found.problem.recomputed_layers in each
    assert found.value_us == min(each.values())
    assert found.lower_bound_us <= min(each.values())
    assert bound_us(problem, None) <= min(each.values())


@pytest.mark.parametrize("name", ["linear", "v"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_on_the_menu_beats_the_bounds_or_needs_less(seed: int, name: str) -> None:
    draw = random.Random(seed)
    profile = invented([random_layer(draw) for _ in range(5)])
    sizes = (2, 3) if name == "linear" else (1, 1, 2, 1)
    free = problem_of(profile, sizes, 3, 10**9, name)
    problem = replace(free, layer_menu=TORCHTITAN, further_ops=frozenset())
    for one in problems_on_menu(problem):
        cap = max(needed_bytes(one)) + draw.randint(0, 30)
        caps = (cap,) * problem.num_ranks
        capped = replace(problem, caps_bytes=caps)
        assert why_infeasible(capped, None) is None
        for needs, need in zip(needs_bytes(capped, None), needed_bytes(one), strict=True):
            assert needs <= need
        any_bound = bounds_of_every_choice(capped)
        found = solve(replace(one, caps_bytes=caps), SolveOptions(time_limit_s=0.1, workers=1))
        if found.timeline is not None:
            assert any_bound.makespan_us <= found.timeline.makespan_us
            assert any_bound.period_us <= found.timeline.period_us


def test_the_bound_over_a_menu_is_no_weaker_than_that_over_all_layers() -> None:
    problem = small(1, TORCHTITAN)
    assert bound_us(problem, None) >= bound_us(replace(problem, layer_menu=None), None)


def test_where_memory_suffices_no_rule_is_tried() -> None:
    found = solve_choosing(small(2, TORCHTITAN, cap=1000), counted())
    assert not found.problem.recomputed_layers and found.value_us == found.lower_bound_us


def test_all_that_fit_are_listed_the_best_ones_first() -> None:
    search = MenuSearch(small(0, TORCHTITAN, cap=130), effort_s=1)
    search.run()
    listed = [one.recomputed_layers for one in search.best(9)]
    assert listed[0] == min(search.values, key=lambda layers: search.values[layers])
    assert set(search.values) <= set(listed)
    assert len(search.best(1)) == 1
