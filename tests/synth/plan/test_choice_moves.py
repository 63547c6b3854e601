"""Moves of the choice of recomputation under one order, against all choices of small problems."""

import random
from dataclasses import replace
from itertools import combinations, product

import pytest

from synth.costs.recomputation import Recomputation
from synth.families import generate
from synth.plan.recompute.choice_moves import ChoiceMoves, moved_within
from synth.plan.recompute.choice_search import solve_choosing
from synth.plan.recompute.layer_choice import with_layers
from synth.schedule.model import Schedule
from synth.schedule.recomputed_stages import recomputed, written_out
from synth.search.clock import Clock
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.watch import SolveWatch
from tests.synth.effort import counted
from tests.synth.layered import block, invented, problem_of


def pipeline(seed: int, sizes: tuple[int, ...], cap_bytes: int | None = None) -> Problem:
    draw = random.Random(seed)
    profile = invented([block(draw) for _ in range(sum(sizes))])
    problem = problem_of(profile, sizes, 4, 0)
    caps = None if cap_bytes is None else (cap_bytes,) * problem.num_ranks
    return replace(problem, caps_bytes=caps)


def one_f_one_b(problem: Problem) -> Schedule:
    return generate("1f1b", problem.num_ranks, problem.num_micro_batches, costs=problem.costs)


def evaluated(
    problem: Problem, order: Schedule, layers: tuple[int, ...], stages: tuple[int, ...]
) -> EvaluatedSchedule | None:
    return evaluate(with_layers(problem, layers), written_out(order, stages), "1f1b")


def every_choice(
    problem: Problem, sizes: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All layers that B recomputes with all stages that have an R and no such layer."""
    firsts = [sum(sizes[:stage]) for stage in range(len(sizes))]
    ways = []
    for stage, (first, size) in enumerate(zip(firsts, sizes, strict=True)):
        own = range(first, first + size)
        kept = [one for count in range(size + 1) for one in combinations(own, count)]
        ways.append([*((layers, ()) for layers in kept), ((), (stage,))])
    return [
        (
            tuple(layer for layers, _ in chosen for layer in layers),
            tuple(stage for _, stages in chosen for stage in stages),
        )
        for chosen in product(*ways)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_found_is_one_of_all_and_never_worse_than_the_given_one(seed: int) -> None:
    sizes = (2, 1, 2)
    free = pipeline(seed, sizes)
    order = one_f_one_b(free)
    plain, most = (evaluated(free, order, layers, ()) for layers in ((), tuple(range(sum(sizes)))))
    assert plain is not None and most is not None
    draw = random.Random(seed)
    cap = draw.randint(max(most.peak_bytes), max(plain.peak_bytes))
    problem = pipeline(seed, sizes, cap)
    values = {}
    for layers, stages in every_choice(problem, sizes):
        found = evaluated(problem, order, layers, stages)
        if found is not None:
            values[layers, stages] = found.value_us
    start = tuple(range(sum(sizes))), ()
    moves = ChoiceMoves(problem, lambda judged: False)
    chosen = with_layers(problem, start[0])
    better = moves.better(chosen, order, values[start], "1f1b")
    if better is None:
        assert values[start] == min(values.values())
        return
    moved, stages, result = better
    assert result.value_us == values[tuple(moved.recomputed_layers), stages] < values[start]
    assert max(result.peak_bytes) <= cap
    assert result.value_us == min(values.values())


def test_a_stage_that_recomputes_for_nothing_stops() -> None:
    problem = pipeline(0, (2, 2), 10**9)
    order = one_f_one_b(problem)
    given = evaluated(problem, order, (0,), (1,))
    assert given is not None
    moves = ChoiceMoves(problem, lambda judged: False)
    chosen = with_layers(problem, (0,))
    better = moves.better(chosen, given.schedule, given.value_us, "1f1b")
    assert better is not None
    assert better.stages == () and better.problem.recomputed_layers == Recomputation()


def test_moves_end_when_asked_to() -> None:
    problem = pipeline(0, (2, 2), 10**9)
    given = evaluated(problem, one_f_one_b(problem), (0,), (1,))
    assert given is not None
    moves = ChoiceMoves(problem, lambda judged: judged >= 1)
    chosen = with_layers(problem, (0,))
    assert moves.better(chosen, given.schedule, given.value_us, "1f1b") is None
    assert moves.num_judged == 1


def test_a_deterministic_search_counts_the_choices_judged() -> None:
    problem = pipeline(0, (2, 2), 10**9)
    given = evaluated(problem, one_f_one_b(problem), (0,), (1,))
    assert given is not None
    found = solve_choosing(with_layers(problem, (0,)), counted(0.01))
    begun = replace(
        found,
        problem=with_layers(problem, (0,)),
        schedule=given.schedule,
        timeline=given.timeline,
        value_us=given.value_us,
    )
    clock = Clock(1.0, is_deterministic=True)
    assert moved_within(clock, begun.problem, begun) is not None
    assert 0 < clock.granted_s < 0.2


def test_a_search_begins_with_the_layers_of_its_hint() -> None:
    sizes = (2, 1, 2)
    problem = pipeline(3, sizes)
    order = one_f_one_b(problem)
    layers = tuple(range(sum(sizes)))
    fitting = evaluated(problem, order, layers, ())
    assert fitting is not None and recomputed(fitting.schedule) == []
    problem = pipeline(3, sizes, max(fitting.peak_bytes))
    assert evaluated(problem, order, (), ()) is None
    told: list[int] = []
    options = SolveOptions(
        0.0, workers=1, hint=order, hint_layers=Recomputation(layers), hint_found_by="given"
    )
    found = solve_choosing(problem, options, SolveWatch(lambda one: told.append(one.value_us)))
    assert told[0] == fitting.value_us
    assert found.value_us is not None and found.value_us <= fitting.value_us
