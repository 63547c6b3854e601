"""`synth frontier`: the Pareto front of time and memory limit, with lower bounds."""

from pathlib import Path
from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import (
    Columns,
    ForceOption,
    PictureOption,
    width_option,
)
from synth.cli.read.request import CommandRequest
from synth.options.arguments.curve import CurveArguments
from synth.options.arguments.groups import OUTPUT
from synth.records.command_option import After, CommandOption
from synth.records.overwrite_guard import PAGE
from synth.records.safe_write import check_folder, check_outputs


class FrontierRequest(CommandRequest):
    """Trace the Pareto front of time and memory limit, from the smallest feasible limit on.

    Every point is a plan with a proven lower bound. Ctrl-C keeps the points found so far, and the
    same command continues from them. Only one process at a time may write a curve.
    """

    arguments: CurveArguments
    output: Annotated[
        Path,
        After("--micro-batches"),
        CommandOption(
            "Curve file, written after every point; an existing one is continued.",
            names=("--output", "-o"),
        ),
    ]
    picture: Annotated[PictureOption, OUTPUT] = None
    html: Annotated[
        Path | None,
        OUTPUT,
        CommandOption(
            "Write table, plot and the charts of all points here, as one page for a browser."
        ),
        PAGE,
    ] = None
    save: Annotated[
        Path | None, OUTPUT, CommandOption("Folder to write the plan file of every point to.")
    ] = None
    width: Annotated[
        Columns | None, OUTPUT, width_option("table and plot", "the terminal's, or 100")
    ] = None
    force: Annotated[ForceOption, OUTPUT] = False
    format: Annotated[FormatOption, OUTPUT] = Format.TEXT

    def check_files(self, *inputs: Path | str | None) -> None:
        """Refuse files and a folder that cannot be written, also in each other's place."""
        check_outputs(self.output, self.html, *self.pictures, inputs=inputs)
        super().check_files(*inputs)
        check_folder("--save", self.save)
