"""Passing pairs on omitted ranks, against schedules of all ranks and against optima."""

import random
from dataclasses import replace
from itertools import combinations

import pytest
from ortools.sat.python import cp_model

from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.solver.bounds.bound import Reference
from synth.solver.bounds.forward_spacing_model import Spacings, spacing_model
from synth.solver.bounds.rank_subsets import RankSubsets
from synth.solver.cpsat import passing_pairs as module
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.run import run
from synth.solver.instance.instance import SPLIT, B, F, Instance, OpIndex, W
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.instance.timing import TimedOrders, timed
from synth.solver.problem import Problem
from synth.solver.tuning import EXACT_MODEL
from tests.sweep import sweep
from tests.synth.effort import counted
from tests.synth.even_stages import even
from tests.synth.odd_problems import odd_costs

# One stage on each rank; one rank that comes twice; two copies, one with fewer micro-batches.
PLACEMENTS = [
    ((0, 1),),
    ((0, 1, 2),),
    ((0, 1, 2, 3, 4),),
    ((2, 0, 3, 1),),
    ((0, 1, 0),),
    ((0, 1, 2, 0),),
    ((0, 1, 2, 3, 1),),
    ((0, 1, 2), (3, 1, 4)),
    ((0, 1, 2, 3), (4, 5, 6, 7)),
]


def any_solution(rng: random.Random, instance: Instance) -> TimedOrders:
    """Each op as soon as it can be, in a random order of each rank in which nobody waits for ever.

    Orders follow from a random list of all ops that respects what they wait for.
    """
    done = {(c, kind): 0 for c in range(len(instance)) for kind in SPLIT}
    orders: list[list[tuple[int, OpKind]]] = [[] for _ in instance.held]
    waiting = {W: B, B: F}
    while True:
        ready = []
        for (c, kind), k in done.items():
            before = [(c, waiting[kind])] if kind in waiting else []
            above, below = instance[c].above, instance[c].below
            if kind == F and above is not None:
                before.append((above, F))
            if kind == B and below is not None:
                before.append((below, B))
            if k < instance[c].num_micro_batches and all(done[other] > k for other in before):
                ready.append((c, kind))
        if not ready:
            return timed(orders, instance)
        c, kind = rng.choice(ready)
        done[c, kind] += 1
        orders[instance[c].rank].append((c, kind))


def keeps(instance: Instance, scope: tuple[int, ...], known: TimedOrders) -> bool:
    """Return True if the model of some ranks, with passing pairs, admits a schedule's order."""
    model = ExactModel(instance, Objective.MAKESPAN, 10**6, scope, passing_pairs=True)
    for key, variable in model.ops.start.items():
        model.cp.add(variable == known.starts[key])
    return is_feasible(model)


def is_feasible(model: ExactModel) -> bool:
    """Return True if there is any solution."""
    model.cp.clear_objective()
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return solver.solve(model.cp) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


@pytest.mark.parametrize("ranks", PLACEMENTS)
@pytest.mark.parametrize("seed", sweep(range(12), daily=6))
def test_no_schedule_is_excluded(
    ranks: tuple[tuple[int, ...], ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where ranks or pairs are left out."""
    rng = random.Random(seed)
    where, m = Placement(ranks), rng.randint(2, 6)
    costs = odd_costs(rng, where.num_stages, where.num_ranks)
    instance = relaxed_for_fusion(Problem(costs, where, m))
    limited = replace(EXACT_MODEL, most_passing_pairs=rng.choice([5, 10**6]))
    monkeypatch.setattr(module, "EXACT_MODEL", limited)
    for _ in range(3):
        known = any_solution(rng, instance)
        for size in (1, 2):
            for scope in combinations(range(where.num_ranks), size):
                assert keeps(instance, scope, known)


def test_f_and_b_that_do_not_wait_may_overlap_on_no_rank() -> None:
    """Of three ranks, of which the middle one is not modelled; both go straight through all."""
    instance, b_us = even(3, None, 2), 300

    def is_possible(f_us: int) -> bool:
        model = ExactModel(instance, Objective.MAKESPAN, 10**4, (0, 2), passing_pairs=True)
        at = {(0, F, 1): f_us, (2, F, 1): f_us + 114, (2, B, 0): b_us, (0, B, 0): b_us + 120}
        for (copy, kind, k), us in at.items():
            model.cp.add(model.ops.start[copy, OpIndex(kind, k)] == us)
        return is_feasible(model)

    def is_free(f_us: int) -> bool:
        """F takes 55 from then on on rank 0, B 58 from then on on rank 2."""
        starts = [(f_us + 57 * rank, b_us + 60 * (2 - rank)) for rank in range(3)]
        return all(f + 55 <= b or b + 58 <= f for f, b in starts)

    found = [f_us for f_us in range(60, 500) if is_free(f_us)]
    assert found == [*range(60, 132), *range(244, 249), *range(361, 366), *range(478, 500)]
    for f_us in {60, *found, *(f_us + by for f_us in found for by in (-1, 1))} - {59, 500}:
        assert is_possible(f_us) == is_free(f_us)


@pytest.mark.parametrize("length", [12, 16, 20])
def test_two_ranks_say_as_much_as_all(length: int) -> None:
    """Of eight ranks at three quarters of 1F1B's memory; without meetings they say less."""
    instance = even(8, 18, length + 1)

    def apart_us(scope: tuple[int, ...]) -> int:
        return run(spacing_model(instance, scope, Spacings()), counted(60), 60).bound_us

    of_two = apart_us((0, 6))
    assert of_two == apart_us(tuple(range(8)))
    if length > 12:
        plain = spacing_model(instance, (0, 6), Spacings(), passing_pairs=False)
        assert of_two > run(plain, counted(60), 60).bound_us


def test_two_ranks_of_sixteen_prove_what_all_take_a_minute_for() -> None:
    """The optimum of 32 micro-batches, proven by other means (notes/results.md)."""
    instance = even(16, 36, 32)
    reference = Reference(7_200, None)
    known = Spacings({1: 55, 12: 1903})
    rank_subsets = RankSubsets(
        instance, Objective.MAKESPAN, counted(60), lambda: reference, lambda: False, {}, known
    )
    assert next(rank_subsets.prove(100.0)).bound_us == 6838


@pytest.mark.parametrize("most", [10**6, 200, 40, 10])
def test_of_too_many_choices_some_are_left_out(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six ranks with 45 pairs each: micro-batches less than six apart, of twelve."""
    instance = even(8, 18, 12)

    def num_constraints(*, passing_pairs: bool) -> int:
        model = ExactModel(instance, Objective.MAKESPAN, 10**6, (0, 6), passing_pairs=passing_pairs)
        return len(model.cp.proto.constraints)

    monkeypatch.setattr(module, "EXACT_MODEL", replace(EXACT_MODEL, most_passing_pairs=most))
    added = num_constraints(passing_pairs=True) - num_constraints(passing_pairs=False)
    assert added == 2 * {10**6: 270, 200: 135, 40: 40, 10: 10}[most]


def test_ranks_that_hold_several_stages_are_left_out() -> None:
    problem = Problem(odd_costs(random.Random(0), 8, 4), placement("v", 4), 6)
    instance = relaxed_for_fusion(problem)
    sizes = {
        len(
            ExactModel(
                instance, Objective.MAKESPAN, 10**6, (0, 3), passing_pairs=passing_pairs
            ).cp.proto.constraints
        )
        for passing_pairs in (False, True)
    }
    assert len(sizes) == 1
