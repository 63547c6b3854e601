"""Claimed bounds of plans: true ones are proven again, false ones are disproved."""

import threading
from dataclasses import replace

import pytest

from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.objective import BoundScope, Objective
from synth.plan.claim import claim_of
from synth.plan.partition.bounds import PartitionBounds
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.recompute.choice_search import solve_choosing
from synth.plan.reprove.reproof import ProofVerdict, Reproof
from synth.plan.reprove.reprove import reprove
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from synth.profile.links import Link, Links
from synth.profiles import find
from synth.schedule.files.certificate import Certificate, ProverName
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.search.outcome import relative_gap
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve

PROFILE = Profile.load(find("zb-1.5b-p8-m24"))
SIZES = (6, 6, 6, 6)
# One micro-batch takes 13.4 GB on the first rank: two fit.
TIGHT = 30 * 10**9
OPTIONS = SolveOptions(time_limit_s=20.0, workers=2)


def problem_of(
    cap_bytes: int | None = TIGHT,
    objective: Objective = Objective.MAKESPAN,
    where: Placement | None = None,
    sizes: tuple[int, ...] = SIZES,
) -> Problem:
    where = where or Placement.linear(len(sizes))
    caps = None if cap_bytes is None else (cap_bytes,) * where.num_ranks
    return Problem(partition_costs(PROFILE, sizes), where, 4, caps, objective, sizes)


def solved(problem: Problem, **claimed: object) -> Plan:
    """The plan of a search, with some of its claim changed."""
    result = solve(problem, OPTIONS)
    assert result.schedule is not None and problem.partition is not None
    claim = claim_of(result, problem, OPTIONS)
    if claimed:
        claim = claim.replace(**claimed)
    return Plan.of(
        PROFILE, problem.partition, result.schedule, claim=claim, caps_bytes=problem.caps_bytes
    )


def proof_of(
    plan: Plan, options: SolveOptions = OPTIONS, profile: Profile | None = None
) -> Reproof:
    _, timeline = plan.check()
    return reprove(plan, timeline, options, profile)


@pytest.mark.parametrize("objective", ["makespan", "period", "iterations:4"])
def test_a_bound_of_a_search_is_proven_again(objective: str) -> None:
    plan = solved(problem_of(objective=Objective.parse(objective)))
    proof = proof_of(plan)
    assert (proof.verdict, proof.on_trust) == (ProofVerdict.PROVEN, None)
    assert proof.reached_us >= plan.claim.lower_bound_us


