"""Choosing layers to recompute: menus, choices and bounds against all subsets of layers."""

import gc
import random
import threading
import tracemalloc
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations
from operator import le

import pytest

from synth import solve as solve_plan
from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputing
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.options.profiles import load_profile
from synth.plan.choose.candidates import Candidate, Partitioning, SearchWatch
from synth.plan.choose.race import solve_best_of
from synth.plan.recompute.choice import limits_bytes, needs_bytes, solve_with
from synth.plan.recompute.choice_search import solve_choosing
from synth.plan.recompute.given_stages import solve_recomputing
from synth.plan.recompute.layer_bounds import bounds_of_every_choice, needed_whatever_is_recomputed
from synth.plan.recompute.layer_choice import LayerSearch, with_layers, without_layers
from synth.plan.recompute.layer_menu import _menu, figures, menu, menus
from synth.plan.recompute.repartition import solve_repartitioning
from synth.profile import Profile
from synth.profile.layer_profile import LayerProfile, Timing
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.recomputed_stages import recomputed
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.infeasibility import find_shortage, needed_bytes
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent
from synth.solver.solver import solve
from synth.solver.watch import SolveWatch
from tests.sweep import sweep
from tests.synth.effort import HOURS_S, counted
from tests.synth.layered import block, invented, problem_of, random_layer


def test_menus_of_a_profile_that_is_read_again_are_known() -> None:
    """Caches by the identity of profiles would grow with every call of a long-lived program."""
    menus(load_profile("zb-1.5b-p8-m24"), [6] * 4)
    known = _menu.cache_info().currsize
    for _ in range(5):
        menus(load_profile("zb-1.5b-p8-m24"), [6] * 4)
    assert _menu.cache_info().currsize == known


def test_solves_in_one_process_do_not_keep_their_problems() -> None:
    def solve_once() -> None:
        solve_plan(
            "zb-1.5b-p8-m24",
            ranks=2,
            micro_batches=2,
            mem_limit="60GB",
            placement="linear",
            partition="even",
            time_limit=0.05,
            deterministic=True,
            workers=1,
        )
        gc.collect()

    solve_once()
    tracemalloc.start()
    try:
        for _ in range(8):
            solve_once()
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # About 40 kB each until small caches are full; menus alone took 250 kB each.
    assert kept_bytes < 8 * 100_000


def every_choice(layers: range) -> Iterator[tuple[int, ...]]:
    for count in range(len(layers) + 1):
        yield from combinations(layers, count)


def stage_with(
    profile: Profile, sizes: list[int], stage: int, layers: Collection[int]
) -> StageCosts:
    return partition_costs(recomputing(profile, layers), sizes).stages[stage]


def is_nowhere_above(one: StageCosts, other: StageCosts) -> bool:
    return all(map(le, figures(one), figures(other)))


@pytest.mark.parametrize("seed", sweep([0, 1, 3, 4, 5, 2, *range(6, 12)], daily=5))
def test_no_choice_of_layers_is_better_than_all_on_the_menu(seed: int) -> None:
    draw = random.Random(seed)
    profile = invented([random_layer(draw) for _ in range(5)])
    stage, sizes = draw.choice([(0, [4, 1]), (1, [1, 4]), (1, [1, 3, 1]), (0, [5])])
    first = sum(sizes[:stage])
    found = menu(profile, first, sizes[stage])
    for option in found.options:
        assert option.costs == stage_with(profile, sizes, stage, option.layers)
    for layers in every_choice(range(first, first + sizes[stage])):
        true = stage_with(profile, sizes, stage, layers)
        assert any(is_nowhere_above(option.costs, true) for option in found.options)
        assert any(is_nowhere_above(floor, true) for floor in found.floors)


def test_of_equal_layers_only_the_number_is_chosen_and_the_first_ones_are_recomputed() -> None:
    profile = invented([block(random.Random(1))] * 30)
    found = menu(profile, 5, 20)
    assert [tuple(option.layers) for option in found.options] == [
        tuple(range(5, 5 + count)) for count in range(21)
    ]


