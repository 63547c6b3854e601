"""Ranks of unequal speed: costs by the rank of each stage, partitions, and sound bounds."""

import random
from itertools import combinations, pairwise
from pathlib import Path

import pytest

import synth
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import generate, generate_for, names_on
from synth.op_kinds import OpKind
from synth.options.arguments.compare import CompareArguments
from synth.options.question import read_comparison
from synth.plan.partition.balance import balance
from synth.plan.partition.unequal_ranks import UnequalRanks
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from synth.records.command_option import from_values
from synth.schedule.files.check_against_profile import differences
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.synth.effort import exact_alone

F, B = OpKind.F, OpKind.B


def profile_of(works: list[int], speeds: tuple[float, ...], saved_bytes: int = 10) -> Profile:
    """One layer for each number, whose F, B and W take that many microseconds each."""
    layers = [
        LayerTimes(
            name=f"layer{i}",
            forward_us=us,
            backward_input_us=us,
            backward_weight_us=us,
            saved_bytes=saved_bytes,
            output_bytes=1,
            parameter_bytes=20,
        )
        for i, us in enumerate(works)
    ]
    return Profile.from_times("generated", layers).replace(rank_speeds=speeds)


def every_cut(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    inner = combinations(range(1, num_layers), num_stages - 1)
    return [tuple(b - a for a, b in pairwise((0, *edges, num_layers))) for edges in inner]


def test_a_stage_takes_the_time_that_its_rank_needs() -> None:
    profile = profile_of([10, 10, 10, 10], (1, 0.5))
    stages = partition_costs(profile, (1, 1, 1, 1), placement("v", 2).ranks).stages
    assert [stage.duration_us[F] for stage in stages] == [10, 20, 20, 10]
    assert [stage.duration_us[B] for stage in stages] == [10, 20, 20, 10]
    equal = partition_costs(profile.replace(rank_speeds=None), (1, 1, 1, 1)).stages
    assert [s.saved_bytes for s in stages] == [s.saved_bytes for s in equal]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("bidirectional", "stage 0 has copies on ranks of speed 0.5 and 1"),
        ("all-stages", "has copies on ranks of speed"),
    ],
)
def test_copies_on_ranks_of_unequal_speed_are_refused(where: str, said: str) -> None:
    with pytest.raises(SynthError, match=said):
        partition_costs(profile_of([10, 10], (1, 0.5)), (1, 1), placement(where, 2).ranks)


def test_costs_without_the_rank_of_a_stage_are_refused() -> None:
    with pytest.raises(SynthError, match="the ranks of this profile differ in speed"):
        partition_costs(profile_of([10, 10], (1, 0.5)), (1, 1))
    with pytest.raises(SynthError, match="the speeds of 2 ranks, and there are 3"):
        partition_costs(profile_of([10] * 3, (1, 0.5)), (1, 1, 1), placement("linear", 3).ranks)


@pytest.mark.parametrize("seed", range(8))
def test_no_partition_has_less_time_of_the_busiest_rank(seed: int) -> None:
    rng = random.Random(seed)
    works = [rng.randint(1, 30) for _ in range(9)]
    speeds = tuple(rng.choice([1, 0.5, 0.75, 2]) for _ in range(3))
    profile = profile_of(works, speeds)
    caps = None if seed % 2 else tuple(rng.choice([300, 400, 600]) for _ in range(3))
    ranks = UnequalRanks(profile, placement("linear", 3), caps)
    best = min(map(ranks.key, every_cut(9, 3)))
    found = ranks.key(balance(profile, placement("linear", 3), caps))
    assert found[0] == 0 or best[0] > 0
    if best[0] == 0:
        assert found == pytest.approx(best)


def best_value_us(profile: Profile, name: str, sizes: tuple[int, ...], micro_batches: int) -> int:
    """The makespan of an optimal order, proven."""
    where = placement(name, len(profile.rank_speeds or ()))
    costs = partition_costs(profile, sizes, where.ranks)
    found = solve(Problem(costs, where, micro_batches), exact_alone())
    assert found.value_us == found.lower_bound_us
    return found.lower_bound_us


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_holds_for_all_partitions_that_are_tried_and_the_plan_verifies(
    seed: int,
) -> None:
    rng = random.Random(seed)
    works = [rng.randint(1000, 3000) for _ in range(5)]
    profile = profile_of(works, (1, rng.choice([0.5, 0.7])))
    plan = synth.solve(
        profile, ranks=2, micro_batches=3, placement="linear", gap=0, time_limit=5, workers=1
    )
    plan.check()
    optima = [best_value_us(profile, "linear", sizes, 3) for sizes in every_cut(5, 2)]
    assert plan.claim.makespan_us == min(optima)
    assert plan.claim.lower_bound_us <= min(optima)