@pytest.mark.parametrize("name", ["v", "bidirectional", "looped:2"])
def test_so_is_that_of_another_placement(name: str) -> None:
    where = placement(name, 2)
    sizes = (24 // where.num_stages,) * where.num_stages
    plan = solved(problem_of(None, where=where, sizes=sizes))
    assert proof_of(plan).verdict == ProofVerdict.PROVEN


def test_a_bound_above_what_can_be_is_false_and_a_schedule_says_so() -> None:
    # 1F1B without a limit; others are faster.
    slow = generate("1f1b", 4, 4)
    plan = Plan.of(PROFILE, SIZES, slow)
    claimed_us = plan.claim.makespan_us
    claim = plan.claim.replace(lower_bound_us=claimed_us, gap=0, stopped_by="optimal")
    proof = proof_of(plan.replace(claim=claim))
    assert proof.verdict == ProofVerdict.FALSE
    assert proof.witness_us is not None and proof.witness_us < claimed_us


def test_the_exact_model_disproves_a_bound_that_is_said_to_rest_on_it() -> None:
    layers = [
        LayerTimes(
            name=f"l{index}",
            forward_us=100,
            backward_us=200,
            step_us=10,
            parameter_bytes=100,
            output_bytes=8 if index < 1 else 0,
            saved_bytes=4,
        )
        for index in range(2)
    ]
    links = Links(default=Link(latency_us=30, bandwidth_bytes_per_s=1e9))
    profile = Profile.from_times("two layers", layers, links=links)
    plan = Plan.of(profile, [1, 1], generate("zero3:1,ahead=0", 2, 2))
    makespan_us = plan.claim.makespan_us
    claim = plan.claim.replace(
        stopped_by="optimal",
        lower_bound_us=makespan_us,
        gap=0.0,
        certificate=Certificate(prover=ProverName.EXACT),
    )
    found = proof_of(plan.replace(claim=claim))
    assert found.verdict == ProofVerdict.FALSE and found.is_refuted
    assert found.witness_us is not None
    assert found.reached_us <= found.witness_us < makespan_us


def test_without_time_only_the_closed_forms_are_reached() -> None:
    plan = solved(problem_of())
    proof = proof_of(plan, replace(OPTIONS, time_limit_s=0.0))
    assert proof.verdict == ProofVerdict.OPEN
    assert 0 < proof.reached_us < plan.claim.lower_bound_us


def test_a_stop_ends_a_proof_with_what_is_proven_then() -> None:
    plan, stop = solved(problem_of()), threading.Event()
    stop.set()
    _, timeline = plan.check()
    proof = reprove(plan, timeline, OPTIONS, None, stop)
    assert (proof.verdict, proof.seconds < 5) == (ProofVerdict.OPEN, True)


def test_the_largest_work_is_the_bound_of_what_was_not_searched() -> None:
    costs = PROFILE.replace(links=PROFILE.links.replace(host=Link(latency_us=5)))
    for name in ("1f1b", "1f1b:recompute", "pipeoffload:1,full"):
        plan = Plan.of(costs, SIZES, generate(name, 4, 8, costs=partition_costs(costs, SIZES)))
        proof = proof_of(plan)
        assert (proof.verdict, proof.holds_for) == (
            ProofVerdict.PROVEN,
            "schedules with the same ops",
        )


def chosen(problem: Problem) -> Plan:
    """The plan of a search that chose the recomputation."""
    result = solve_choosing(problem, OPTIONS)
    assert result.schedule is not None
    return Plan.of(
        PROFILE,
        SIZES,
        result.schedule,
        claim=claim_of(result, problem, OPTIONS),
        caps_bytes=problem.caps_bytes,
        arguments={"recompute": "auto"},
        recomputed_layers=result.problem.recomputed_layers,
    )


def test_a_bound_of_every_choice_of_stages_is_proven_again() -> None:
    problem = problem_of()
    proof = proof_of(chosen(problem))
    assert proof.verdict == ProofVerdict.PROVEN
    assert "whichever stages recompute" in proof.holds_for


def test_a_bound_of_every_choice_of_layers_needs_the_profile() -> None:
    problem = replace(problem_of(), profile=PROFILE)
    plan = chosen(problem)
    whole, alone = proof_of(plan, profile=PROFILE), proof_of(plan)
    assert (whole.verdict, whole.on_trust) == (ProofVerdict.PROVEN, None)
    assert whole.holds_for == "this partition, whichever layers and stages are recomputed"
    assert alone.on_trust is not None and "whichever layers" in alone.on_trust


def test_a_bound_of_all_partitions_needs_the_profile() -> None:
    problem = problem_of(None)
    least = PartitionBounds(StageCostTable(PROFILE), problem).raise_least(
        10**9, (), OPTIONS, lambda: False
    )
    bound_us, value_us = least.least.bound_us, solved(problem).claim.makespan_us
    assert bound_us < value_us  # four micro-batches are so few that uneven stages are faster
    of_all = {"bound_holds_for": BoundScope.ALL, "stopped_by": "time limit", "certificate": None}
    gap = relative_gap(value_us, bound_us)
    plan = solved(problem, lower_bound_us=bound_us, gap=gap, **of_all)
    alone, whole = proof_of(plan), proof_of(plan, profile=PROFILE)
    assert alone.on_trust == "that it holds for all partitions"
    assert (whole.verdict, whole.on_trust) == (ProofVerdict.PROVEN, None)
    assert whole.holds_for == "all partitions"


def test_a_bound_that_another_partition_beats_is_no_bound_of_all() -> None:
    # The last rank has most of the work: any more even partition is faster.
    problem = problem_of(None, sizes=(3, 3, 3, 15))
    plan = solved(problem, bound_holds_for=BoundScope.ALL, certificate=None)
    assert proof_of(plan).verdict == ProofVerdict.PROVEN
    proof = proof_of(plan, profile=PROFILE)
    assert proof.verdict == ProofVerdict.FALSE
    assert proof.witness_us is not None and proof.witness_us < plan.claim.lower_bound_us
