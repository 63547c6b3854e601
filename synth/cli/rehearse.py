"""`synth rehearse`: the ranks of a plan one after the other, on the one device at hand."""

from pathlib import Path
from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ChartWidthOption, ForceOption
from synth.cli.read.own_model import TrustOption
from synth.cli.read.request import CommandRequest
from synth.records.command_option import After, CommandArgument, CommandOption
from synth.records.overwrite_guard import RUN
from synth.run_options.rehearsal_options import RehearsalOptions


class RehearseRequest(CommandRequest):
    """Try PLAN, for any number of devices, on one: each rank alone for a few steps.

    Memory is measured as in a run, and the plan simulated again with the measured times.
    """

    plan: Annotated[Path, CommandArgument("Plan file of `synth solve`.", metavar="PLAN")]
    rehearsal: RehearsalOptions = RehearsalOptions()
    output: Annotated[
        Path | None,
        After("--inputs"),
        CommandOption("Write times and memory here, as JSON.", names=("--output", "-o")),
        RUN,
    ] = None
    trust: Annotated[TrustOption, After("--model")] = False
    width: ChartWidthOption = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT
