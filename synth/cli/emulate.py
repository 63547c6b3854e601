"""`synth emulate`: a plan replayed by real processes, on emulated devices."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ChartWidthOption, ForceOption
from synth.records.command_option import After, CommandOption
from synth.records.record import Record
from synth.run_options.emulation_options import EmulationOptions
from synth.system.processors import limit_ranks


class EmulateRequest(Record):
    """The options of `synth emulate`."""

    emulation: EmulationOptions = EmulationOptions()
    times: Annotated[float, After("--steps"), CommandOption("Factor for all times.")] = 1.0
    sizes: Annotated[
        float | None,
        After("--times"),
        CommandOption(
            "Factor for all sizes; transfers keep their times.",
            default="1, or the power of ten that this machine can transfer in time",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        After("--sizes"),
        CommandOption("Write the times of all ops and transfers here, as JSON."),
    ] = None
    width: ChartWidthOption = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT


def command(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Plan file, also of a shipped profile.")
    ],
    request: EmulateRequest,
) -> None:
    """Replay PLAN on emulated devices: one process per rank on this machine, no model needed.

    Order, overlap, memory and synchronization are those of the real executor.
    """
    limit_ranks()
    from synth.cli.work.emulate import work

    work(plan, request)