@pytest.mark.parametrize("seed", range(2))
def test_under_a_limit_the_partition_is_searched_for_and_the_bound_holds_for_all(
    seed: int,
) -> None:
    rng = random.Random(seed)
    works = [rng.randint(1000, 3000) for _ in range(6)]
    profile = profile_of(works, (1, rng.choice([0.5, 0.7]), 0.8), saved_bytes=100)
    where, caps = placement("linear", 3), (round(rng.uniform(420, 560)),) * 3
    plan = synth.solve(
        profile,
        ranks=3,
        micro_batches=4,
        mem_limit=caps[0],
        placement="linear",
        recompute="none",
        gap=0,
        time_limit=4,
        workers=1,
    )
    optima = {}
    for sizes in every_cut(6, 3):
        problem = Problem(partition_costs(profile, sizes, where.ranks), where, 4, caps)
        found = solve(problem, exact_alone())
        if found.value_us is not None:
            assert found.value_us == found.lower_bound_us
            optima[sizes] = found.value_us
    assert plan.claim.makespan_us == min(optima.values())
    assert plan.claim.lower_bound_us <= min(optima.values())
    if seed == 0:
        assert plan.claim.makespan_us < optima[UnequalRanks(profile, where, caps).balanced()]


def test_ranks_of_speed_1_are_as_if_none_were_given() -> None:
    profile = profile_of([100] * 6, (1, 1, 1)).replace(rank_speeds=None)
    asked = {"ranks": 3, "micro_batches": 4, "placement": "linear", "partition": "even"}
    options = {"time_limit": 0.02, "deterministic": True, "workers": 1}
    plain = synth.solve(profile, **asked, **options)  # type: ignore[arg-type]
    same = synth.solve(profile, **asked, **options, rank_speed="1,1,1")  # type: ignore[arg-type]
    assert same.programs == plain.programs


def test_a_rank_twice_as_fast_everywhere_halves_the_times() -> None:
    profile = profile_of([100] * 6, (1, 1, 1)).replace(rank_speeds=None)
    slow = synth.simulate("zb-h1", profile, ranks=3, micro_batches=6)
    fast = synth.simulate("zb-h1", profile, ranks=3, micro_batches=6, rank_speed=[2, 2, 2])
    assert 2 * fast.claim.makespan_us == slow.claim.makespan_us
    assert fast.claim.peak_bytes == slow.claim.peak_bytes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"weights": "ring", "placement": None},
            "every rank would run all stages with weights ring",
        ),
        ({"data_parallel": 2}, "data_parallel is not supported"),
        ({"runtime": "megatron"}, "runtime megatron is not supported"),
        (
            {"mem_limit": "min", "target": "105%", "partition": "auto"},
            "target is for one partition",
        ),
        ({"rank_speed": "1,1"}, "rank_speed gives 2 speeds for 3 ranks"),
        ({"rank_speed": "1"}, "rank_speed gives 1 speed for 3 ranks"),
        ({"rank_speed": "1,1,fast"}, "rank_speed='1,1,fast' is not understood"),
        ({"rank_speed": "1,1,0"}, "rank_speed"),
        ({"placement": "bidirectional"}, "has copies on ranks of speed"),
    ],
)
def test_what_assumes_equal_ranks_is_refused(options: dict[str, object], said: str) -> None:
    asked = {"ranks": 3, "micro_batches": 4, "placement": "linear", "rank_speed": "1,1,0.5"}
    with pytest.raises(SynthError, match=said):
        synth.solve(profile_of([100] * 6, (1, 1, 1)), **(asked | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": "ring"}, "every rank would run all stages with weights ring"),
        ({"weights": "auto"}, "every rank would run all stages with weights auto"),
        ({"partition": "auto"}, "a curve is of one partition"),
    ],
)
def test_curves_that_assume_equal_ranks_are_refused(options: dict[str, str], said: str) -> None:
    profile = profile_of([100] * 6, (1, 1, 0.5))
    with pytest.raises(SynthError, match=said):
        synth.frontier(profile, ranks=3, micro_batches=6, **options)  # type: ignore[arg-type]


def test_a_curve_on_ranks_of_unequal_speed_is_of_their_partition() -> None:
    profile = profile_of([100] * 6, (1, 1, 0.5))
    curve = synth.frontier(profile, ranks=3, micro_batches=4, points=2, time_limit=2)
    for plan in curve.points:
        plan.check()
        assert plan.partition == balance(profile, placement("linear", 3))


@pytest.mark.parametrize("name", ["weights", "versions", "planner"])
def test_rows_that_assume_equal_ranks_are_refused(name: str) -> None:
    profile = profile_of([100] * 6, (1, 1, 0.5))
    given = {"profile": profile, "ranks": 3, "micro_batches": 4}
    given[name] = {"weights": ["ring"], "versions": ["2bw"], "planner": ["2bw"]}[name]
    with pytest.raises(SynthError, match=f"where ranks differ in speed.*{name} is not supported"):
        read_comparison(from_values(CompareArguments, given))


