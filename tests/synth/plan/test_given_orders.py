"""Schedules of given orders: partition and rule against all partitions and all rules."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import generate
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.choose.race import solve_best_of
from synth.plan.recompute.menu_search import problems_on_menu
from synth.plan.runtimes import Allowed, Runtime
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.placements import placement
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.infeasibility import needed_bytes
from synth.solver.problem import Problem
from tests.synth.effort import counted
from tests.synth.layered import block, invented

ALLOWED = Allowed(Runtime.MEGATRON)
NUM_LAYERS, NUM_MICRO_BATCHES = 6, 4


def candidate(seed: int, name: str, above_least: int) -> Candidate:
    draw = random.Random(seed)
    profile = invented([block(draw) for _ in range(NUM_LAYERS)])
    where = placement(name, 2)
    sizes = {"linear": (3, 3), "looped:2": (2, 2, 1, 1)}[name]
    free = Problem(
        partition_costs(profile, sizes),
        where,
        NUM_MICRO_BATCHES,
        partition=sizes,
        profile=profile,
        layer_menu=ALLOWED.layer_menu,
        further_ops=ALLOWED.further_ops,
    )
    caps = (max(needed_bytes(free)) + above_least,) * 2
    order = ALLOWED.order_on(where, NUM_MICRO_BATCHES)
    return Candidate(name, replace(free, caps_bytes=caps), None, order)


def partitions(num_stages: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, NUM_LAYERS), num_stages - 1):
        yield tuple(end - first for first, end in pairwise((0, *inner, NUM_LAYERS)))


def all_values(of: Candidate) -> list[int]:
    """The values of the candidate's order in every partition with every rule, if it fits."""
    found = []
    assert of.problem.profile is not None and of.order is not None
    for sizes in partitions(of.problem.costs.num_stages):
        costs = partition_costs(of.problem.profile, sizes)
        for one in problems_on_menu(replace(of.problem, costs=costs, partition=sizes)):
            schedule = generate(of.order, 2, NUM_MICRO_BATCHES, costs=one.costs)
            lowered, line = verify(schedule, one.costs)
            if not exceeds_caps(peak_bytes(lowered), one.caps_bytes):
                found.append(one.objective.value_us(line))
    return found


@pytest.mark.parametrize("name", ["linear", "looped:2"])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_partition_and_rule_are_found_and_the_bound_is_below_all(
    seed: int, name: str
) -> None:
    one = candidate(seed, name, above_least=60)
    assert one.problem.profile is not None
    chosen = solve_best_of([one], one.problem.profile, Partitioning.SEARCHED, counted())
    assert chosen.result.value_us == min(all_values(one))
    own = replace(chosen.result.problem, caps_bytes=None)
    assert chosen.result.schedule is not None and chosen.result.timeline is not None
    assert chosen.result.schedule.programs == generate(one.order or "", 2, 4).programs
    assert verify(chosen.result.schedule, own.costs)[1].makespan_us == chosen.result.value_us
    assert chosen.result.lower_bound_us <= chosen.result.value_us


# The best values of all partitions and rules.
@pytest.mark.parametrize(("limit_mb", "best_us"), [(13_000, 1_454_997), (10_500, 1_558_589)])
def test_partitions_are_searched_from_rules_that_exceed_the_limit(
    limit_mb: int, best_us: int
) -> None:
    profile, where, sizes = Profile.load(find("zb-1.5b-p8-m24")), placement("linear", 4), (6,) * 4
    problem = Problem(
        partition_costs(profile, sizes),
        where,
        8,
        (limit_mb * 10**6,) * 4,
        partition=sizes,
        profile=profile,
        layer_menu=ALLOWED.layer_menu,
        further_ops=ALLOWED.further_ops,
    )
    one = Candidate("linear", problem, None, ALLOWED.order_on(where, 8))
    found = solve_best_of([one], profile, Partitioning.SEARCHED, counted()).result
    assert found.value_us == best_us


def test_where_nothing_fits_the_reason_is_told_without_a_claim_that_nothing_can() -> None:
    one = candidate(0, "looped:2", above_least=0)
    only = one._replace(choice=())
    assert one.problem.profile is not None
    found = solve_best_of([only], one.problem.profile, Partitioning.GIVEN, counted()).result
    assert found.schedule is None and found.stopped_by != StoppedBy.INFEASIBLE
    assert found.message is not None and "on which interleaved:2 fits; give §" in found.message


@pytest.mark.parametrize(
    ("name", "micro_batches", "order"),
    [
        ("linear", 3, "1f1b"),
        ("looped:2", 16, "interleaved:2"),
        # The rest in the last group is none, or as large as the number of ranks.
        ("looped:2", 21, "interleaved:2,group=11"),
        ("looped:3", 12, "interleaved:3,group=12"),
    ],
)
def test_megatron_interleaves_with_the_smallest_groups_it_admits(
    name: str, micro_batches: int, order: str
) -> None:
    assert ALLOWED.order_on(placement(name, 8), micro_batches) == order


def test_megatron_does_not_interleave_fewer_micro_batches_than_ranks() -> None:
    with pytest.raises(SynthError, match="at least as many micro-batches as there are ranks, 8"):
        ALLOWED.order_on(placement("looped:2", 8), 7)
