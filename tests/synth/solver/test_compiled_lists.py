"""Compiled list scheduling makes the orders of `list_scheduling.Builder`."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from benchmarks.realistic_profiles import realistic_case
from benchmarks.realistic_suite import candidate_of
from synth.costs.costs import uniform_costs
from synth.objective import Objective
from synth.schedule.model import SMALLEST_BUFFERING, Buffering
from synth.schedule.placements import placement
from synth.solver.evaluate.evaluate import BUFFERINGS, evaluate_order, never
from synth.solver.improve import list_scheduling
from synth.solver.improve.compiled_lists import CompiledBuilder
from synth.solver.improve.priority_rules import PriorityRule, change, variants
from synth.solver.improve.uniform_intervals import at_uniform_intervals
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_memory, safe_memory
from synth.solver.instance.timing import ScoredOrders
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


def tight_v() -> Problem:
    """A V of 16 unequal stages with slow links, under a limit that few micro-batches keep."""
    case = realistic_case(9, "v")
    tight = case._replace(limit_bytes=3 * case.limit_bytes // 4)
    return candidate_of(tight, (2,) * 14 + (3, 3)).problem


@pytest.mark.parametrize("buffering", [BUFFERINGS[0], SMALLEST_BUFFERING])
def test_at_uniform_intervals_compiled_orders_are_those_of_the_plain_builder(
    buffering: Buffering,
) -> None:
    problem = tight_v()
    instance = safe_memory(problem, buffering)
    plain = list_scheduling.Builder(instance, problem.objective)
    found = at_uniform_intervals(instance, plain.build, 1_000_000, never)
    compiled = CompiledBuilder(instance, problem.objective).best_at_uniform_intervals(10**6)
    assert len(compiled) == len(found) > 4
    assert compiled == sorted(found, key=lambda one: one.value_us)


def test_under_a_tight_limit_uniform_intervals_take_less_time() -> None:
    problem = tight_v()
    instance = safe_memory(problem, BUFFERINGS[0])
    builder = CompiledBuilder(instance, problem.objective)
    (uniform,) = builder.best_at_uniform_intervals(1)
    found = evaluate_order(problem, uniform.programs(instance), "uniform", uniform.value_us)
    assert found is not None
    others = builder.best(list(variants(instance)), 1)
    assert found.value_us < 0.7 * min((one.value_us for one in others), default=10**9)


def test_intervals_stop_once_the_last_micro_batch_begins_too_late() -> None:
    problem = tight_v()
    instance = safe_memory(problem, BUFFERINGS[0])
    plain, asked = list_scheduling.Builder(instance, problem.objective), list[int]()

    def build(rules: Sequence[PriorityRule], interval_us: int) -> ScoredOrders | None:
        asked.append(interval_us)
        return plain.build(rules, interval_us)

    best_us = min(one.value_us for one in at_uniform_intervals(instance, build, 1_000_000, never))
    last = problem.num_micro_batches - 1
    assert last * asked[-1] < best_us <= 1.07 * last * asked[-1]
    few = len(asked)
    asked.clear()
    at_uniform_intervals(instance, build, 4 * instance.num_ops, never)
    assert 0 < len(asked) < few / 4
    assert not at_uniform_intervals(instance, build, instance.num_ops - 1, never)
    assert not at_uniform_intervals(instance, build, 1_000_000, lambda: True)
    free = replace(problem, caps_bytes=None)
    assert not at_uniform_intervals(safe_memory(free, BUFFERINGS[0]), build, 1_000_000, never)


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
    costs = uniform_costs(
        4, forward_us=10, backward_input_us=10, backward_weight_us=10, saved_bytes=10
    )
    problem = Problem(costs, placement("bidirectional", 4), 16, (20,) * 4)
    builder = CompiledBuilder(safe_memory(problem, BUFFERINGS[0]), Objective.MAKESPAN)
    assert builder.best_at_uniform_intervals(1)[0].value_us == 510
