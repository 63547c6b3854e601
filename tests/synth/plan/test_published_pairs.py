"""Published schedules with F and BW at once as answers of a search."""

import random
from dataclasses import replace

import pytest

import synth
from synth.costs.partition_costs import partition_costs
from synth.families import families
from synth.layer_times import LayerTimes
from synth.objective import BoundScope
from synth.plan.choose import published_pairs
from synth.plan.choose.candidates import Candidate, Partitioning, Ranking, SearchWatch
from synth.plan.choose.published_pairs import PublishedPairs, search_beside_pairs
from synth.plan.reprove.reproof import ProofVerdict
from synth.plan.reprove.reprove import reprove
from synth.profile import Profile
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import placement
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve

RANKS, NUMBER = 2, 6
OVERLAPPING = ("dualpipe-v:overlap", "interleaved:2,overlap")


def profile_of(
    pair_us: float | None,
    forward_us: float = 1000,
    backward_us: float = 2000,
    saved_bytes: int = 1000,
    name: str = "moe",
) -> Profile:
    times = LayerTimes(
        name="block",
        count=8,
        forward_us=forward_us,
        backward_us=backward_us,
        pair_us=pair_us,
        parameter_bytes=1000,
        saved_bytes=saved_bytes,
        output_bytes=10,
    )
    return Profile.from_times(name, [times])


def solved(profile: Profile, **options: object) -> Plan:
    given = {
        "ranks": RANKS,
        "micro_batches": NUMBER,
        "time_limit": 1,
        "workers": 1,
        "deterministic": True,
        **options,
    }
    return synth.solve(profile, **given)  # type: ignore[arg-type]


def published(profile: Profile, mem_limit: str = "none") -> list[Plan]:
    return [
        synth.simulate(name, profile, ranks=RANKS, micro_batches=NUMBER, mem_limit=mem_limit)
        for name in OVERLAPPING
    ]


def test_a_published_schedule_is_the_answer_where_pairs_save_time() -> None:
    profile = profile_of(pair_us=2200)
    plan = solved(profile)
    assert plan.schedule().overlapped
    assert plan.claim.makespan_us <= min(each.claim.makespan_us for each in published(profile))
    assert plan.claim.found_by in {*OVERLAPPING, "interleaved:4,overlap"}
    apart = solved(profile_of(pair_us=None))
    assert plan.claim.makespan_us < apart.claim.lower_bound_us
    # A bound ends the search for orders without pairs, which are all slower.
    assert plan.claim.stopped_by == StoppedBy.NOTHING_BETTER


def test_the_bound_of_such_an_answer_is_of_the_same_ops_and_proven_again() -> None:
    plan = solved(profile_of(pair_us=2200))
    timeline = plan.check()[1]
    assert plan.claim.lower_bound_us == timeline.least_us
    found = reprove(plan, timeline, SolveOptions(time_limit_s=1, workers=1))
    assert found.verdict == ProofVerdict.PROVEN
    assert found.holds_for == "schedules with the same ops"


