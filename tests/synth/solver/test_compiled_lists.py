"""Compiled list scheduling makes the orders of `list_scheduling.Builder`."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import pytest

from benchmarks.realistic_profiles import case_of_several_stages, realistic_case
from benchmarks.realistic_suite import candidate_of
from synth.costs.costs import uniform_costs
from synth.objective import Objective
from synth.schedule.model import SMALLEST_BUFFERING, Buffering
from synth.schedule.placements import placement
from synth.solver.evaluate.evaluate import BUFFERINGS, evaluate_order
from synth.solver.improve import list_scheduling
from synth.solver.improve.compiled_lists import CompiledBuilder
from synth.solver.improve.list_scheduling import Built
from synth.solver.improve.priority_rules import PriorityRule, change, variants
from synth.solver.improve.release_dates import at_release_dates
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


def best_of(found: Sequence[Built]) -> Built:
    """The orders of the least value."""
    return min(found, key=lambda one: one.value_us)


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
                built = compiled.build(given)
                assert expected == (None if built is None else compiled.scored(built))
                whole, tried = whole + (expected is not None), tried + 1
    assert tried / 4 < whole < tried


def tight_v() -> Problem:
    """A V of 16 unequal stages with slow links, under a limit that few micro-batches keep."""
    case = realistic_case(9, "v")
    tight = case._replace(limit_bytes=3 * case.limit_bytes // 4)
    return candidate_of(tight, (2,) * 14 + (3, 3)).problem


@pytest.mark.parametrize("buffering", [BUFFERINGS[0], SMALLEST_BUFFERING])
def test_from_release_dates_compiled_orders_are_those_of_the_plain_builder(
    buffering: Buffering,
) -> None:
    problem = tight_v()
    instance = safe_memory(problem, buffering)
    plain = list_scheduling.Builder(instance, problem.objective)
    compiled = CompiledBuilder(instance, problem.objective)
    plain.most_dated_ops = compiled.most_dated_ops = 80 * instance.num_ops
    found = at_release_dates(plain)
    assert [compiled.scored(one) for one in at_release_dates(compiled)] == found
    assert len(found) > 4


def test_a_search_over_rules_finds_the_same_with_compiled_code() -> None:
    problem = candidate_of(realistic_case(12, "v")).problem
    instance = safe_memory(problem, BUFFERINGS[0])
    compiled = CompiledBuilder(instance, problem.objective)
    plain = list_scheduling.Builder(instance, problem.objective)
    plain.relative_speed = compiled.relative_speed
    found = list_scheduling.search(plain, 4_000, seed=3)
    same = list_scheduling.search(compiled, 4_000, seed=3)
    assert found == [compiled.scored(one) for one in same]
    assert len(found) > 10


def test_under_a_tight_limit_release_dates_take_less_time() -> None:
    problem = tight_v()
    instance = safe_memory(problem, BUFFERINGS[0])
    builder = CompiledBuilder(instance, problem.objective)
    uniform = builder.scored(best_of(at_release_dates(builder)))
    found = evaluate_order(problem, uniform.programs(instance), "uniform", uniform.value_us)
    assert found is not None
    others = (builder.build(rules) for rules in variants(instance))
    assert found.value_us < 0.7 * min(
        (one.value_us for one in others if one is not None), default=10**9
    )


class Asked(list_scheduling.Builder):
    """A builder that notes the release dates that it is asked for."""

    def __init__(self, problem: Problem, most_dated_ops: int) -> None:
        super().__init__(safe_memory(problem, BUFFERINGS[0]), problem.objective)
        self.most_dated_ops, self.asked = most_dated_ops, list[tuple[int, ...]]()
        self.intervals_us, self.uniform_us = list[int](), list[int]()

    def build(
        self, rules: Sequence[PriorityRule], releases_us: Sequence[int] = ()
    ) -> ScoredOrders | None:
        self.asked.append(tuple(releases_us))
        built = super().build(rules, releases_us)
        apart = {later - earlier for earlier, later in pairwise(releases_us)}
        if len(apart) == 1:
            self.intervals_us.append(apart.pop())
            self.uniform_us += [] if built is None else [built.value_us]
        return built


def test_intervals_stop_once_the_last_micro_batch_begins_too_late() -> None:
    problem = tight_v()
    many = Asked(problem, 100_000)
    at_release_dates(many)
    last, longest_us = problem.num_micro_batches - 1, max(many.intervals_us)
    best_us = min(many.uniform_us)
    assert last * longest_us < best_us <= 1.6 * last * longest_us
    few = Asked(problem, 4 * many.instance.num_ops)
    at_release_dates(few)
    assert 0 < len(few.asked) < len(many.asked) / 4
    counted = Asked(problem, 100_000)
    assert 0 < len(at_release_dates(counted, most_orders=20)) <= 20
    assert len(counted.asked) < len(many.asked)
    assert not at_release_dates(Asked(problem, many.instance.num_ops - 1))
    assert not at_release_dates(many, should_stop=lambda: True)
    assert not at_release_dates(Asked(replace(problem, caps_bytes=None), 1_000_000))


def test_micro_batches_wait_for_their_release_dates() -> None:
    """A micro-batch alone takes 4 · 10 µs forwards, 4 · 12 backwards, and 8 for its last W."""
    costs = uniform_costs(4, forward_us=10, backward_input_us=12, backward_weight_us=8)
    instance = relaxed_memory(Problem.linear(costs, 3))
    builder = list_scheduling.Builder(instance, Objective.MAKESPAN)
    for rules in variants(instance):
        built = builder.build(rules, (0, 500, 1_000))
        assert built is not None
        fused_us = 8 * any(rule.fused for rule in rules)
        assert built.value_us in (1_000 + 96, 1_000 + 96 + 3 * fused_us)


def test_a_burst_and_moved_dates_take_less_time_than_uniform_intervals() -> None:
    """Memory stands empty while a pipeline fills at a uniform interval."""
    problem = candidate_of(case_of_several_stages(2)).problem
    builder = Asked(problem, 100 * 1_152)
    plain_us = best_of(at_release_dates(builder)).value_us
    assert builder.instance.num_ops == 1_152
    assert plain_us < 0.96 * min(builder.uniform_us)


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
def test_without_limits_values_are_those_of_the_plain_builder(objective: Objective) -> None:
    costs = uniform_costs(4, forward_us=10, backward_input_us=12, backward_weight_us=8)
    instance = relaxed_memory(Problem.linear(costs, 8))
    plain = list_scheduling.Builder(instance, objective)
    compiled = CompiledBuilder(instance, objective)
    for rules in variants(instance):
        expected, found = plain.build(rules), compiled.build(rules)
        assert (expected and expected.value_us) == (found and found.value_us)


def test_two_replicas_begin_a_micro_batch_each_in_the_time_of_both() -> None:
    """Each of 4 ranks works 2 · 30 µs for a micro-batch of each replica; both have 8.

    So an interval of 60 µs keeps all ranks busy; from 84 µs on the best order takes 678 µs.
    """
    costs = uniform_costs(
        4, forward_us=10, backward_input_us=10, backward_weight_us=10, saved_bytes=10
    )
    problem = Problem(costs, placement("bidirectional", 4), 16, (20,) * 4)
    builder = CompiledBuilder(safe_memory(problem, BUFFERINGS[0]), Objective.MAKESPAN)
    assert best_of(at_release_dates(builder)).value_us == 510
