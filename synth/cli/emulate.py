"""`synth emulate`: a plan replayed by real processes, on emulated devices."""

from pathlib import Path
from typing import Annotated, ClassVar

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ChartWidthOption, ForceOption
from synth.cli.read.request import CommandRequest
from synth.records.command_option import After, CommandArgument, CommandOption
from synth.records.overwrite_guard import TRACE
from synth.run_options.emulation_options import EmulationOptions


class EmulateRequest(CommandRequest):
    """Replay PLAN on emulated devices: one process per rank on this machine, no model needed.

    Order, overlap, memory and synchronization are those of the real executor.
    """

    launches_ranks: ClassVar[bool] = True
    plan: Annotated[Path, CommandArgument("Plan file, also of a shipped profile.", metavar="PLAN")]
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
        TRACE,
    ] = None
    width: ChartWidthOption = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT
