"""Compiled list scheduling makes the orders of `list_scheduling.Builder`."""

import random
from collections.abc import Sequence
from itertools import product

import pytest

from benchmarks.realistic_profiles import realistic_case
from benchmarks.realistic_suite import candidate_of
from synth.costs.costs import uniform_costs
from synth.objective import Objective
from synth.schedule.placements import placement
from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.improve import list_scheduling
from synth.solver.improve.compiled_lists import CompiledBuilder
from synth.solver.improve.priority_rules import PriorityRule, change, variants
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_memory, safe_memory
from synth.solver.problem import Problem


def changed(
    instance: Instance, rules: Sequence[PriorityRule], rng: random.Random
) -> list[PriorityRule]:
    """Rules of which every copy's is changed in two fields."""
    new = list(rules)
    for copy, rule in enumerate(rules):
        most = instance[copy].num_micro_batches
        new[copy] = change(change(rule, most, rng), most, rng)
    return new


def test_orders_and_dead_ends_are_those_of_the_plain_builder() -> None:
    rng, whole, tried = random.Random(0), 0, 0
    names = ("linear", "v", "looped:3", "wave:2", "bidirectional-v")
    for number, name in product((16, 18), names):
        problem = candidate_of(realistic_case(number, name)).problem
        instance = safe_memory(problem, BUFFERINGS[tried % 2])
        plain = list_scheduling.Builder(instance, problem.objective)
        compiled = CompiledBuilder(instance, problem.objective)
        for rules in rng.sample(list(variants(instance)), 8):
            for given in (rules, changed(instance, rules, rng)):
                expected = plain.build(given)
                assert compiled.best([given], 1) == ([] if expected is None else [expected])
                whole, tried = whole + (expected is not None), tried + 1
    assert tried / 4 < whole < tried


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
def test_the_best_of_all_rules_come_first(objective: Objective) -> None:
    costs = uniform_costs(4, forward_us=10, backward_input_us=12, backward_weight_us=8)
    instance = relaxed_memory(Problem.linear(costs, 8))  # without limits
    rules = list(variants(instance))
    built = [list_scheduling.Builder(instance, objective).build(one) for one in rules]
    values = sorted(one.value_us for one in built if one is not None)
    found = CompiledBuilder(instance, objective).best(rules, 5)
    assert [one.value_us for one in found] == values[:5]
    assert found[0] in built


def test_two_replicas_begin_a_micro_batch_each_in_the_time_of_both() -> None:
    """Each of 4 ranks works 2 · 30 µs for a micro-batch of each replica; both have 8.

    So an interval of 60 µs keeps all ranks busy; from 84 µs on the best order takes 678 µs.
    """
    where = placement("bidirectional", 4)
    costs = uniform_costs(
        4, forward_us=10, backward_input_us=10, backward_weight_us=10, saved_bytes=10
    )
    instance = safe_memory(Problem(costs, where, 16, (20,) * 4), BUFFERINGS[0])
    builder = CompiledBuilder(instance, Objective.MAKESPAN)
    assert builder.best_at_uniform_intervals(1)[0].value_us == 510


def test_a_search_of_uniform_intervals_ends_when_it_is_stopped() -> None:
    costs = uniform_costs(4, forward_us=10, backward_input_us=12, backward_weight_us=8)
    builder = CompiledBuilder(relaxed_memory(Problem.linear(costs, 8)), Objective.MAKESPAN)
    polls = iter((False, True))
    first = builder.best_at_uniform_intervals(9, lambda: next(polls))
    assert 0 < len(first) <= 3  # of the first interval
