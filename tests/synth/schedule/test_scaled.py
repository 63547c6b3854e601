"""Scaled plans: the same order, all times or bytes multiplied."""

import math

import pytest

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profile.links import Link, Links, NodeLink, PairLink
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.scaled import moved_bytes, scaled
from synth.schedule.lowering.lower import lower


@pytest.fixture(scope="module")
def plan() -> Plan:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    links = Links(
        default=Link(latency_us=600.0, bandwidth_bytes_per_s=40e9),
        nodes=(NodeLink(ranks_per_node=3, latency_us=900.0, bandwidth_bytes_per_s=20e9),),
        pairs=(PairLink(source=1, target=2, latency_us=80.0, bandwidth_bytes_per_s=9e9),),
    )
    profile = profile.replace(links=links)
    schedule = generate("zb-h1", 4, 8)
    peaks = Plan.of(profile, [6] * 4, schedule).claim.peak_bytes
    return Plan.of(profile, [6] * 4, schedule, caps_bytes=peaks)


def test_times_scale_makespan_and_transfers_but_not_memory(plan: Plan) -> None:
    slow = scaled(plan, times=10)
    assert slow.claim.makespan_us == pytest.approx(10 * plan.claim.makespan_us, rel=1e-4)
    assert slow.claim.peak_bytes == plan.claim.peak_bytes
    for ends in ((0, 1), (1, 2), (2, 3)):
        before, after = (p.costs.boundary_us(1, *ends) for p in (plan, slow))
        assert after == pytest.approx(10 * before, rel=1e-2)


def test_sizes_scale_memory_but_not_times(plan: Plan) -> None:
    small = scaled(plan, sizes=0.01)
    assert small.claim.makespan_us == plan.claim.makespan_us
    expected = [pytest.approx(peak / 100, rel=1e-3) for peak in plan.claim.peak_bytes]
    assert list(small.claim.peak_bytes) == expected
    assert small.costs.boundary_us(1, 1, 2) == plan.costs.boundary_us(1, 1, 2)


def test_a_size_that_follows_from_the_others_still_does(plan: Plan) -> None:
    stages = tuple(stage.replace(light_rise_bytes=None) for stage in plan.costs.stages)
    derived = plan.replace(costs=plan.costs.replace(stages=stages))
    for stage, small in zip(stages, scaled(derived, sizes=0.01).costs.stages, strict=True):
        assert small.light_rise_bytes is None
        assert small.light_rise == pytest.approx(stage.light_rise / 100, abs=1)


def test_a_scaled_plan_is_a_true_plan(plan: Plan) -> None:
    scaled(plan, times=0.3, sizes=0.7).check()


def test_what_is_moved_are_all_boundaries_and_the_sums_of_copies(plan: Plan) -> None:
    lowered, _ = plan.check()
    boundary = plan.costs.stages[0].output_bytes
    assert moved_bytes(lowered) == 3 * 8 * 2 * boundary
    copied = lower(generate("chimera", 4, 8), plan.costs)
    gradients = sum(2 * stage.gradient_bytes for stage in plan.costs.stages)
    crossings = sum(transfer.num_bytes for transfer in copied.transfers)
    assert moved_bytes(copied) == crossings + gradients


def test_nothing_changes_by_a_factor_of_one(plan: Plan) -> None:
    assert scaled(plan) is plan


@pytest.mark.parametrize(
    "factors",
    [{"times": 0.0}, {"sizes": -1.0}, {"times": math.nan}, {"sizes": math.inf}, {"times": 1e12}],
)
def test_a_factor_that_is_none_is_refused(plan: Plan, factors: dict[str, float]) -> None:
    with pytest.raises(SynthError, match="give a factor above 0"):
        scaled(plan, **factors)


def test_times_that_get_longer_than_any_can_be_are_refused(plan: Plan) -> None:
    with pytest.raises(SynthError, match="too large; give smaller factors"):
        scaled(scaled(plan, times=1e6), times=1e6)


def test_moves_to_the_host_keep_their_times_and_are_not_sent_between_ranks(plan: Plan) -> None:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    links = Links(host=Link(latency_us=10.0, bandwidth_bytes_per_s=25e9))
    profile = profile.replace(links=links)
    costs = partition_costs(profile, [6] * 4)
    moving = Plan.of(profile, [6] * 4, generate("pipeoffload:1,full", 4, 8, costs=costs))
    small = scaled(moving, sizes=0.01)
    assert small.claim.makespan_us == pytest.approx(moving.claim.makespan_us, rel=1e-4)
    still = Plan.of(profile, [6] * 4, generate("1f1b", 4, 8))
    assert moved_bytes(moving.check()[0]) == moved_bytes(still.check()[0])