def test_where_choices_are_too_many_no_choice_is_below_all_floors() -> None:
    draw = random.Random(5)
    profile = invented([random_layer(draw) for _ in range(16)])
    found = menu(profile, 1, 15)
    for _ in range(300):
        layers = tuple(i for i in range(1, 16) if draw.random() < 0.5)
        true = stage_with(profile, [1, 15], 1, layers)
        assert any(is_nowhere_above(floor, true) for floor in found.floors)


def small(seed: int) -> Problem:
    """A stage of two layers and one of one, and a cap that not every choice keeps."""
    draw = random.Random(seed)
    profile = invented([block(draw) for _ in range(3)])
    problem = problem_of(profile, (2, 1), 3, 1)
    needs = [max(needed_bytes(with_layers(problem, layers))) for layers in every_choice(range(3))]
    cap = draw.randint(min(needs) + 2, max(needs) + 10)
    return replace(problem, caps_bytes=(cap, cap))


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_found_is_the_best_of_all_and_the_bound_is_below_every_one(seed: int) -> None:
    problem = small(seed)
    best: dict[tuple[int, ...], int] = {}
    for layers in every_choice(range(3)):
        found = solve(with_layers(problem, layers), counted(1))
        if found.value_us is not None:
            assert found.stopped_by in (StoppedBy.OPTIMAL, StoppedBy.NOTHING_BETTER)
            best[layers] = found.value_us
    rebuilt = (solve_recomputing(problem, stages, counted(1)) for stages in ((0,), (1,), (0, 1)))
    values = [*best.values(), *(one.value_us for one in rebuilt if one.value_us is not None)]
    chosen = solve_choosing(problem, counted(4))
    assert chosen.schedule is not None and chosen.value_us == min(values)
    assert chosen.lower_bound_us <= min(values)
    lowered, timeline = verify(chosen.schedule, chosen.problem.costs, problem.caps_bytes)
    assert timeline.makespan_us == chosen.value_us and chosen.peak_bytes == peak_bytes(lowered)
    recomputation = chosen.problem.recomputed_layers
    assert chosen.problem.costs == with_layers(problem, recomputation).costs


