"""The bound over every choice of recomputation, against all choices of small problems."""

import random
from dataclasses import replace
from itertools import combinations

import pytest

from synth.plan.recompute.attempts import ChoiceAttempts
from synth.plan.recompute.choice_proof import ChoiceProof
from synth.plan.recompute.choice_search import solve_choosing
from synth.plan.recompute.given_stages import solve_recomputing
from synth.plan.recompute.layer_bounds import bounds_of_every_choice
from synth.plan.recompute.layer_choice import with_layers
from synth.solver.infeasibility import needed_bytes
from synth.solver.problem import Problem
from synth.solver.solver import solve
from synth.solver.watch import SolveWatch
from tests.sweep import sweep
from tests.synth.effort import counted, exact_alone
from tests.synth.layered import block, invented, problem_of, random_layer

# It decides problems of this size.
EXACT = exact_alone(0.1)


def proven_us(problem: Problem, value_us: int, limit_s: float = 1) -> int:
    """The bound that is proven if a schedule of this value is known."""
    proof = ChoiceProof(problem, counted(limit_s), lambda: value_us, lambda: False)
    for _ in proof.prove(limit_s):
        pass
    return proof.bound_us


def tight(seed: int, name: str, sizes: tuple[int, ...], num_micro_batches: int) -> Problem:
    """A problem whose cap not every choice keeps."""
    draw = random.Random(seed)
    make = random_layer if seed % 2 else block
    profile = invented([make(draw) for _ in range(sum(sizes))])
    problem = problem_of(profile, sizes, num_micro_batches, 1, name)
    needs = [max(needed_bytes(with_layers(problem, layers))) for layers in every_choice(sum(sizes))]
    cap = draw.randint(min(needs), max(needs) + 60)
    return replace(problem, caps_bytes=(cap,) * problem.num_ranks)


def every_choice(num_layers: int) -> list[tuple[int, ...]]:
    return [
        one for count in range(num_layers + 1) for one in combinations(range(num_layers), count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes", "num_micro_batches", "seed"),
    sweep(
        [
            (*shape, seed)
            for seed in range(40)
            for shape in (
                ("linear", (2, 1), 3),
                ("linear", (1, 2), 4),
                ("linear", (1, 1, 1), 3),
                ("v", (1, 1, 1, 1), 2),
            )
        ],
        daily=8,
    ),
)
def test_no_schedule_of_any_choice_is_below_the_bound(
    name: str, sizes: tuple[int, ...], num_micro_batches: int, seed: int
) -> None:
    problem = tight(seed, name, sizes, num_micro_batches)
    values = []
    for layers in every_choice(sum(sizes)):
        values.append(solve(with_layers(problem, layers), EXACT).value_us)
    for stages in every_choice(len(sizes))[1:]:
        values.append(solve_recomputing(problem, stages, EXACT).value_us)
    best_us = min(value_us for value_us in values if value_us is not None)
    assert proven_us(problem, 2 * best_us) <= best_us
    assert proven_us(problem, best_us) <= best_us


def test_branching_proves_the_best_of_all_choices_where_closed_forms_do_not() -> None:
    problem = tight(0, "linear", (2, 1), 4)
    best_us = 201  # by the exact model of each choice, as in the test above
    assert problem.objective.value_us(bounds_of_every_choice(problem)) == 186
    assert proven_us(problem, best_us) == best_us
    assert proven_us(problem, 2 * best_us) == best_us


def test_a_proof_goes_on_with_a_better_schedule() -> None:
    problem = tight(0, "linear", (2, 1), 4)
    proof = ChoiceProof(problem, counted(0.01), lambda: 402, lambda: False)
    first = next(proof.prove(0.01)).bound_us
    proof.go_on(counted(1), lambda: 201, lambda: False)
    proven = [one.bound_us for one in proof.prove(1)]
    assert first <= proven[0] and proven == sorted(proven)
    assert proof.bound_us == 201  # the best of all choices, as above


def test_a_later_search_goes_on_from_the_attempts_of_an_earlier_one() -> None:
    problem = tight(0, "linear", (2, 1), 4)
    attempts = ChoiceAttempts()
    first = solve_choosing(problem, counted(0.02), attempts=attempts)
    known = attempts.best
    assert known is not None and known.found.value_us == first.value_us
    told: list[int] = []
    second = solve_choosing(
        problem, counted(0.5), SolveWatch(lambda one: told.append(one.value_us)), attempts=attempts
    )
    assert second.value_us == second.lower_bound_us == 201
    assert first.value_us is not None and all(us <= first.value_us for us in told)
    assert first.lower_bound_us <= second.lower_bound_us
