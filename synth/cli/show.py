"""`synth show`: a schedule as a Gantt chart and tables."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.arguments import is_file_name
from synth.cli.read.excerpt import ExcerptOptions
from synth.cli.read.options import ChartWidthOption, ForceOption
from synth.cli.read.pictures import PictureOption, check_pictures
from synth.errors import SynthError
from synth.records.command_option import CommandOption
from synth.records.overwrite_guard import PAGE, PERFETTO, TRACE, check_replaceable
from synth.records.record import Record
from synth.records.safe_write import check_outputs


class ShowRequest(Record):
    """The options of `synth show`."""

    width: ChartWidthOption = None
    measured: Annotated[
        Path | None,
        CommandOption("Trace of a run of PLAN (`synth run --trace`) to draw beside it."),
    ] = None
    trace: Annotated[
        Path | None, CommandOption("Write the simulated times here, as a trace file.")
    ] = None
    perfetto: Annotated[
        Path | None, CommandOption("Write the chart here, for ui.perfetto.dev or chrome://tracing.")
    ] = None
    html: Annotated[
        Path | None,
        CommandOption(
            "Write charts and memory curves here, as one page for a browser that zooms and "
            "needs no network."
        ),
    ] = None
    picture: PictureOption = None
    against: Annotated[
        list[str] | None,
        CommandOption(
            "Another plan file, or a published schedule on the costs of PLAN, to draw above "
            "it in --html, --picture and --perfetto. Can be repeated."
        ),
    ] = None
    excerpt: ExcerptOptions = ExcerptOptions()
    memory: Annotated[
        bool,
        CommandOption(
            "Draw the memory of each rank in --picture.", names=("--memory/--no-memory",)
        ),
    ] = True
    force: ForceOption = False
    format: FormatOption = Format.TEXT

    @property
    def pictures(self) -> list[Path]:
        """The pictures to write."""
        return self.picture or []

    @property
    def others(self) -> list[str]:
        """The schedules to draw above the plan."""
        return self.against or []

    @property
    def draws_files(self) -> bool:
        """True if charts are written to files."""
        return bool(self.html or self.pictures or self.perfetto)

    def check_files(self, plan: Path) -> None:
        """Refuse files that cannot be written, before work is spent on their contents.

        Args:
            plan: the file of the plan, which must not be lost.

        Raises:
            SynthError: there is one; or other schedules are given and no file to draw them in.
        """
        if self.others and not self.draws_files:
            raise SynthError(
                "--against is for files; give --picture FILE, --html FILE or --perfetto FILE as "
                "well"
            )
        check_outputs(
            self.trace,
            self.perfetto,
            self.html,
            *self.pictures,
            inputs=[plan, self.measured, *filter(is_file_name, self.others)],
        )
        check_replaceable(self.trace, TRACE, "--trace", self.force)
        check_replaceable(self.perfetto, PERFETTO, "--perfetto", self.force)
        check_replaceable(self.html, PAGE, "--html", self.force)
        check_pictures(self.pictures, self.force)


def command(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.")],
    request: ShowRequest,
) -> None:
    """Draw a plan as a Gantt chart, with a table of its ranks.

    The plan is verified first. Times are simulated from its costs.
    """
    from synth.cli.work.show import work

    work(plan_path, request)