@pytest.mark.parametrize("name", ["linear", "v"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_fits_is_called_impossible_and_nothing_beats_the_bounds(
    seed: int, name: str
) -> None:
    draw = random.Random(seed)
    profile = invented([random_layer(draw) for _ in range(5)])
    sizes = (2, 3) if name == "linear" else (1, 1, 2, 1)
    problem = problem_of(profile, sizes, 3, 10**9, name)
    least = needed_whatever_is_recomputed(problem)
    for layers in draw.sample(list(every_choice(range(5))), 6):
        one = with_layers(problem, layers)
        for rank, need in enumerate(needed_bytes(one)):
            assert least[rank] <= need
        cap = max(needed_bytes(one)) + draw.randint(0, 30)
        capped = replace(problem, caps_bytes=(cap,) * problem.num_ranks)
        any_bound = bounds_of_every_choice(capped)
        found = solve(with_layers(capped, layers), SolveOptions(time_limit_s=0.1, workers=1))
        if found.timeline is not None:
            assert any_bound.makespan_us <= found.timeline.makespan_us
            assert any_bound.period_us <= found.timeline.period_us


def test_limits_enclose_what_is_found_at_them() -> None:
    problem = small(0)
    never, least = limits_bytes(problem, None)
    assert never <= least and never == max(needs_bytes(problem, None))
    for cap, fits in ((least, True), (never - 1, False)):
        found = solve_with(replace(problem, caps_bytes=(cap, cap)), None, counted(0.1))
        assert (found.schedule is not None) == fits
    assert found.stopped_by == StoppedBy.INFEASIBLE
    assert found.message is not None and "whatever is recomputed" in found.message
    assert found.message.endswith("more memory, more ranks, or a smaller micro-batch")
    static = max(map(problem.static_bytes, range(2)))
    full = solve_with(replace(problem, caps_bytes=(static - 1,) * 2), None, counted(0.1))
    assert full.message is not None and full.message.endswith("give more memory or more ranks")


@pytest.mark.parametrize("partitioning", [Partitioning.GIVEN, Partitioning.SEARCHED])
def test_what_is_announced_fits_on_the_problem_with_which_it_is_announced(
    partitioning: Partitioning,
) -> None:
    problem = small(1)
    told: list[Incumbent] = []
    candidate = Candidate("linear", problem, None)
    assert problem.profile is not None
    solve_best_of(
        [candidate], problem.profile, partitioning, counted(0.5), SearchWatch(told.append)
    )
    solve_choosing(problem, counted(0.5), SolveWatch(told.append))
    assert any(incumbent.problem.recomputed_layers for incumbent in told)
    for incumbent in told:
        on = incumbent.problem
        _, timeline = verify(incumbent.schedule, on.costs, on.caps_bytes)
        assert on.objective.value_us(timeline) == incumbent.value_us


def test_choosing_layers_repeats_itself_where_it_is_told_to() -> None:
    first, second = (solve_choosing(small(1), counted(0.002)) for _ in range(2))
    assert first.schedule is not None and first.schedule == second.schedule
    assert first.problem.recomputed_layers == second.problem.recomputed_layers


def test_where_memory_suffices_no_layer_is_recomputed() -> None:
    problem = replace(small(3), caps_bytes=(1000, 1000))
    found = solve_choosing(problem, counted())
    assert not found.problem.recomputed_layers and found.value_us == found.lower_bound_us
    search = LayerSearch(problem, 1)
    search.run()
    assert without_layers(with_layers(problem, (1, 2))).costs == problem.costs


GB = 10**9


def large_model() -> Profile:
    """70 billion parameters over 4 ranks of several devices each: 80 equal blocks between ends."""

    def layer(forward_us: int, saved: int, output: int, parameters: int) -> LayerProfile:
        times = {
            OpKind.F: forward_us,
            OpKind.B: forward_us,
            OpKind.W: forward_us,
            OpKind.BW: 2 * forward_us,
            OpKind.STEP: 100,
        }
        rises = {
            OpKind.F: saved + output,
            OpKind.B: GB // 4,
            OpKind.W: 0,
            OpKind.BW: GB // 4,
            OpKind.STEP: 0,
        }
        return LayerProfile(
            time_us={kind: Timing.exactly(us) for kind, us in times.items()},
            parameter_bytes=parameters,
            gradient_bytes=parameters,
            optimizer_bytes=4 * parameters,
            output_bytes=output,
            saved_bytes=saved,
            saved_w_bytes=saved * 9 // 10,
            rise_bytes=rises,
        )

    block = layer(12_000, 2_400_000_000, 67_108_864, 55_000_000)
    embedding = layer(200, 1_000, 67_108_864, 30_000_000)
    head = layer(4_000, 1_050_000_000, 0, 30_000_000)
    return invented([embedding, *[block] * 80, head])


def test_a_model_of_which_no_stage_fits_is_solved_with_its_blocks_recomputed() -> None:
    profile, sizes = large_model(), (21, 20, 20, 21)
    problem = problem_of(profile, sizes, 8, 41 * GB)
    plain = replace(problem, profile=None)
    # One micro-batch alone keeps 48 GB in a stage, with R as without.
    assert find_shortage(problem) is not None
    assert solve_with(plain, None, counted(0.1)).stopped_by == StoppedBy.INFEASIBLE
    stop = threading.Event()

    def stop_when_fast(incumbent: Incumbent) -> None:
        # Everything recomputed, 1F1B takes 8 + 3 times four forwards of the largest stage.
        if incumbent.value_us < 11 * 4 * 244_000:
            stop.set()

    options = SolveOptions(time_limit_s=HOURS_S / 6, workers=1)
    found = solve_repartitioning(profile, problem, None, options, SolveWatch(stop_when_fast, stop))
    assert found.schedule is not None and not recomputed(found.schedule)
    assert len(found.problem.recomputed_layers) > 40
    verify(found.schedule, found.problem.costs, problem.caps_bytes)
    assert found.value_us is not None and found.lower_bound_us <= found.value_us
