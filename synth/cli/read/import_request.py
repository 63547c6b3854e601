"""The options of `synth import`."""

from pathlib import Path
from typing import Annotated

from synth.options.arguments.groups import LinkTexts, ProfileArgument
from synth.options.values import EVEN, Partition
from synth.records.command_option import CommandOption
from synth.records.record import Record


class ImportRequest(Record):
    """The costs of an imported schedule, and the file that it is written to."""

    profile: ProfileArgument
    output: Annotated[Path, CommandOption("Plan file to write.", names=("--output", "-o"))]
    partition: Annotated[
        Partition,
        CommandOption("Layers per stage, such as 3,3,2; even: balance the work of the ranks."),
    ] = EVEN
    link: LinkTexts = None