def test_the_search_is_the_answer_where_pairs_save_little() -> None:
    # A pair saves 1 µs of 3000; with W apart from B a search fills far more of the bubble.
    plan = solved(profile_of(pair_us=2999))
    assert not plan.schedule().overlapped
    assert plan.claim.makespan_us == solved(profile_of(pair_us=None)).claim.makespan_us


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (1, 3, 1, 3)])
def test_the_pairs_of_a_hint_are_tried_as_they_are(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on the hint's partition, and where no published schedule has pairs."""
    profile = profile_of(pair_us=2200)
    hint = synth.simulate(
        "dualpipe-v:overlap", profile, ranks=RANKS, micro_batches=NUMBER, partition=sizes
    )
    monkeypatch.setattr(published_pairs, "pair_names", lambda where: [])
    plan = solved(profile, placement="v", hint=hint)
    assert plan.schedule().overlapped == hint.schedule().overlapped
    assert (plan.partition, plan.claim.makespan_us) == (hint.partition, hint.claim.makespan_us)
    assert plan.claim.found_by == f"hint {hint.name}"
    elsewhere = solved(profile, placement="v", hint=hint, partition=[1, 2, 3, 2])
    assert elsewhere.partition == (1, 2, 3, 2)
    for runtime in ("torch", "torchtitan"):
        assert not solved(profile, placement="v", hint=hint, runtime=runtime).schedule().overlapped


@pytest.mark.parametrize("seed", range(6))
def test_a_search_is_no_worse_than_the_published_schedules_that_fit(seed: int) -> None:
    rng = random.Random(seed)
    forward_us, backward_us = rng.randint(500, 1500), rng.randint(1000, 3000)
    pair_us = rng.randint(max(forward_us, backward_us), forward_us + backward_us)
    profile = profile_of(pair_us, forward_us, backward_us, saved_bytes=10**6)
    limit = rng.choice(("none", "25MB", "30MB", "40MB"))
    plan = solved(profile, mem_limit=limit)
    for one in published(profile):
        fits = limit == "none" or max(one.claim.peak_bytes) <= int(limit[:-2]) * 10**6
        assert not fits or plan.claim.makespan_us <= one.claim.makespan_us
    plan.check()


@pytest.mark.parametrize(
    "options",
    [
        {"runtime": "torch"},
        {"runtime": "torchtitan"},
        {"runtime": "megatron"},
        {"data_parallel": 2},
        {"versions": "stash"},
    ],
)
def test_what_cannot_run_pairs_gets_none(options: dict[str, object]) -> None:
    plan = solved(profile_of(pair_us=2200), deterministic=False, **options)
    assert not plan.schedule().overlapped


def test_a_search_on_one_placement_and_partition_takes_its_families_alone() -> None:
    profile = profile_of(pair_us=2200)
    sizes = [1, 3, 2, 2]
    plan = solved(profile, placement="v", partition=sizes)
    assert plan.partition == tuple(sizes)
    names = {name for name in families() if plan.claim.found_by.startswith(f"{name}:overlap")}
    assert not plan.schedule().overlapped or names == {"dualpipe-v"}


def test_better_plans_are_told_and_each_bound_can_be_proven() -> None:
    told: list[Plan] = []
    plan = solved(profile_of(pair_us=2200), on_improvement=told.append)
    times = [each.claim.makespan_us for each in told]
    assert times == sorted(times, reverse=True)
    assert told[-1].programs == plan.programs
    for each in told:
        assert each.schedule().overlapped
        found = reprove(each, each.check()[1], SolveOptions(time_limit_s=1, workers=1))
        assert found.verdict == ProofVerdict.PROVEN


@pytest.mark.parametrize("partitioning", Partitioning)
def test_a_bound_of_the_partitions_tried_does_not_end_a_search_for_others(
    partitioning: Partitioning,
) -> None:
    profile, where = profile_of(pair_us=2200), placement("v", RANKS)
    costs, sizes = partition_costs(profile, (2, 2, 2, 2)), (2, 2, 2, 2)
    problem = Problem(costs, where, NUMBER, profile=profile, partition=sizes)
    pairs = PublishedPairs([Candidate("v", problem)], profile, partitioning)
    ends: list[bool] = []

    def search(options: SolveOptions, watch: SearchWatch) -> Ranking:
        found = solve(problem, options)
        told = found.as_incumbent()
        assert told is not None and watch.on_improvement is not None
        for scope in (BoundScope.CANDIDATES, BoundScope.ALL):
            watch.on_improvement(replace(told, lower_bound_us=told.value_us, bound_scope=scope))
            ends.append(watch.stop.is_set())
        return Ranking(found, ())

    options = SolveOptions(time_limit_s=1, workers=1, deterministic=True)
    search_beside_pairs(pairs, search, options, SearchWatch())
    assert ends == [partitioning != Partitioning.SEARCHED, True]