def test_more_memory_for_one_rank_is_never_worse_for_the_optimum() -> None:
    profile = profile_of([1000, 1500, 800, 1200], (1, 0.5))
    where = placement("linear", 2)
    costs = partition_costs(profile, (3, 1), where.ranks)
    values = []
    for first in (130, 160, 190, 400):
        problem = Problem(costs, where, 3, (first, 400))
        found = solve(problem, exact_alone())
        values.append(found.value_us or 10**9)
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("name", ["linear", "v", "looped:2"])
def test_published_schedules_are_put_on_ranks_in_another_order(name: str) -> None:
    plain = placement(name, 3)
    other = Placement(tuple(tuple((2, 0, 1)[rank] for rank in row) for row in plain.ranks))
    profile = profile_of([100] * 6, (1, 1, 0.5)).replace(rank_speeds=None)
    costs = partition_costs(profile, (6 // plain.num_stages,) * plain.num_stages)
    given, moved = dict(generate_for(plain, 5, costs)), dict(generate_for(other, 5, costs))
    assert list(moved) == list(given) != []
    for family in names_on(other):
        try:
            alone = generate(family, 3, 5, costs=costs, where=other)
        except SynthError:
            continue  # its definition does not admit the numbers
        assert alone.programs == moved[alone.name].programs
    for family, schedule in moved.items():
        lowered, timeline = verify(schedule, costs)
        same, same_timeline = verify(given[family], costs)
        assert timeline.makespan_us == same_timeline.makespan_us
        peaks, same_peaks = peak_bytes(lowered), peak_bytes(same)
        assert peaks == tuple(same_peaks[rank] for rank in (1, 2, 0))


def test_an_order_of_ranks_fits_where_the_given_one_does_not(tmp_path: Path) -> None:
    profile = profile_of([1000] * 6, (0.5, 1, 1), saved_bytes=100)
    asked = {"ranks": 3, "micro_batches": 3, "placement": "linear", "recompute": "none"}
    asked["mem_limit"] = "300B,900B,900B"
    effort = {"time_limit": 1, "deterministic": True, "workers": 1}
    given = synth.solve(profile, **asked, **effort)  # type: ignore[arg-type]
    plan = synth.solve(profile, **asked, **effort, rank_order="auto")  # type: ignore[arg-type]
    plan.check()
    assert plan.placement != given.placement
    assert plan.claim.makespan_us < given.claim.makespan_us
    assert all(
        peak <= cap for peak, cap in zip(plan.claim.peak_bytes, (300, 900, 900), strict=True)
    )
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json").rank_speeds == (0.5, 1, 1)
    assert not [*differences(plan, profile)]


@pytest.mark.parametrize("seed", range(4))
def test_published_schedules_are_compared_on_ranks_of_unequal_speed(seed: int) -> None:
    rng = random.Random(seed)
    speeds = (1, 0.5, 1)
    profile = profile_of([rng.randint(50, 150) for _ in range(6)], speeds)
    asked = {"ranks": 3, "micro_batches": 6, "only": ["1f1b", "gpipe", "interleaved:2", "zero3:1"]}
    table = synth.compare(profile, **asked, placement=None)  # type: ignore[arg-type]
    by_name = {entry.name: entry for entry in table.entries}
    assert set(by_name) == {"1f1b", "gpipe", "interleaved:2"}
    assert "has copies on ranks of speed" in table.refusals[0].reason
    for name, entry in by_name.items():
        costs = partition_costs(profile, entry.partition, entry.schedule.placement.ranks)
        assert verify(entry.schedule, costs)[1].makespan_us == entry.makespan_us
        table.plan(entry).check()
        # No partition near the one that is shown has a shorter schedule of the family.
        for sizes in UnequalRanks(profile, entry.schedule.placement).neighbours(entry.partition):
            costs = partition_costs(profile, sizes, entry.schedule.placement.ranks)
            other = generate(name, 3, 6, costs=costs)
            assert verify(other, costs)[1].makespan_us >= entry.makespan_us, (name, sizes)
    ordered = synth.compare(profile, **asked, placement=None, rank_order="auto")  # type: ignore[arg-type]
    for entry in ordered.entries:
        assert entry.makespan_us <= by_name[entry.name].makespan_us


def test_a_search_beside_published_schedules_takes_the_order_of_ranks_too() -> None:
    profile = profile_of([100] * 6, (0.5, 1, 1))
    asked = {"ranks": 3, "micro_batches": 4, "only": "1f1b", "rank_order": "auto", "time_limit": 1}
    table = synth.compare(profile, **asked, placement="linear")  # type: ignore[arg-type]
    solved = next(entry for entry in table.entries if entry.claim is not None)
    known = next(entry for entry in table.entries if entry.claim is None)
    assert solved.makespan_us <= known.makespan_us
    table.plan(solved).check()
