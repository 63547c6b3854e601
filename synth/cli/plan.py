"""`synth plan`: the best layout of a whole run on devices that need not be there."""

from pathlib import Path
from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ForceOption
from synth.cli.read.request import CommandRequest
from synth.options.arguments.groups import OUTPUT
from synth.options.arguments.plan import LayoutArguments
from synth.records.command_option import CommandOption
from synth.records.overwrite_guard import SCHEDULE


class PlanRequest(CommandRequest):
    """Choose the layout of MODEL's training: tensor, context, expert, data, pipeline parallelism.

    Every legal layout has a lower bound on its time; those that can win are judged by published
    schedules, and the best are solved. Times and bytes are those of `synth estimate`.
    """

    arguments: LayoutArguments
    output: Annotated[
        Path | None,
        OUTPUT,
        CommandOption("Plan file of the pipeline to write.", names=("--output", "-o")),
        SCHEDULE,
    ] = None
    force: Annotated[ForceOption, OUTPUT] = False
    format: Annotated[FormatOption, OUTPUT] = Format.TEXT
