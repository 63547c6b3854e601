"""`synth compare`: the published schedules and the solver's on one profile."""

from pathlib import Path
from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import Columns, ForceOption, PictureOption, check_pictures, width_option
from synth.options.arguments.compare import CompareArguments
from synth.options.arguments.groups import OUTPUT
from synth.records.command_option import CommandOption
from synth.records.overwrite_guard import PAGE, check_replaceable
from synth.records.record import Record
from synth.records.safe_write import check_folder, check_outputs


class CompareRequest(Record):
    """The options of `synth compare`."""

    arguments: CompareArguments
    picture: Annotated[PictureOption, OUTPUT] = None
    html: Annotated[
        Path | None,
        OUTPUT,
        CommandOption(
            "Write table, plot and charts of all schedules here, as one page for a browser."
        ),
    ] = None
    save: Annotated[
        Path | None, OUTPUT, CommandOption("Folder to write the plan file of every row to.")
    ] = None
    width: Annotated[
        Columns | None, OUTPUT, width_option("table and plot", "the terminal's, or 80")
    ] = None
    force: Annotated[ForceOption, OUTPUT] = False
    format: Annotated[FormatOption, OUTPUT] = Format.TEXT

    @property
    def pictures(self) -> list[Path]:
        """The pictures to write."""
        return self.picture or []

    def check_files(self) -> None:
        """Refuse outputs that cannot be written, before work is spent on their contents."""
        check_outputs(*self.pictures, self.html, inputs=[self.arguments.pipeline.profile_file])
        check_pictures(self.pictures, self.force)
        check_replaceable(self.html, PAGE, "--html", self.force)
        check_folder("--save", self.save)


def command(request: CompareRequest) -> None:
    """Compare the published schedules, each on its own placement, with those of the solver.

    Sorted by the objective. Schedules that do not apply are listed with the reason.
    """
    from synth.cli.work.compare import work

    work(request)
