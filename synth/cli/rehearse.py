"""`synth rehearse`: the ranks of a plan one after the other, on the one device at hand."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ChartWidthOption, ForceOption
from synth.cli.read.own_model import TrustOption
from synth.records.command_option import After, CommandOption
from synth.records.record import Record
from synth.run_options.rehearsal_options import RehearsalOptions


class RehearseRequest(Record):
    """The options of `synth rehearse`."""

    rehearsal: RehearsalOptions = RehearsalOptions()
    output: Annotated[
        Path | None,
        After("--inputs"),
        CommandOption("Write times and memory here, as JSON.", names=("--output", "-o")),
    ] = None
    trust: Annotated[TrustOption, After("--model")] = False
    width: ChartWidthOption = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file of `synth solve`.")],
    request: RehearseRequest,
) -> None:
    """Try PLAN, for any number of devices, on one: each rank alone for a few steps.

    Memory is measured as in a run, and the plan simulated again with the measured times.
    """
    from synth.cli.work.rehearse import work

    work(plan, request)
