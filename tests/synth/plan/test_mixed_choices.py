"""The bound over mixtures of choices of recomputation: its linear program, and schedules found."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.partition_costs import partition_costs
from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.plan.recompute.choice import bound_us, quick_bound_us
from synth.plan.recompute.given_stages import solve_recomputing
from synth.plan.recompute.layer_choice import with_layers
from synth.plan.recompute.mixed_choices import (
    _rank_bound,
    apart,
    bounds_of_mixtures,
    least_span_us,
)
from synth.plan.recompute.stage_choices import instance_with, stage_choices
from synth.profile.layer_profile import LayerProfile
from synth.profiles import load
from synth.schedule.placements import placement
from synth.solver.infeasibility import needed_bytes
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from tests.synth.layered import block, invented, problem_of, random_layer

Points = Sequence[Sequence[tuple[int, int]]]


def test_half_of_the_micro_batches_recompute() -> None:
    """Memory alone takes 2000 / 10 = 200; half of the choice takes 50 · ½ more and frees 750."""
    assert least_span_us(100, 10, [[(0, 2000), (50, 500)]]) == 125
    assert least_span_us(100, 10, [[(0, 2000), (50, 1950)]]) == 195  # all of it
    assert least_span_us(100, 10, [[(0, 900), (50, 0)]]) == 100  # none
    assert least_span_us(100, 0, [[(0, 900)]]) == 100


def by_duality(work_us: int, headroom: int, points: Points) -> float:
    """The largest Lagrangian: both rows under weights, with the best choice of each stage alone.

    It is concave and piecewise linear in the weight of the work, so its maximum is where two
    choices of a stage are equally good, or at an end.
    """
    weights = {0.0, 1.0}
    for each in points:
        for (again, held), (other_again, other_held) in product(each, repeat=2):
            saved = (held - other_held) / headroom
            if saved + other_again - again:
                weights.add(saved / (saved + other_again - again))
    return max(
        weight * work_us
        + sum(
            min(weight * again + (1 - weight) * held / headroom for again, held in each)
            for each in points
        )
        for weight in weights
        if 0 <= weight <= 1
    )


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9))
def test_the_linear_program_has_the_value_of_its_dual(seed: int) -> None:
    draw = random.Random(seed)
    points = [
        [(draw.randint(0, 60), draw.randint(0, 3000)) for _ in range(draw.randint(1, 5))]
        for _ in range(draw.randint(1, 4))
    ]
    work_us, headroom = draw.randint(1, 200), draw.randint(1, 30)
    found_us = least_span_us(work_us, headroom, points)
    assert found_us - 1 < by_duality(work_us, headroom, points) + 1e-6 <= found_us + 2e-6


def bounds_of_one_choice(problem: Problem) -> Spans:
    """The bounds of a menu that has one choice for each stage, where they are much closer."""
    instance = relaxed_for_fusion(problem)
    return Spans.most(_rank_bound([instance], rank) for rank in range(problem.num_ranks))


@pytest.mark.parametrize("name", ["linear", "v", "looped:2", "bidirectional"])
@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_with_any_choice_is_below_the_bound(seed: int, name: str) -> None:
    """On four ranks that hold little more than one micro-batch, memory takes most of the time."""
    draw = random.Random(seed)
    where = placement(name, 4)
    make = draw.choice((block, random_layer))
    sizes = (2,) + (1,) * (where.num_stages - 1)
    profile = invented([make(draw) for _ in range(sum(sizes))])
    problem = problem_of(profile, sizes, 8, 10**9, name)
    for share in (0.0, 0.0, 0.3, 0.6):
        layers = [i for i in range(sum(sizes)) if draw.random() < share]
        stages = tuple(s for s in range(where.num_stages) if draw.random() < share)
        one = with_layers(problem, layers)
        cap = max(needed_bytes(one)) + draw.randint(0, 10)
        capped = replace(problem, caps_bytes=(cap,) * problem.num_ranks)
        on_layers = with_layers(capped, layers)
        found = solve_recomputing(on_layers, stages, SolveOptions(time_limit_s=0.2, workers=1))
        if found.timeline is None:
            continue
        bounds = [bounds_of_mixtures(capped)]
        if not stages:
            bounds.append(bounds_of_one_choice(on_layers))
        for bound in bounds:
            assert bound.makespan_us <= found.timeline.makespan_us
            assert bound.period_us <= found.timeline.period_us


@pytest.mark.parametrize("seed", [31, 47, 95, 164])
def test_the_choice_of_a_stage_leaves_what_its_neighbour_on_the_rank_holds(seed: int) -> None:
    """No mixture is above a choice for both stages, whichever of them keeps the value between.

    The second stage reads its input in B only if it recomputes its first layer.
    """
    draw = random.Random(seed)

    def layer(output: int, saved: int) -> LayerProfile:
        one = random_layer(draw)
        return one.replace(
            output_bytes=output,
            saved_bytes=draw.randint(10, saved),
            saved_w_bytes=0,
            rise_bytes=dict.fromkeys(one.rise_bytes, 0),
            inner_rise_bytes={},
            input_until=OpKind.F,
            output_until=OpKind.F,
        )

    layers = [layer(3, 10), layer(3, 80), layer(300, 80), layer(3, 80), layer(3, 80), layer(3, 10)]
    problem = problem_of(invented(layers), (1, 2, 2, 1), 8, 10**9, "v")
    problem = replace(problem, caps_bytes=(2 * max(needed_bytes(problem)) // 5,) * 2)
    choices = stage_choices(problem)
    least_us = min(
        max(_rank_bound([seen], rank).makespan_us for rank in range(2))
        for both in product(choices[1], choices[2])
        for seen in [
            instance_with(problem, {s: apart(problem, s, c) for s, c in enumerate(both, 1)})
        ]
    )
    assert bounds_of_mixtures(problem).makespan_us <= least_us


def test_where_ranks_hold_many_stages_the_bound_knows_the_memory_limit() -> None:
    """Four stages on each of eight ranks in 20 GB: without the limit the bound was 1.954 s."""
    profile, sizes, where = load("zb-6.2b-p8-m24"), (1,) * 32, placement("looped:4", 8)
    costs, caps = partition_costs(profile, sizes), (20 * 10**9,) * 8
    problem = Problem(costs, where, 24, caps, profile=profile, partition=sizes)
    assert quick_bound_us(problem, None) < 1.96e6
    assert 2.15e6 < bound_us(problem, None) < 2.642e6  # 2.642 s: a plan of another placement


def test_choices_are_merged_with_their_recomputation_apart() -> None:
    """A merged choice has no part of B's recomputation beside the bytes that R alone leaves.

    Fifteen choices of a stage of four layers become twelve: the last of them took no time at all.
    """
    profile, where = load("llama3-405b-h100-tp8"), placement("v", 16)
    costs, caps = partition_costs(profile, (4,) * 32), (76 * 10**9,) * 16
    problem = Problem(costs, where, 64, caps, profile=profile, partition=(4,) * 32)
    assert quick_bound_us(problem, None) < 18.6e6
    assert bounds_of_mixtures(problem).makespan_us > 20e6
