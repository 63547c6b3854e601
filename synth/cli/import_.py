"""`synth import`: make a plan file of another runtime's schedule."""

from pathlib import Path
from typing import Annotated

from synth.cli.read.request import CommandRequest
from synth.options.arguments.groups import LinkTexts, ProfileArgument
from synth.options.values import EVEN, Partition
from synth.records.command_option import CommandArgument, CommandOption
from synth.records.overwrite_guard import SCHEDULE


class ImportRequest(CommandRequest):
    """Read a schedule in PyTorch's CSV format, verify it, and write it with what it costs.

    The order and the placement are the file's; times and bytes are the profile's.
    """

    schedule: Annotated[
        Path, CommandArgument("Schedule of torch.distributed.pipelining.", metavar="CSV")
    ]
    profile: ProfileArgument
    output: Annotated[
        Path, CommandOption("Plan file to write.", names=("--output", "-o")), SCHEDULE
    ]
    partition: Annotated[
        Partition,
        CommandOption("Layers per stage, such as 3,3,2; even: balance the work of the ranks."),
    ] = EVEN
    link: LinkTexts = None
