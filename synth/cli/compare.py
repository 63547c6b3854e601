"""`synth compare`: the published schedules and the solver's on one profile."""

from pathlib import Path
from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import Columns, ForceOption, PictureOption, width_option
from synth.cli.read.request import CommandRequest
from synth.options.arguments.compare import CompareArguments
from synth.options.arguments.groups import OUTPUT
from synth.records.command_option import CommandOption
from synth.records.overwrite_guard import PAGE
from synth.records.safe_write import check_folder


class CompareRequest(CommandRequest):
    """Compare the published schedules, each on its own placement, with those of the solver.

    Sorted by the objective. Schedules that do not apply are listed with the reason.
    """

    arguments: CompareArguments
    picture: Annotated[PictureOption, OUTPUT] = None
    html: Annotated[
        Path | None,
        OUTPUT,
        CommandOption(
            "Write table, plot and charts of all schedules here, as one page for a browser."
        ),
        PAGE,
    ] = None
    save: Annotated[
        Path | None, OUTPUT, CommandOption("Folder to write the plan file of every row to.")
    ] = None
    width: Annotated[
        Columns | None, OUTPUT, width_option("table and plot", "the terminal's, or 80")
    ] = None
    force: Annotated[ForceOption, OUTPUT] = False
    format: Annotated[FormatOption, OUTPUT] = Format.TEXT

    def check_files(self, *inputs: Path | str | None) -> None:
        """Refuse files and a folder that cannot be written."""
        super().check_files(*inputs)
        check_folder("--save", self.save)
