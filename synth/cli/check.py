"""`synth check`: verify a plan file independently of its source."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.answer.check import (
    bound_json,
    costs_of,
    findings,
    fingerprint_of,
    how_the_bound_stands,
    raise_if_false,
)
from synth.cli.answer.output import Format, FormatOption, answer, answer_json, talk
from synth.errors import ExitCode, SynthError
from synth.options.arguments.groups import AtOnce, LinkTexts
from synth.options.deadline import read_time_limit
from synth.records.command_option import CommandOption
from synth.records.record import Record
from synth.report.text.tables import facts

if TYPE_CHECKING:
    import threading

    from synth.plan.reprove.reproof import Reproof
    from synth.profile import Profile
    from synth.schedule.files.plan_file import Plan
    from synth.schedule.simulate import Timeline

_LIMIT = "60s"


class ProofOptions(Record):
    """The options by which the lower bound of a plan is proven again."""

    time_limit: Annotated[
        str | None, CommandOption("With --prove: time limit, such as 60s or 2m.", default=_LIMIT)
    ] = None
    workers: Annotated[
        AtOnce | None,
        CommandOption("With --prove: number of solver threads.", default="all cores"),
    ] = None
    all_provers: Annotated[
        bool,
        CommandOption("With --prove: run all provers, not only that of PLAN's certificate."),
    ] = False


class CheckRequest(Record):
    """The options of `synth check`."""

    profile: Annotated[
        str | None,
        CommandOption(
            "Profile of PLAN, as a file or a shipped profile's name, from which its costs are "
            "derived again.",
            default="the shipped profile that PLAN names",
        ),
    ] = None
    link: LinkTexts = None
    prove: Annotated[bool, CommandOption("Prove the lower bound again with the solver.")] = False
    proof: ProofOptions = ProofOptions()
    format: FormatOption = Format.TEXT


def command(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.")],
    request: CheckRequest,
) -> None:
    """Verify a plan: complete, free of deadlock, within its memory limits, and as claimed.

    Lists what was verified and what is taken on trust. Exit code 5: the plan is wrong; 4: --prove
    did not prove the bound in time.
    """
    from synth.errors import Mismatch
    from synth.schedule.files.plan_file import Plan

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
    if request.format == Format.JSON:
        said = {"valid": True, "plan": plan.name, "proven": verified, "on_trust": on_trust}
        answer_json(said | bound_json(plan, proof))
    else:
        answer(f"{plan_path} is valid; verified here:\n{facts(verified)}")
        if on_trust:
            answer(f"taken on trust:\n{facts(on_trust)}")
    if proof is not None and not proof.is_proven:
        raise typer.Exit(ExitCode.NOTHING_FOUND)


def _prove(
    plan: "Plan",
    timeline: "Timeline",
    profile: "Profile | None",
    given: ProofOptions,
) -> "Reproof":
    from synth.cli.progress.interrupt import run_interruptibly
    from synth.plan.reprove.reprove import reprove
    from synth.solver.options import SolveOptions

    limit = given.time_limit or _LIMIT
    options = SolveOptions(time_limit_s=read_time_limit(limit), workers=given.workers)
    talk(f"proving the bound again, for {limit} at most")

    def work(stop: "threading.Event") -> "Reproof":
        return reprove(plan, timeline, options, profile, stop, all_provers=given.all_provers)

    return run_interruptibly(work)
