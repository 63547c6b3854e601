"""The bound over mixtures of choices of recomputation: its linear program, and schedules found."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from ortools.linear_solver import pywraplp

from synth.costs.costs import Costs, uniform_costs
from synth.costs.partition_costs import partition_costs
from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.plan.recompute.choice import bound_us, quick_bound_us
from synth.plan.recompute.given_stages import solve_recomputing
from synth.plan.recompute.layer_choice import with_layers
from synth.plan.recompute.mixed_choices import (
    MixtureBounds,
    apart,
    bounds_of_mixtures,
)
from synth.plan.recompute.mixture_program import MixtureProgram
from synth.plan.recompute.rank_mixture import MixtureWay, rank_programs
from synth.plan.recompute.stage_choices import instance_with, stage_choices
from synth.profile.layer_profile import LayerProfile
from synth.profiles import load
from synth.schedule.placements import placement
from synth.solver.infeasibility import needed_bytes
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from tests.synth.layered import block, invented, problem_of, random_layer


def test_half_of_the_micro_batches_recompute() -> None:
    """Work 100 with 50 more for all of them; memory 200, or 50 with all: half of both is 125."""
    assert least_of([100, 0], [[(0, 200, 0), (50, 50, 0)]]) == pytest.approx(125)
    assert least_of([100, 0], [[(0, 200, 0), (50, 195, 0)]]) == pytest.approx(195)
    assert least_of([100, 0], [[(0, 90, 0), (50, 0, 0)]]) == pytest.approx(100)
    # No more than half of the columns' first kind is allowed.
    assert least_of([100, 0], [[(0, 90, 2), (50, 0, 0)]]) == pytest.approx(125)
    assert program([100, 0], [[(0, 90, 2), (50, 0, 3)]]).least() is None


Columns = Sequence[Sequence[tuple[float, float, float]]]


def program(constants: Sequence[float], columns: Columns) -> MixtureProgram:
    """A program of two rows and one need, whose groups have columns (load, load, need)."""
    table = np.array([one for group in columns for one in group], float).T
    first = np.cumsum([0, *map(len, columns[:-1])])
    return MixtureProgram(np.array(constants, float), table[:2], table[2:], first)


def least_of(constants: Sequence[float], columns: Columns) -> float:
    found = program(constants, columns).least()
    assert found is not None
    return found.value


def test_needs_that_just_keep_their_limit_are_allowed() -> None:
    """Six parts of 92 add up to the next number above 1."""
    needs = [bytes_ / 92 for bytes_ in (28, 28, 15, 3, 5, 13)]
    assert np.sum(needs) > 1
    assert least_of([0, 0], [[(1, 0, need)] for need in needs]) == pytest.approx(6)
    above = [[(1, 0, need * 1.001)] for need in needs]
    assert program([0, 0], above).least() is None


@pytest.mark.parametrize("seed", range(40))
def test_the_program_has_the_optimum_of_another_solver(seed: int) -> None:
    draw = random.Random(seed)
    columns = [
        [(0, 0, 0)]
        + [
            (draw.randint(-30, 60), draw.randint(-30, 60), draw.choice((0, 0.3, 1, 2)))
            for _ in range(draw.randint(0, 5))
        ]
        for _ in range(draw.randint(1, 4))
    ]
    constants = [draw.randint(0, 100), draw.randint(0, 100)]
    model = pywraplp.Solver.CreateSolver("GLOP")
    least = model.NumVar(0, model.infinity(), "T")
    flat = []
    for group in columns:
        shares = [model.NumVar(0, 1, "") for _ in group]
        model.Add(sum(shares) == 1)
        flat += list(zip(group, shares, strict=True))
    for row, constant in enumerate(constants):
        model.Add(least >= constant + sum(one[row] * share for one, share in flat))
    model.Add(sum(one[2] * share for one, share in flat) <= 1)
    model.Minimize(least)
    assert model.Solve() == pywraplp.Solver.OPTIMAL
    found = program(constants, columns).least()
    assert found is not None
    assert found.value == pytest.approx(least.solution_value(), abs=1e-6)


def bound_of(instance: Instance, rank: int) -> Spans:
    """The bound of one choice for each stage, where it is much closer."""
    again_us = {copy.stage: copy.again_us for copy in instance.copies}
    ways = [[MixtureWay(0, again_us[stage], 0, 0)] for stage in sorted(again_us)]
    return Spans(*(one.least_us(1) for one in rank_programs([instance], ways, rank)))


def bounds_of_one_choice(problem: Problem) -> Spans:
    instance = relaxed_for_fusion(problem)
    return Spans.most(bound_of(instance, rank) for rank in range(problem.num_ranks))


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
        max(bound_of(seen, rank).makespan_us for rank in range(2))
        for both in product(choices[1], choices[2])
        for seen in [
            instance_with(problem, {s: apart(problem, s, c) for s, c in enumerate(both, 1)})
        ]
    )
    assert bounds_of_mixtures(problem).makespan_us <= least_us


def one_micro_batch_of(each_us: int) -> Problem:
    """Six stages on each of two ranks, which may keep all 92 bytes; F, B and W are equally long."""
    each = uniform_costs(
        12,
        forward_us=each_us,
        backward_input_us=each_us,
        backward_weight_us=each_us,
    ).stages
    saved = (28, 28, 15, 3, 5, 13)
    stages = (one.replace(saved_bytes=saved[s // 2]) for s, one in enumerate(each))
    return Problem(Costs(stages=tuple(stages)), placement("looped:6", 2), 1, (92, 92))


def kept(problem: Problem) -> Spans:
    """The bound over all mixtures in which no stage recomputes."""
    mixtures = MixtureBounds(problem, stage_choices(problem))
    return mixtures.bounds_of(dict.fromkeys(range(12), (0,)))


def test_all_forwards_may_just_fill_the_memory_before_the_first_backward() -> None:
    """12 F's, 12 B's and a W after one another fit, as parts of the limit that add up to 1."""
    assert kept(one_micro_batch_of(1)).makespan_us <= 25


def test_a_rank_may_have_no_work_at_all() -> None:
    """Stages of less than half a microsecond take none."""
    assert kept(one_micro_batch_of(0)) == Spans(0, 0)


def test_the_program_of_a_rank_has_no_more_rows_behind_more_stages() -> None:
    """Of the rows of the stages above, only the one with the largest constant matters."""
    problem = one_micro_batch_of(1)
    twelve = replace(problem, placement=placement("linear", 12), caps_bytes=(92,) * 12)
    programs, _ = MixtureBounds(twelve, stage_choices(twelve))._programs
    assert [len(program._rows) for program in programs] == [4] + [6] * 11


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


@pytest.mark.parametrize("seed", range(6))
def test_branching_ends_at_the_least_choice_of_each_stage(seed: int) -> None:
    """No combination of choices is below the bound, and one of them attains it."""
    draw = random.Random(seed)
    make = block if seed % 2 else random_layer
    profile = invented([make(draw) for _ in range(6)])
    problem = problem_of(profile, (1, 2, 2, 1), 8, 10**9, "v")
    least, most = max(needed_bytes(with_layers(problem, range(6)))), max(needed_bytes(problem))
    problem = replace(problem, caps_bytes=(draw.randint(least, 2 * most),) * 2)
    choices = stage_choices(problem)
    mixtures = MixtureBounds(problem, choices)
    least_us = 0
    for stages in problem.placement.held:
        held = [stage for stage, _ in stages]
        values = (
            mixtures.bounds_of({s: (c,) for s, c in zip(held, one, strict=True)}, held[0])
            for one in product(*(range(len(choices[stage])) for stage in held))
        )
        least_us = max(least_us, min(spans.makespan_us for spans in values))
    assert mixtures.bounds_of({}).makespan_us <= least_us
    assert mixtures.bounds().makespan_us == pytest.approx(least_us, abs=1)
