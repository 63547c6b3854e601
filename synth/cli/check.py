"""`synth check`: verify a plan file independently of its source."""

from pathlib import Path
from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.request import CommandRequest
from synth.options.arguments.groups import AtOnce, LinkTexts
from synth.options.values import TimeLimit
from synth.records.command_option import CommandArgument, CommandOption
from synth.records.record import Record

PROOF_LIMIT_S = 60


class ProofOptions(Record):
    """The options by which the lower bound of a plan is proven again."""

    time_limit: Annotated[
        TimeLimit | None,
        CommandOption(
            "With --prove: time limit, such as 60s or 2m.", default=f"{PROOF_LIMIT_S:g}s"
        ),
    ] = None
    workers: Annotated[
        AtOnce | None, CommandOption("With --prove: number of solver threads.", default="all cores")
    ] = None
    all_provers: Annotated[
        bool, CommandOption("With --prove: run all provers, not only that of PLAN's certificate.")
    ] = False


class CheckRequest(CommandRequest):
    """Verify a plan: complete, free of deadlock, within its memory limits, and as claimed.

    Lists what was verified and what is taken on trust. Exit code 5: the plan is wrong; 4: --prove
    did not prove the bound in time.
    """

    plan: Annotated[Path, CommandArgument("Plan file.", metavar="PLAN")]
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
