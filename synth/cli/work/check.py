"""The work of `synth check`."""

import threading
from pathlib import Path

import typer

from synth.cli.answer.check import (
    bound_json,
    findings,
    fingerprint_of,
    how_the_bound_stands,
    raise_if_false,
)
from synth.cli.answer.output import Format, answer, answer_json, talk
from synth.cli.check import PROOF_LIMIT_S, CheckRequest, ProofOptions
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.read.plans import estimate_on_trust
from synth.errors import ExitCode, Mismatch, SynthError
from synth.options.plan_profile import costs_of
from synth.plan.reprove.reproof import Reproof
from synth.profile import Profile
from synth.report.text.tables import facts
from synth.schedule.files.plan_file import Plan
from synth.schedule.simulate import Timeline
from synth.solver.options import SolveOptions


def work(plan_path: Path, request: CheckRequest) -> None:
    """Verify a plan: complete, free of deadlock, within its memory limits, and as claimed."""
    if not request.prove and request.proof != ProofOptions():
        raise SynthError(
            "--time-limit, --workers and --all-provers are for --prove; give it, or leave them out"
        )
    data = Plan.read_data(plan_path)
    plan = Plan.model_validate_file(data, str(plan_path))
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
        answer(f"{plan_path} is valid; verified here:\n{facts(verified)}")
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
