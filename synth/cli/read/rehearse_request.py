"""The request of `synth rehearse`: which ranks, and where the results go."""

from pathlib import Path
from typing import Annotated

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
        CommandOption(
            "Write times and memory here, as JSON.",
            names=("--output", "-o"),
        ),
    ] = None
    trust: Annotated[TrustOption, After("--model")] = False
    width: ChartWidthOption = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT
