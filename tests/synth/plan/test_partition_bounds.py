"""Bounds of all partitions: no partition's best schedule is below, and the least is reached."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import pytest

from benchmarks.solver.suites import partition
from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.objective import Objective
from synth.op_kinds import MEASURED, OpKind
from synth.plan.partition.bounds import PartitionBounds, applies
from synth.plan.partition.path_dp import NEVER, PartitionPaths, RankLayers, Sizes, runs_of
from synth.plan.partition.single_partitions import SinglePartitions
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile import Profile
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.links import Link, Links, NodeLink, PairLink
from synth.profiles import find
from synth.schedule.model import Buffering, Schedule
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import StoppedBy
from synth.solver.bounds.destructive import Decision
from synth.solver.bounds.rank_subsets import RankSubsets
from synth.solver.cpsat.run import run as run_model
from synth.solver.infeasibility import smallest_limit_bytes
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.instance.stage_copy import StageCopy
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from synth.solver.tuning import DESTRUCTIVE
from tests.sweep import sweep
from tests.synth.effort import counted, exact_alone
from tests.synth.odd_problems import RandomOrders
from tests.synth.plan.test_recompute import profile_that_saves_much

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP


def every_partition(num_layers: int, num_ranks: int) -> Iterator[Sizes]:
    for edges in combinations(range(1, num_layers), num_ranks - 1):
        yield tuple(b - a for a, b in pairwise((0, *edges, num_layers)))


@pytest.mark.parametrize("seed", sweep(range(40), daily=16))
def test_of_all_paths_the_least_is_found_with_some_left_out(seed: int) -> None:
    draw = random.Random(seed)
    num_ranks = draw.randint(1, 5)
    num_layers = num_ranks + draw.randint(0, 5)
    bounds_us: dict[RankLayers, int] = {}
    every = list(every_partition(num_layers, num_ranks))
    for run in (run for sizes in every for run in runs_of(sizes)):
        bounds_us.setdefault(run, draw.choice((draw.randint(1, 20), NEVER)))
    paths = PartitionPaths(num_ranks, num_layers, lambda run: 0)
    for run, bound_us in bounds_us.items():
        paths[run] = bound_us
    left_out = draw.sample(every, draw.randint(0, len(every)))
    of_all = {sizes: max(bounds_us[run] for run in runs_of(sizes)) for sizes in every}
    assert all(paths.bound_us(sizes) == bound_us for sizes, bound_us in of_all.items())
    allowed = [of_all[sizes] for sizes in every if sizes not in left_out]
    least = paths.least(left_out)
    assert least.bound_us == min(allowed, default=NEVER)
    if least.bound_us < NEVER:
        assert least.sizes is not None and least.sizes not in left_out
        assert of_all[least.sizes] == least.bound_us
    else:
        assert least.sizes is None


def test_of_equals_the_most_even_is_found() -> None:
    paths = PartitionPaths(4, 12, lambda run: 10 if run.rank == 0 else run.end - run.first)
    least = paths.least()
    assert least.bound_us == 10
    assert least.sizes is not None
    assert max(least.sizes[1:]) - min(least.sizes[1:]) <= 1
    # And again where that one, and what begins as it does, is left out.
    second = paths.least([least.sizes])
    assert second.sizes not in (None, least.sizes)
    assert second.sizes is not None and max(second.sizes[1:]) <= 4


def costs_copy(problem: Problem) -> StageCopy:
    """A stage copy to be replaced."""
    return relaxed_for_fusion(problem).copies[0]


def uneven(draw: random.Random, num_layers: int) -> Profile:
    """Layers of any times and bytes, BW cheaper than B and W or not, and slow links."""
    profiles = {f"l{i}": uneven_layer(draw) for i in range(num_layers)}
    between = NodeLink(ranks_per_node=2, latency_us=draw.randint(0, 9))
    default = Link(latency_us=draw.randint(0, 4), bandwidth_bytes_per_s=draw.choice((None, 1e6)))
    pair = PairLink(source=1, target=0, latency_us=draw.choice((0, 20, 80)))
    return profile_that_saves_much().replace(
        layer_profiles=profiles,
        layers=tuple(Layer(name=name, profile=name) for name in profiles),
        links=Links(default=default, nodes=(between,), pairs=(pair,)),
    )


def uneven_layer(draw: random.Random) -> LayerProfile:
    times = {kind: draw.uniform(0.2, 12) for kind in (F, B, W)}
    times[BW] = (times[B] + times[W]) * draw.choice((0.4, 0.8, 1, 1.1))
    times[STEP] = draw.choice((0, draw.uniform(0, 5)))
    saved = draw.randint(5, 40)
    return LayerProfile(
        time_us={kind: Timing.exactly(us) for kind, us in times.items()},
        parameter_bytes=draw.randint(0, 9),
        gradient_bytes=1,
        optimizer_bytes=0,
        output_bytes=draw.randint(0, 6),
        output_gradient_bytes=draw.choice((None, 0, draw.randint(0, 9))),
        saved_bytes=saved,
        saved_w_bytes=draw.randint(0, saved),
        rise_bytes=dict.fromkeys(MEASURED, draw.randint(0, 20)),
        input_until=draw.choice((F, B, W)),
        output_until=draw.choice((F, B)),
        gradient_until=draw.choice((B, W)),
    )


def drawn(seed: int) -> tuple[Profile, Problem]:
    """A model, and a problem on one of its partitions, under a cap that some can keep.

    With every third seed ranks differ in speed.
    """
    draw, speeds = random.Random(seed), random.Random(seed)
    num_ranks = draw.randint(2, 4)
    profile = uneven(draw, num_ranks + draw.randint(1, 3))
    if seed % 3 == 2:
        some = [0.37, 0.5, 0.8, 1.0, 1.3, 2.0]
        profile = profile.replace(rank_speeds=tuple(speeds.choices(some, k=num_ranks)))
    count = len(profile.layers)
    sizes = draw.choice(list(every_partition(count, num_ranks)))
    objective = draw.choice((Objective.MAKESPAN, Objective.PERIOD, Objective.parse("iterations:3")))
    where = placement("linear", num_ranks)
    free = Problem(
        partition_costs(profile, sizes, where.ranks),
        where,
        draw.randint(2, 5),
        None,
        objective,
        sizes,
    )
    least = smallest_limit_bytes(free)
    limited = tuple(round(least * draw.uniform(0.9, 1.8)) for _ in range(num_ranks))
    caps = draw.choice((None, limited))
    return profile, Problem(free.costs, where, free.num_micro_batches, caps, objective, sizes)


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
def test_where_bw_is_rounded_once_and_b_and_w_each_no_schedule_is_below(
    objective: Objective,
) -> None:
    times = {F: 10.0, B: 5.3, W: 5.3, BW: 10.6, STEP: 0.0}
    each = profile_that_saves_much().layer_profiles["l"]
    each = each.replace(time_us={kind: Timing.exactly(us) for kind, us in times.items()})
    profile = profile_that_saves_much().replace(layer_profiles={"l": each}, links=Links())
    for sizes in every_partition(4, 2):
        problem = Problem.linear(partition_costs(profile, sizes), 64, None, objective)
        bounds = PartitionBounds(StageCostTable(profile), problem)
        least = bounds.raise_least(10**6, (), counted(1), lambda: False).least
        _, timeline = verify(generate("1f1b", 2, 64), problem.costs)
        assert (bounds.bound_us(sizes) or 0) <= objective.value_us(timeline)
        assert least.bound_us <= objective.value_us(timeline)


@pytest.mark.parametrize("seed", sweep(range(300), daily=60))
def test_a_rank_s_least_work_is_no_more_than_that_of_its_stage(seed: int) -> None:
    profile, problem = drawn(seed)
    problem = replace(problem, caps_bytes=None)
    bounds = PartitionBounds(StageCostTable(profile), problem)
    for sizes in every_partition(len(profile.layers), problem.num_ranks):
        instance = relaxed_for_fusion(bounds.problem_on(sizes))
        for run, copy in zip(runs_of(sizes), instance.copies, strict=True):
            assert bounds.paths[run] <= problem.num_micro_batches * copy.work_us
            if run.rank == 0:
                continue
            before = bounds.layers.before(run, copy)
            above = instance.copies[: run.rank]
            assert before.duration_us[F] <= max(c.duration_us[F] for c in above)
            for kind in (B, W, STEP):
                assert before.duration_us[kind] <= min(c.duration_us[kind] for c in above)
            assert before.duration_us[F] + before.down_us <= instance.head_us[run.rank]
            way_us = instance.way_up_us(run.rank, 0) + above[0].duration_us[B]
            assert before.duration_us[B] + before.up_us <= way_us
        for run, trip_us in zip(runs_of(sizes), instance.round_trip_us, strict=True):
            if run.end < len(profile.layers):
                way = bounds.layers.way_behind_us(run)
                assert way.down_us + way.up_us <= trip_us


@pytest.mark.parametrize("seed", sweep(range(2, 900, 3), daily=60))
def test_within_a_value_least_times_hold_for_partitions_whose_ranks_work_less(seed: int) -> None:
    """Seeds of ranks that differ in speed."""
    profile, problem = drawn(seed)
    bounds = PartitionBounds(StageCostTable(profile), replace(problem, caps_bytes=None))
    every = [*every_partition(len(profile.layers), problem.num_ranks)]
    instances = {sizes: relaxed_for_fusion(bounds.problem_on(sizes)) for sizes in every}
    works = {sizes: max(c.work_us for c in one.copies) for sizes, one in instances.items()}
    within_us = sorted(works.values())[len(works) // 2] + 1
    free = {run: bounds.layers.way_behind_us(run) for run in [*runs_of(every[0])][:-1]}
    bounds.layers.keep_within(within_us)
    for run, way in free.items():
        if bounds.layers.is_possible(run):
            assert bounds.layers.way_behind_us(run) >= way
    for sizes in every:
        if works[sizes] >= within_us:
            continue
        instance = instances[sizes]
        for run, copy in zip(runs_of(sizes), instance.copies, strict=True):
            assert bounds.layers.is_possible(run)
            if run.end < len(profile.layers):
                way = bounds.layers.way_behind_us(run)
                assert way.down_us + way.up_us <= instance.round_trip_us[run.rank]
            if run.rank:
                before = bounds.layers.before(run, copy)
                above = instance.copies[: run.rank]
                assert before.duration_us[F] <= max(c.duration_us[F] for c in above)
                assert before.duration_us[F] + before.down_us <= instance.head_us[run.rank]
                way_us = instance.way_up_us(run.rank, 0) + above[0].duration_us[B]
                assert before.duration_us[B] + before.up_us <= way_us


def test_within_a_value_a_fast_rank_does_not_hold_all_layers() -> None:
    """Eight layers on ranks of speed 1, 1/2 and 1/2: F and B of the last two take twice as long.

    Rank 1 holds one layer. Without a value rank 2 holds one, too, and the way behind is 2 F; if no
    rank works as long as five layers at speed 1, rank 0 holds four at most, and rank 2 three.
    """
    times = {F: 10.0, B: 10.0, W: 10.0, BW: 20.0, STEP: 0.0}
    each = profile_that_saves_much().layer_profiles["l"]
    each = each.replace(time_us={kind: Timing.exactly(us) for kind, us in times.items()})
    layers = tuple(Layer(name=f"l{i}", profile="l") for i in range(8))
    profile = profile_that_saves_much().replace(
        layer_profiles={"l": each}, layers=layers, links=Links(), rank_speeds=(1, 0.5, 0.5)
    )
    where = placement("linear", 3)
    costs = partition_costs(profile, (6, 1, 1), where.ranks)
    problem = Problem(costs, where, 4, None, partition=(6, 1, 1))
    layers_elsewhere = PartitionBounds(StageCostTable(profile), problem).layers
    last = RankLayers(2, 7, 8)
    forward_us = [layers_elsewhere.before(last, costs_copy(problem)).down_us]
    layers_elsewhere.keep_within(150)
    assert not layers_elsewhere.is_possible(RankLayers(1, 5, 6))
    assert layers_elsewhere.is_possible(RankLayers(1, 4, 6))
    before = layers_elsewhere.before(RankLayers(2, 6, 8), costs_copy(problem))
    assert before.duration_us[F] + before.down_us == 4 * 10 + 2 * 20
    assert forward_us[0] < before.down_us + before.duration_us[F]


@pytest.mark.parametrize("seed", sweep(range(2, 90, 3), daily=9))
def test_bounds_within_a_value_are_above_no_schedule(seed: int) -> None:
    """Of ranks that differ in speed: each value of a partition is once the best one known."""
    profile, problem = drawn(seed)
    table = StageCostTable(profile)
    free = PartitionBounds(table, problem)
    every = [*every_partition(table.num_layers, problem.num_ranks)]
    solved = {sizes: solve(free.problem_on(sizes), exact_alone(2)).value_us for sizes in every}
    values = {sizes: value_us for sizes, value_us in solved.items() if value_us is not None}
    for best_us in sorted({*values.values()})[:4]:
        bounds = PartitionBounds(table, problem)
        bounds.raise_least(best_us, (), counted(20), lambda: False)
        for sizes, value_us in values.items():
            others = [other for other in every if other != sizes]
            bounds.raise_least(best_us, others, counted(1), lambda: False)
            assert (bounds.bound_us(sizes) or 0) <= value_us


@pytest.mark.parametrize("seed", sweep(range(1, 60, 3), daily=6))
def test_bounds_by_several_ranks_are_above_no_schedule(seed: int) -> None:
    """Asked for values up to one that only some partitions attain."""
    profile, problem = drawn(seed)
    bounds = PartitionBounds(StageCostTable(profile), problem)
    every = [*every_partition(bounds.num_layers, problem.num_ranks)]
    solved = {sizes: solve(bounds.problem_on(sizes), exact_alone(2)).value_us for sizes in every}
    values = {sizes: value_us for sizes, value_us in solved.items() if value_us is not None}
    most_us = max(values.values(), default=0)
    single = SinglePartitions(bounds)
    for sizes, value_us in values.items():
        single.raise_one(sizes, most_us, counted(20), 2.0, lambda: False)
        proven = single.proven.get(sizes)
        assert proven is None or proven.bound_us <= value_us


@pytest.mark.parametrize("seed", sweep(range(30), daily=9))
def test_no_partition_has_a_schedule_below_its_bound_nor_below_that_of_all(seed: int) -> None:
    profile, problem = drawn(seed)
    table = StageCostTable(profile)
    bounds = PartitionBounds(table, problem)
    values: dict[Sizes, int] = {}
    closed: dict[Sizes, int | None] = {}
    for sizes in every_partition(table.num_layers, problem.num_ranks):
        closed[sizes] = bounds.bound_us(sizes)
        found = solve(bounds.problem_on(sizes), exact_alone(2))
        if closed[sizes] is None:
            assert found.stopped_by == StoppedBy.INFEASIBLE
        if found.value_us is not None:
            values[sizes] = found.value_us
    best_us, done = max(values.values(), default=10**6), list[Sizes]()
    while True:
        # Of ever fewer partitions, so that all of them are looked at.
        least = bounds.raise_least(best_us, done, counted(20), lambda: False).least
        assert least.bound_us <= min((v for s, v in values.items() if s not in done), default=NEVER)
        if least.sizes is None or len(done) == 6:
            break
        done.append(least.sizes)
    for sizes, value_us in values.items():
        assert (closed[sizes] or 0) <= (bounds.bound_us(sizes) or 0) <= value_us


@pytest.mark.parametrize("seed", sweep(range(600), daily=60))
def test_no_random_schedule_is_below_the_closed_forms_of_its_partition(seed: int) -> None:
    """The limits are what the schedule needs."""
    profile, problem = drawn(seed)
    draw = random.Random(seed)
    free = replace(problem, caps_bytes=None, num_micro_batches=draw.randint(2, 9))
    programs = RandomOrders(draw, free).programs()
    schedule = Schedule(free.placement, free.num_micro_batches, programs, "random", Buffering(9, 9))
    try:
        lowered, timeline = verify(schedule, free.costs)
    except ScheduleError:  # buffers too small for this order
        return
    bounds = PartitionBounds(StageCostTable(profile), replace(free, caps_bytes=peak_bytes(lowered)))
    assert free.partition is not None
    assert (bounds.bound_us(free.partition) or 0) <= free.objective.value_us(timeline)


@pytest.mark.parametrize("objective", ["makespan", "period", "iterations:3"])
def test_the_way_through_other_ranks_is_no_load_of_one_link(objective: str) -> None:
    much = profile_that_saves_much()
    profile = much.replace(layers=tuple(Layer(name=f"l{i}", profile="l") for i in range(16)))
    sizes = (2,) * 8
    problem = Problem(
        partition_costs(profile, sizes),
        placement("linear", 8),
        16,
        None,
        Objective.parse(objective),
        sizes,
    )
    found = solve(problem, counted(1))
    bounds = PartitionBounds(StageCostTable(profile), problem)
    assert found.value_us is not None
    assert (
        bounds.raise_least(found.value_us + 10**5, (), counted(10), lambda: False).least.bound_us
        <= found.value_us
    )


def test_of_a_real_model_they_prove_that_no_other_partition_is_better() -> None:
    # Three fifths of what 1F1B holds on the even partition, which takes 3.724 s, proven optimal.
    problem = partition.problem("linear", 4, 0.6)
    assert problem.partition == (6, 6, 6, 6)
    bounds = PartitionBounds(StageCostTable(Profile.load(find(partition.PROFILE))), problem)
    best = solve(bounds.problem_on((5, 6, 6, 7)), counted(5))
    assert best.value_us is not None
    assert best.value_us < 3_100_000
    found = bounds.raise_least(best.value_us, (), counted(10), lambda: False).least
    assert found.bound_us > 0.95 * best.value_us
    assert found.sizes == (5, 6, 6, 7)
    solved = ((5, 6, 6, 7), (5, 5, 6, 8), (5, 6, 5, 8))
    others = bounds.raise_least(best.value_us, solved, counted(10), lambda: False).least
    assert others.bound_us >= best.value_us


def test_more_time_never_lowers_a_bound_and_a_stop_ends_it_at_once() -> None:
    profile, problem = drawn(3)
    bounds = PartitionBounds(StageCostTable(profile), problem)
    found = [
        bounds.raise_least(10**6, (), counted(seconds), lambda: False).least.bound_us
        for seconds in (0, 0.01, 1, 1)
    ]
    assert found == sorted(found)
    assert found[-1] > found[0]
    stopped = PartitionBounds(StageCostTable(profile), problem)
    stopped.raise_least(10**6, (), SolveOptions(60), lambda: True)
    assert stopped.run_bounds == {}


@pytest.mark.parametrize("seed", sweep(range(40), daily=8))
def test_questions_prove_as_much_as_the_least_values_of_all_ranks(seed: int) -> None:
    """But for the tolerance; the least value of a rank alone is found by minimising its model."""
    profile, problem = drawn(seed)
    bounds = PartitionBounds(StageCostTable(profile), problem)
    best_us = bounds.least().bound_us * 2

    @cache
    def least_us(run: RankLayers) -> int:
        bounds.close(run)
        closed_us = min(best_us, bounds.paths[run])
        if closed_us == best_us:
            return best_us
        found = run_model(bounds.model_of(run, best_us), counted(20), 20.0)
        return best_us if found.infeasible else max(closed_us, found.bound_us)

    every = every_partition(len(profile.layers), problem.num_ranks)
    of_all_us = min(max(map(least_us, runs_of(sizes))) for sizes in every)
    found = bounds.raise_least(best_us, (), counted(20), lambda: False).least
    assert min(best_us, found.bound_us) <= of_all_us
    assert found.bound_us >= of_all_us - DESTRUCTIVE.tolerance * best_us


def test_a_rank_that_gives_no_answer_is_asked_for_less_and_then_again_with_more_effort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, float]] = []

    def decide(
        self: RankSubsets, ranks: tuple[int, ...], value_us: int, effort_s: float
    ) -> Decision:
        asked.append((value_us, effort_s))
        return Decision(None, is_refuted=False, spent_s=0.2)

    monkeypatch.setattr(RankSubsets, "decide", decide)
    profile = profile_that_saves_much()
    count = len(profile.layers)
    problem = Problem.linear(partition_costs(profile, (1,) * count), 4, None)
    bounds = PartitionBounds(StageCostTable(profile), problem)
    least_us = bounds.raise_least(10**6, (), counted(0), lambda: False).least.bound_us
    bounds.raise_least(2 * least_us, (), counted(5), lambda: False)
    values_us, efforts_s = zip(*asked, strict=True)
    assert values_us[:count] == (values_us[0],) * count
    assert values_us[count] < values_us[0] in values_us[count:]
    assert efforts_s[0] < max(efforts_s)


def test_partitions_that_nothing_fits_in_have_no_bound() -> None:
    profile = profile_that_saves_much()
    problem = Problem.linear(partition_costs(profile, (1, 3)), 2, 100)
    bounds = PartitionBounds(StageCostTable(profile), problem)
    assert bounds.bound_us((1, 3)) is None
    assert bounds.bound_us((2, 2)) is not None
    assert solve(bounds.problem_on((1, 3)), counted(1)).stopped_by == StoppedBy.INFEASIBLE


@pytest.mark.parametrize(("name", "does"), [("linear", True), ("v", False), ("looped:2", False)])
def test_they_are_for_one_stage_per_rank(name: str, does: bool) -> None:
    where = placement(name, 2)
    sizes = (2, 2) if where.num_stages == 2 else (1, 1, 1, 1)
    problem = Problem(partition_costs(profile_that_saves_much(), sizes), where, 4, partition=sizes)
    assert applies(problem) == does
