"""Claims of a plan file that cannot all be true are told from each other."""

import json
from typing import Any

import pytest

from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.error import ScheduleError
from synth.schedule.files.certificate import (
    Certificate,
    ForwardSpacing,
    LayerRun,
    PartitionProof,
    ProverName,
)
from synth.schedule.files.claim import IN_STEADY_STATE, REASONS, SteadyClaim
from synth.schedule.files.plan_file import Plan
from synth.schedule.steady_state import steady_us
from synth.search.outcome import StoppedBy

PROFILE = Profile.load(find("zb-1.5b-p8-m24"))
PLAN = Plan.of(PROFILE, [6] * 4, generate("zb-h1", 4, 8))
STEADY = Plan.of(PROFILE, [6] * 4, generate("pipedream", 4, 24))
RANKS = Certificate(prover=ProverName.RANKS, ranks=(0, 3))
CLOSED = Certificate(prover=ProverName.CLOSED_FORMS)


def claiming(plan: Plan = PLAN, **claims: Any) -> Plan:
    """The plan with other claims, written and read again with a fitting fingerprint."""
    return Plan.from_json(plan.replace(claim=plan.claim.replace(**claims)).to_json())


def steady_claim(**figures: float) -> SteadyClaim:
    us = steady_us(STEADY.check()[1])
    assert us is not None
    given = {"micro_batch_us": us, "lower_bound_us": us, "repeating_us": us}
    return SteadyClaim(**(given | figures))


def test_the_reasons_that_are_known_are_those_of_searches() -> None:
    assert set(REASONS) == set(StoppedBy)


@pytest.mark.parametrize(
    "reason",
    ["gap", "time limit", "nothing better found", "exhausted", "interrupt", "not searched"],
)
def test_a_gap_is_left_by_searches_that_say_so(reason: str) -> None:
    assert PLAN.claim.gap > 0
    claiming(stopped_by=reason).check()


def test_a_schedule_at_its_bound_is_optimal() -> None:
    claiming(stopped_by="optimal", lower_bound_us=PLAN.claim.makespan_us, gap=0).check()


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"stopped_by": "optimal"}, "stopped_by is 'optimal', and the bound leaves a gap of"),
        ({"stopped_by": "infeasible"}, "that no schedule exists; the file holds one"),
        ({"stopped_by": "proven optimal"}, "stopped_by is 'proven optimal'; known: optimal, "),
        ({"stopped_by": "gap in the steady state"}, "and the claim has no steady state"),
        ({"gap": 0.0}, "gap is 0.0, but the bound and the value make it"),
        ({"certificate": Certificate(prover=ProverName.RANKS, ranks=(4,))}, "names rank 4"),
        (
            {
                "certificate": CLOSED.replace(
                    forward_spacings=(ForwardSpacing(num_forwards=1, least_us=1, ranks=(0, 9)),)
                )
            },
            "names rank 9, and there are 4 ranks",
        ),
        (
            {"certificate": CLOSED.replace(layer_runs=(LayerRun(rank=0, first=20, end=25),))},
            "names layers that are not of 24",
        ),
        (
            {
                "certificate": CLOSED.replace(
                    partitions=(PartitionProof(sizes=(5, 6, 6, 6), certificate=RANKS),)
                )
            },
            "a partition of 23 layers, and there are 24",
        ),
    ],
)
def test_claims_that_contradict_each_other_are_refused(claims: dict[str, Any], said: str) -> None:
    PLAN.check()
    with pytest.raises(ScheduleError, match=said):
        claiming(**claims).check()


def test_a_search_for_the_least_memory_may_leave_a_gap_of_the_time() -> None:
    found = claiming(stopped_by="optimal")
    found.replace(arguments={"target": "2s"}).check()


@pytest.mark.parametrize("reason", [f"optimal{IN_STEADY_STATE}", "optimal"])
def test_the_reason_of_a_search_without_a_flush_is_of_its_steady_state(reason: str) -> None:
    """The gap of the makespan stays open."""
    assert STEADY.claim.gap > 0
    claiming(STEADY, steady=steady_claim(), stopped_by=reason).check()
    half = steady_claim(lower_bound_us=steady_claim().micro_batch_us / 2)
    with pytest.raises(ScheduleError, match=r"leaves a gap of 49\.99%"):
        claiming(STEADY, steady=half, stopped_by=reason).check()


def test_a_bound_of_all_orders_is_one_of_those_that_repeat() -> None:
    contradicted = steady_claim(repeating_us=1.0)
    with pytest.raises(ScheduleError, match=r"is above that of orders that repeat, 1\.0 µs"):
        claiming(STEADY, steady=contradicted, stopped_by="gap" + IN_STEADY_STATE).check()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": "1"}, "the request has the seed '1', the claim 2"),
        ({"mem_limit": "none"}, "the request has no memory limit, and the plan has caps_bytes"),
    ],
)
def test_the_recorded_request_fits_the_plan(changes: dict[str, str], said: str) -> None:
    limited = claiming(seed=2).replace(caps_bytes=(10**12,) * 4)
    limited.replace(arguments={"seed": "2", "mem_limit": "1TB"}).check()
    with pytest.raises(ScheduleError, match=said):
        limited.replace(arguments=changes).check()


def test_seconds_of_a_search_are_not_negative() -> None:
    data = json.loads(PLAN.to_json())
    data["claim"]["solve_seconds"] = -1.0
    with pytest.raises(SynthError, match="solve_seconds: Input should be greater than or equal"):
        Plan.from_json(json.dumps(data))
