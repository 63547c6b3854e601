"""The sentence that says why a plan is as it is."""

from dataclasses import replace

import pytest

from synth.costs.partition_costs import partition_costs
from synth.families import family_placement, generate
from synth.objective import Objective
from synth.plan.reason import full_ranks, most_in_flight, reason_of
from synth.plan.tuning import REASON
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines
from synth.units import format_us


def plan_of(name: str, caps_bytes: tuple[int, ...] | None = None) -> Plan:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    num_stages = family_placement(name, 4).num_stages
    sizes = [24 // num_stages] * num_stages
    costs = partition_costs(profile, sizes)
    schedule = generate(name, 4, 8, costs=costs, objective=Objective.MAKESPAN)
    plan = Plan.of(profile, sizes, schedule)
    return plan.replace(caps_bytes=caps_bytes)


def reason(plan: Plan) -> str:
    lowered, timeline = plan.check()
    return reason_of(plan, lowered, timeline)


def test_pipelines_side_by_side_are_compared_with_as_many_of_1f1b() -> None:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    both = sharded_pipelines(generate("gpipe", 4, 8), 2)
    said = reason(Plan.of(profile, [6] * 4, both))
    by_hand = Plan.of(profile, [6] * 4, sharded_pipelines(generate("1f1b", 4, 8), 2))
    assert f"({format_us(by_hand.check()[1].makespan_us)})" in said and "; 1F1B takes" in said
    assert reason(by_hand).endswith("; the plan's order is that of 1F1B.")


def test_1f1b_has_one_micro_batch_less_in_flight_on_each_further_rank() -> None:
    lowered, _ = plan_of("1f1b").check()
    assert [most_in_flight(lowered, rank) for rank in range(4)] == [4, 3, 2, 1]
    gpipe, _ = plan_of("gpipe").check()
    assert [most_in_flight(gpipe, rank) for rank in range(4)] == [8] * 4


def test_a_rank_is_full_if_another_micro_batch_exceeds_the_limit() -> None:
    plan = plan_of("1f1b")
    lowered, _ = plan.check()
    peaks = peak_bytes(lowered)
    saved = [stage.saved_bytes for stage in plan.costs.stages]
    caps = tuple(peak + size for peak, size in zip(peaks, saved, strict=True))
    assert full_ranks(plan.replace(caps_bytes=caps), lowered) == []
    caps = (caps[0] - 1, caps[1], caps[2], caps[3] - 1)
    found = full_ranks(plan.replace(caps_bytes=caps), lowered)
    assert [(one.rank, one.free_bytes) for one in found] == [(0, saved[0] - 1), (3, saved[3] - 1)]


def test_the_sentence_names_the_full_ranks_and_how_long_1f1b_takes() -> None:
    plan = plan_of("zb-h1", caps_bytes=(37_000_000_000,) * 4)
    said = reason(plan)
    assert said.startswith(
        "memory binds on ranks 0 and 1: rank 0 holds up to 4 micro-batches; another needs "
    )
    _, known = plan_of("1f1b").check()
    _, timeline = plan.check()
    more = known.makespan_us / timeline.makespan_us - 1
    assert said.endswith(f"1F1B takes {more:.1%} longer (1.02 s).")


def test_if_1f1b_does_not_fit_it_is_compared_with_recomputation() -> None:
    plan = plan_of("1f1b:recompute", caps_bytes=(30_000_000_000,) * 4)
    said = reason(plan)
    assert "1F1B needs 36.7 GB, and the plan's order is that of 1F1B with recomputation." in said


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1f1b", "no memory limit: rank 0, which has the most work, works for 72% of the makespan"),
        ("zb-v", "; the plan's order is that of zb-v."),
        ("chimera", "; the plan's order is that of chimera."),
        ("interleaved:3", "; the plan's order is that of interleaved:3."),
    ],
)
def test_without_a_limit_the_work_of_the_busiest_rank_is_told(name: str, expected: str) -> None:
    assert expected in reason(plan_of(name))


@pytest.mark.parametrize(
    ("name", "limit_bytes", "expected"),
    [
        ("1f1b:recompute", 30, "with recomputation no rank is full: rank 0, which has"),
        ("1f1b", 50, "no rank is full: rank 0, which has"),
        ("1f1b", 500, "memory does not bind: rank 0, which has"),
    ],
)
def test_memory_does_not_bind_only_where_all_could_be_kept(
    name: str, limit_bytes: int, expected: str
) -> None:
    """1F1B needs 36.7 GB on four ranks, and eight micro-batches at once need over 50."""
    said = reason(plan_of(name, caps_bytes=(limit_bytes * 10**9,) * 4))
    assert said.startswith(expected)


def test_a_plan_that_offloads_says_so() -> None:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    costs = partition_costs(profile, [6] * 4)
    schedule = generate("bpipe", 4, 8, costs=costs, caps_bytes=(30 * 10**9,) * 4)
    plan = Plan.of(profile, [6] * 4, schedule).replace(caps_bytes=(48 * 10**9,) * 4)
    assert reason(plan).startswith("with activations moved off their ranks no rank is full: ")


def test_neither_the_plan_s_own_schedule_is_simulated_again_nor_its_file_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("this takes a second for large plans")

    plan = plan_of("1f1b")
    simulated = plan.check()
    monkeypatch.setattr("synth.plan.reason.verify", never)
    monkeypatch.setattr(Plan, "schedule", never)
    assert reason_of(plan, *simulated).endswith("; the plan's order is that of 1F1B.")


def test_v_schedules_that_take_long_to_generate_are_not_compared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of("v-half")
    assert "zb-v takes" in reason(plan)
    num_ops = 3 * plan.costs.num_stages * plan.num_micro_batches
    monkeypatch.setattr("synth.plan.reason.REASON", replace(REASON, most_ops_of_v=num_ops - 1))
    assert reason(plan).endswith(
        "zb-v is not simulated here, because fitting it to so many ops takes too long."
    )
