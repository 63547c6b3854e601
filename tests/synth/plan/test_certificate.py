"""Certificates of bounds: the models that they name prove the bound again; they are not trusted."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.objective import BoundScope, Objective
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.choose.race import solve_best_of
from synth.plan.claim import claim_of
from synth.plan.reprove.reproof import ProofVerdict, Reproof
from synth.plan.reprove.reprove import reprove
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.certificate import (
    Certificate,
    ForwardSpacing,
    ProvenBound,
    ProverName,
    Relaxation,
)
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.solver.bounds.bound import Reference
from synth.solver.bounds.closed_form import work_bounds
from synth.solver.bounds.forward_spacing import SpacingProver
from synth.solver.bounds.idle_time import IdleBounds
from synth.solver.bounds.rank_subsets import RankSubsets
from synth.solver.bounds.recheck import recheck
from synth.solver.bounds.rechecker import Recheck
from synth.solver.cpsat.model import ExactModel
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import Part, SolveOptions, SolverName
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.synth.effort import counted, exact_alone
from tests.synth.solver.test_solve import table_costs

OPTIONS = SolveOptions(time_limit_s=60.0, workers=1)
# For proofs that fail, which use all of their time.
BRIEFLY = SolveOptions(time_limit_s=6.0, workers=1)

# 4 ranks, 8 micro-batches, 0.75 of 1F1B's memory: a known optimum (`table` suite).
TIGHT = Problem(table_costs(4), placement("linear", 4), 8, (9,) * 4)
OPTIMUM_US = 1676
TURNS = Problem(table_costs(4), placement("v", 2), 8, (8,) * 2)

PROFILE = Profile.load(find("zb-1.5b-p8-m24"))


def _never() -> bool:
    return False


def ranks_of(problem: Problem) -> Iterator[ProvenBound]:
    instance, known = relaxed_for_fusion(problem), Reference(100_000, None)
    yield from RankSubsets(instance, problem.objective, counted(2), lambda: known, _never).prove(
        2.0
    )


def spacings_of(problem: Problem) -> Iterator[ProvenBound]:
    asked = (relaxed_for_fusion(problem), counted(2), lambda: None, _never)
    yield from SpacingProver(*asked, objective=problem.objective).prove(2.0)


def idle_times_of(problem: Problem) -> Iterator[ProvenBound]:
    instance, known = relaxed_for_fusion(problem), Reference(100_000, None)
    asked = (instance, problem.objective, counted(2), work_bounds(instance), lambda: known, _never)
    bounds = IdleBounds(*asked)
    yield from bounds.one_by_one(0.1)
    yield from bounds.prove(0.1)


def ranks_with_spacings_of(problem: Problem) -> Iterator[ProvenBound]:
    instance, known = relaxed_for_fusion(problem), Reference(100_000, None)
    apart = SpacingProver(instance, counted(2), lambda: None, _never)
    assert list(apart.prove(2.0))
    asked = (instance, problem.objective, counted(2), lambda: known, _never)
    yield from RankSubsets(*asked, spacings=apart.known).prove(2.0)


def exact_of(problem: Problem) -> Iterator[ProvenBound]:
    found = solve(problem, exact_alone(20))
    assert found.certificate is not None
    yield ProvenBound(found.lower_bound_us, found.certificate)


def milp_of(problem: Problem) -> Iterator[ProvenBound]:
    asked = SolveOptions(30.0, solver=SolverName.MILP)
    found = solve(problem, replace(asked, without=frozenset({Part.BOUNDS})))
    assert found.certificate is not None
    yield ProvenBound(found.lower_bound_us, found.certificate)


SMALL = Problem(table_costs(2), placement("linear", 2), 4, (3,) * 2)

CASES = {
    "ranks": (ranks_of, TIGHT, ProverName.RANKS),
    "ranks, period": (ranks_of, replace(TIGHT, objective=Objective.PERIOD), ProverName.RANKS),
    "ranks, sum": (ranks_of, replace(TIGHT, objective=Objective(1, 2)), ProverName.RANKS),
    "ranks with spacings": (ranks_with_spacings_of, TIGHT, ProverName.RANKS),
    "spacings": (spacings_of, TIGHT, ProverName.SPACING),
    "spacings in turns": (spacings_of, TURNS, ProverName.SPACING),
    "idle times": (idle_times_of, TIGHT, ProverName.IDLE_TIME),
    "idle times in turns": (idle_times_of, TURNS, ProverName.IDLE_TIME),
    "exact": (exact_of, TIGHT, ProverName.EXACT),
    "milp": (milp_of, SMALL, ProverName.MILP),
}


@cache
def proven(name: str) -> tuple[Problem, ProvenBound]:
    """The best bound of a prover."""
    prove, problem, _ = CASES[name]
    return problem, max(prove(problem), key=lambda one: one.bound_us)


def checked(
    problem: Problem, certificate: Certificate, claimed_us: int, options: SolveOptions = OPTIONS
) -> Recheck:
    return recheck(problem, certificate, claimed_us, options, _never)


@pytest.mark.parametrize("name", CASES)
def test_what_a_certificate_names_proves_its_bound_and_no_more(name: str) -> None:
    problem, (bound_us, certificate) = proven(name)
    closed_us = problem.objective.value_us(work_bounds(relaxed_for_fusion(problem)))
    assert certificate.prover == CASES[name][2] and bound_us > closed_us
    assert checked(problem, certificate, bound_us) == Recheck.PROVEN
    assert checked(problem, certificate, bound_us + 1) == Recheck.REFUTED


@pytest.mark.parametrize("name", CASES)
def test_a_certificate_is_the_same_when_it_is_read_again(name: str) -> None:
    certificate = proven(name)[1].certificate
    text = json.dumps(certificate.model_dump(mode="json", exclude_none=True))
    assert Certificate.model_validate(json.loads(text)) == certificate


@pytest.mark.parametrize("name", [name for name in CASES if "exact" not in name])
def test_without_time_nothing_is_proven_nor_refuted(name: str) -> None:
    problem, (bound_us, certificate) = proven(name)
    late = replace(OPTIONS, time_limit_s=0.0)
    assert checked(problem, certificate, bound_us, late) == Recheck.OPEN


@pytest.mark.parametrize("ranks", [(), (3,), (2, 3), (9,), (0, 1, 9)])
def test_other_ranks_do_not_prove_it(ranks: tuple[int, ...]) -> None:
    problem, (bound_us, certificate) = proven("ranks")
    other = certificate.replace(ranks=ranks)
    assert checked(problem, other, bound_us) == Recheck.REFUTED


@pytest.mark.parametrize("name", ["spacings", "ranks with spacings"])
@pytest.mark.parametrize("place", range(3))
def test_a_spacing_that_is_too_large_proves_nothing(name: str, place: int) -> None:
    """Though it would make the optimum, and more, a bound."""
    problem, (_, certificate) = proven(name)
    lemmas = list(certificate.forward_spacings)
    lemmas[place] = lemmas[place].replace(least_us=lemmas[place].least_us + 1)
    stronger = certificate.replace(forward_spacings=lemmas)
    for claimed_us in (OPTIMUM_US, OPTIMUM_US + 1):
        assert checked(problem, stronger, claimed_us) == Recheck.REFUTED


def test_nor_does_one_of_other_ranks_or_lengths() -> None:
    problem, (bound_us, certificate) = proven("spacings")
    for change in ({"ranks": (1, 2)}, {"ranks": (7,)}, {"num_forwards": 8}, {"num_forwards": 1000}):
        lemmas = [lemma.replace(**change) for lemma in certificate.forward_spacings]
        wrong = certificate.replace(forward_spacings=lemmas)
        assert checked(problem, wrong, bound_us) == Recheck.REFUTED


def test_spacings_are_none_of_copies_of_the_stages() -> None:
    """These share the micro-batches, so forwards of one are as near as those of both."""
    problem = Problem(table_costs(2), placement("bidirectional", 2), 8, (12,) * 2)
    lemma = ForwardSpacing(num_forwards=1, least_us=1000, ranks=(0, 1))
    certificate = Certificate(prover=ProverName.SPACING, forward_spacings=(lemma,))
    assert checked(problem, certificate, 8000) == Recheck.REFUTED


@pytest.mark.parametrize("change", [{"least_us": 10_000}, {"length_us": 1}, {"ranks": (2, 3)}])
def test_an_idle_time_that_is_not_there_proves_nothing(change: dict[str, Any]) -> None:
    problem, (bound_us, certificate) = proven("idle times")
    lemmas = [lemma.replace(**change) for lemma in certificate.idle_times]
    wrong = certificate.replace(idle_times=lemmas)
    assert checked(problem, wrong, bound_us) == Recheck.REFUTED


def test_idle_times_need_to_know_when_a_rank_begins() -> None:
    """With two copies that depends on the schedule, so a period is not bounded by them."""
    asked = (table_costs(2), placement("bidirectional", 2), 8, (12,) * 2, Objective.PERIOD)
    certificate = proven("idle times")[1].certificate
    assert checked(Problem(*asked), certificate, 8000) == Recheck.REFUTED


def test_the_name_of_another_prover_proves_nothing() -> None:
    problem, (bound_us, certificate) = proven("ranks")
    for prover in (ProverName.CLOSED_FORMS, ProverName.SPACING, ProverName.PARTITIONS):
        other = certificate.replace(prover=prover)
        assert checked(problem, other, bound_us) == Recheck.REFUTED


def test_bw_counts_only_where_the_model_can_choose_it_everywhere() -> None:
    """Two stages on a rank: there the exact model has no BW, so it is no relaxation."""
    costs = table_costs(4)
    cheap = tuple(
        stage.replace(duration_us={**stage.duration_us, kind: 50})
        for stage in costs.stages
        for kind in stage.duration_us
        if kind == "BW"
    )
    problem = replace(TURNS, costs=costs.replace(stages=cheap), caps_bytes=None)
    certificate = Certificate(prover=ProverName.EXACT, relaxation=Relaxation.FUSIBLE)
    assert checked(problem, certificate, 3000) == Recheck.REFUTED


# Plans


def tight_problem(num_micro_batches: int) -> Problem:
    where, sizes = Placement.linear(4), (6, 6, 6, 6)
    caps = (30 * 10**9,) * 4
    return Problem(partition_costs(PROFILE, sizes), where, num_micro_batches, caps, partition=sizes)


@cache
def tight_plan() -> Plan:
    """Its bound is of two ranks, more than any one of them says."""
    problem = tight_problem(8)
    found = solve(problem, counted(20))
    assert found.schedule is not None and found.gap == 0 and problem.partition is not None
    certificate = Certificate(prover=ProverName.RANKS, ranks=(0, 1), num_micro_batches=8)
    claim = claim_of(found, problem, counted(20)).replace(certificate=certificate)
    caps = problem.caps_bytes
    return Plan.of(PROFILE, problem.partition, found.schedule, claim=claim, caps_bytes=caps)


def proof_of(
    plan: Plan,
    profile: Profile | None = None,
    all_provers: bool = False,
    options: SolveOptions = OPTIONS,
) -> Reproof:
    return reprove(plan, plan.check()[1], options, profile, all_provers=all_provers)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[ExactModel]:
    """All models that are made."""
    made: list[ExactModel] = []
    init = ExactModel.__init__

    def note(self: ExactModel, *args: Any, **named: Any) -> None:
        made.append(self)
        init(self, *args, **named)

    monkeypatch.setattr(ExactModel, "__init__", note)
    return made


def test_a_certificate_is_less_work_than_all_provers(models: list[ExactModel]) -> None:
    plan = tight_plan()
    certificate = plan.claim.certificate
    assert certificate is not None and certificate.prover == ProverName.RANKS
    models.clear()
    proof = proof_of(plan)
    assert proof.verdict == ProofVerdict.PROVEN and proof.proven_from == certificate.words
    (model,) = models
    assert tuple(model.ops.ranks) == certificate.ranks
    models.clear()
    whole = proof_of(plan, all_provers=True)
    assert (whole.verdict, whole.proven_from) == (ProofVerdict.PROVEN, "all provers")
    assert len(models) > 1


def test_a_plan_without_certificate_is_proven_by_all_provers(tmp_path: Path) -> None:
    """As files before version 4 are."""
    data = tight_plan().to_data()
    data["schema_version"] = 3
    del data["claim"]["certificate"]
    data.pop("flops", None)
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    old = Plan.load(path)
    assert old.claim.certificate is None
    proof = proof_of(old)
    assert (proof.verdict, proof.proven_from) == (ProofVerdict.PROVEN, "all provers")


def test_a_bound_that_is_too_high_is_not_proven() -> None:
    """Without a cap there are faster schedules than the one whose makespan is claimed."""
    plan = tight_plan()
    closed = Certificate(prover=ProverName.CLOSED_FORMS)
    for certificate in (closed, plan.claim.certificate):
        claim = plan.claim.replace(certificate=certificate, lower_bound_us=plan.claim.value_us)
        proof = proof_of(plan.replace(claim=claim, caps_bytes=None))
        assert proof.verdict != ProofVerdict.PROVEN and proof.is_refuted
        assert proof.witness_us is not None and proof.witness_us < plan.claim.value_us
        assert proof.verdict == ProofVerdict.FALSE


def test_a_wrong_certificate_leaves_a_bound_open() -> None:
    plan = tight_plan()
    certificate = plan.claim.certificate
    assert certificate is not None
    wrong = plan.claim.replace(certificate=certificate.replace(ranks=(2, 3)))
    proof = proof_of(plan.replace(claim=wrong), options=BRIEFLY)
    assert (proof.verdict, proof.is_refuted, proof.witness_us) == (ProofVerdict.OPEN, True, None)
    assert proof.reached_us < plan.claim.lower_bound_us


# All partitions


@cache
def sought_plan() -> Plan:
    candidate = Candidate("linear", tight_problem(4))
    result = solve_best_of([candidate], PROFILE, Partitioning.SEARCHED, counted(2)).result
    assert result.schedule is not None and result.problem.partition is not None
    claim = claim_of(result, result.problem, counted(20))
    caps = result.problem.caps_bytes
    sizes = result.problem.partition
    return Plan.of(PROFILE, sizes, result.schedule, claim=claim, caps_bytes=caps)


def test_a_bound_of_all_partitions_is_proven_from_its_certificate(models: list[ExactModel]) -> None:
    plan = sought_plan()
    certificate = plan.claim.certificate
    assert certificate is not None and certificate.prover == ProverName.PARTITIONS
    assert plan.claim.bound_holds_for == BoundScope.ALL
    models.clear()
    proof = proof_of(plan, PROFILE)
    assert (proof.verdict, proof.on_trust) == (ProofVerdict.PROVEN, None)
    assert len(models) <= len(certificate.layer_runs) + len(certificate.partitions)


def test_what_its_certificate_leaves_out_is_not_taken_for_proven() -> None:
    plan = sought_plan()
    certificate = plan.claim.certificate
    assert certificate is not None and certificate.partitions
    less = certificate.replace(partitions=(), layer_runs=())
    shortened = plan.replace(claim=plan.claim.replace(certificate=less))
    proof = proof_of(shortened, PROFILE, options=BRIEFLY)
    assert proof.verdict == ProofVerdict.OPEN and proof.is_refuted


# Hostile files


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prover": "faith"}, "prover"),
        ({"ranks": [-1]}, "ranks"),
        ({"ranks": [0] * 10_001}, "ranks"),
        ({"ranks": [0.5]}, "ranks"),
        ({"ranks": "01"}, "ranks"),
        ({"num_micro_batches": 0}, "num_micro_batches"),
        ({"surprise": 1}, "surprise"),
        ({"forward_spacings": [{"num_forwards": 1}]}, "least_us"),
        (
            {"forward_spacings": [{"num_forwards": 1, "least_us": 1 << 62, "ranks": [0]}]},
            "least_us",
        ),
        ({"idle_times": {}}, "idle_times"),
        (
            {"partitions": [{"sizes": [1], "certificate": {"prover": "partition bounds"}}]},
            "cannot rest on those of others",
        ),
    ],
)
def test_what_is_no_certificate_is_refused_with_its_field(
    change: dict[str, Any], told: str
) -> None:
    data = tight_plan().to_data()
    data["claim"]["certificate"] |= change
    with pytest.raises(SynthError, match=f"certificate[^\n]*{told}"):
        Plan.model_validate_file(data, "plan.json")
