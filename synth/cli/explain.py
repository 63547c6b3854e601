"""`synth explain`: what holds a plan back, and what changes would give."""

from pathlib import Path
from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ForceOption
from synth.cli.read.request import CommandRequest
from synth.options.arguments.groups import AtOnce, LinkTexts
from synth.options.values import TimeLimit
from synth.records.command_option import CommandArgument, CommandOption
from synth.records.overwrite_guard import PAGE

EXPLAIN_LIMIT_S = 10


class ExplainRequest(CommandRequest):
    """Explain a plan: its critical path, idle time by cause, and what changes would give.

    The plan is verified first. Every figure is simulated or searched for, none is estimated.
    """

    plan: Annotated[Path, CommandArgument("Plan file.", metavar="PLAN")]
    time_limit: Annotated[
        TimeLimit | None,
        CommandOption(
            "Time limit of all that changes would give, such as 10s or 1m.",
            default=f"{EXPLAIN_LIMIT_S:g}s",
        ),
    ] = None
    workers: Annotated[
        AtOnce | None, CommandOption("Number of solver threads.", default="all cores")
    ] = None
    profile: Annotated[
        str | None,
        CommandOption(
            "Profile of PLAN, as a file or a shipped profile's name, for moved and recomputed "
            "layers.",
            default="the shipped profile that PLAN names",
        ),
    ] = None
    link: LinkTexts = None
    html: Annotated[
        Path | None,
        CommandOption("Write the page of `synth show --html` with the explanation here."),
        PAGE,
    ] = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT
