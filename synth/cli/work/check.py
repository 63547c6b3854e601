"""The work of `synth check`."""

import threading
from collections.abc import Mapping
from typing import Any

import typer

from synth.cli.answer.output import Format, answer, answer_json, talk
from synth.cli.check import PROOF_LIMIT_S, CheckRequest, ProofOptions
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.read.plans import estimate_on_trust
from synth.errors import ExitCode, Mismatch, SynthError
from synth.options.plan_profile import Facts, costs_of
from synth.plan.reprove.reproof import Reproof
from synth.profile import Profile
from synth.report.text.tables import facts
from synth.schedule.files.fingerprint import misfit, stored_fingerprint
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.simulate import Timeline
from synth.solver.options import SolveOptions
from synth.units import format_bytes_both


def work(request: CheckRequest) -> None:
    if not request.prove and request.proof != ProofOptions():
        raise SynthError(
            "--time-limit, --workers and --all-provers are for --prove; give it, or leave them out"
        )
    data = Plan.read_data(request.plan)
    plan = Plan.model_validate_file(data, str(request.plan))
    try:
        lowered, timeline = plan.check()
        verified, on_trust = findings(plan, lowered, timeline), dict[str, str]()
        fingerprint_of(data, verified, on_trust)
        found = costs_of(plan, request.profile, request.link, verified, on_trust)
        proof = None
        if request.prove:
            proof = _prove(plan, timeline, found, request.proof)
        raise_if_false(plan, proof)
    except Mismatch as error:
        if request.format == Format.JSON:
            answer_json({"valid": False, "plan": plan.name, "message": str(error)})
        raise
    how_the_bound_stands(plan, proof, verified, on_trust)
    on_trust |= estimate_on_trust(plan)
    if request.format == Format.JSON:
        said = {"valid": True, "plan": plan.name, "proven": verified, "on_trust": on_trust}
        answer_json(said | bound_json(plan, proof))
    else:
        answer(f"{request.plan} is valid; verified here:\n{facts(verified)}")
        if on_trust:
            answer(f"taken on trust:\n{facts(on_trust)}")
    if proof is not None and not proof.is_proven:
        raise typer.Exit(ExitCode.NOTHING_FOUND)


def _prove(plan: Plan, timeline: Timeline, profile: Profile | None, given: ProofOptions) -> Reproof:
    from synth.plan.reprove.reprove import reprove

    limit_s = given.time_limit or PROOF_LIMIT_S
    options = SolveOptions(time_limit_s=limit_s, workers=given.workers)
    talk(f"proving the bound again, for {limit_s:g}s at most")

    def prove(stop: threading.Event) -> Reproof:
        return reprove(plan, timeline, options, profile, stop, all_provers=given.all_provers)

    return run_interruptibly(prove)


def findings(plan: Plan, lowered: Lowered, timeline: Timeline) -> Facts:
    """Return the facts that a successful check of the schedule has verified."""
    num_ops, steady = sum(map(len, lowered.ops)), plan.claim.steady
    in_full = {}
    if steady is not None:
        in_full["steady state"] = f"{steady.micro_batch_us:.1f} µs of a micro-batch, simulated"
    group = plan.workload.group
    of_group = {} if group is None else {"devices": group.layout(plan.num_ranks)}
    return {
        **of_group,
        "complete": f"{num_ops} ops; each of {plan.num_micro_batches} micro-batches passes each of "
        f"{len(plan.partition)} stages once",
        "ordered": "no op stands before one whose result it reads",
        "free of deadlock": f"{len(lowered.transfers)} transfers, in order on each link",
        "memory": _closest_call(plan),
        "as claimed": f"makespan {timeline.makespan_us} µs, period {timeline.period_us} µs, "
        "and every rank's peak, simulated from the costs in the file",
        **in_full,
    }


def _closest_call(plan: Plan) -> str:
    peaks, caps = plan.claim.peak_bytes, plan.caps_bytes
    if caps is None:
        rank = max(range(len(peaks)), key=lambda r: peaks[r])
        return (
            f"no memory limit; the highest peak is {format_bytes_both(peaks[rank])} on rank {rank}"
        )
    rank = min(range(len(peaks)), key=lambda r: caps[r] - peaks[r])
    return (
        f"every rank is within its memory limit; the closest is rank {rank} with "
        f"{format_bytes_both(peaks[rank])} of {format_bytes_both(caps[rank])}"
    )


def fingerprint_of(data: Mapping[str, Any], verified: Facts, on_trust: Facts) -> None:
    """Compare a file with the fingerprint in it, if it has one.

    Raises:
        Mismatch: it does not match; names the changed fields.
    """
    if stored_fingerprint(data) is None:
        on_trust["unchanged"] = (
            "the file is from before plans had a fingerprint: whether it was changed since it was "
            "written cannot be told"
        )
        return
    reason = misfit(data)
    if reason is not None:
        raise Mismatch(reason)
    verified["unchanged"] = "the file is as it was written: its fingerprint fits every field"


def raise_if_false(plan: Plan, proof: Reproof | None) -> None:
    """Refuse a plan whose bound was disproved.

    Raises:
        Mismatch: a schedule was found that is faster.
    """
    if proof is not None and proof.witness_us is not None:
        raise Mismatch(
            f"the claimed bound is false: lower_bound_us is {plan.claim.lower_bound_us}, and a "
            f"schedule of {proof.witness_us} µs was found; solve again"
        )


def how_the_bound_stands(
    plan: Plan, proof: Reproof | None, verified: Facts, on_trust: Facts
) -> None:
    """Say whether the lower bound is verified or taken on trust."""
    claim = plan.claim
    bound = f"the lower bound, {claim.lower_bound_us} µs of {claim.judged_by.words}"
    if proof is None:
        on_trust["bound"] = f"{bound} for {plan.bound_scope}; --prove proves it again"
        return
    if not proof.is_proven:
        why = "not proven again within the limit"
        if proof.is_refuted:
            why = "the certificate in the plan does not prove it; --all-provers leaves that aside"
        on_trust["bound"] = (
            f"{bound} for {plan.bound_scope}: {why}; "
            f"{proof.reached_us} µs was reached in {proof.seconds:.1f} s"
        )
        return
    verified["bound"] = (
        f"{bound}: proven again for {proof.holds_for}, in {proof.seconds:.1f} s, by "
        f"{proof.proven_from}"
    )
    if proof.on_trust is not None:
        on_trust["bound"] = proof.on_trust


def bound_json(plan: Plan, proof: Reproof | None) -> dict[str, Any]:
    """Render the outcome of --prove for scripts; nothing if it was not asked for."""
    if proof is None:
        return {}
    return {
        "bound": {
            "verdict": proof.verdict.value,
            "claimed_us": plan.claim.lower_bound_us,
            "reached_us": proof.reached_us,
            "holds_for": proof.holds_for,
            "proven_from": proof.proven_from if proof.is_proven else None,
            "certificate_is_refuted": proof.is_refuted,
            "seconds": round(proof.seconds, 3),
        }
    }
