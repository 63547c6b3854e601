"""`synth estimate`: a profile computed from a model's config and a device's numbers."""

from pathlib import Path
from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ForceOption
from synth.cli.read.request import CommandRequest
from synth.options.arguments.estimate import EstimateArguments
from synth.records.command_option import CommandOption
from synth.records.overwrite_guard import PROFILE


class EstimateRequest(CommandRequest):
    """Compute the profile of MODEL on a device that need not be there.

    Times and bytes come from tables of measured kernels and from formulas, and are marked as
    estimated wherever they are shown.
    """

    arguments: EstimateArguments
    output: Annotated[
        Path | None,
        CommandOption(
            "Profile file to write.", names=("--output", "-o"), default="none: only the table"
        ),
        PROFILE,
    ] = None
    name: Annotated[
        str | None, CommandOption("Name of the profile.", default="model, device and sizes")
    ] = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT
