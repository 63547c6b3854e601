"""`synth show`: a schedule as a Gantt chart and tables."""

from pathlib import Path
from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.arguments import is_file_name
from synth.cli.read.options import ChartWidthOption, ForceOption, PictureOption
from synth.cli.read.request import CommandRequest
from synth.errors import SynthError
from synth.options.ranges import read_ranges
from synth.records.command_option import CommandArgument, CommandOption
from synth.records.overwrite_guard import PAGE, PERFETTO, TRACE
from synth.records.record import Record
from synth.report.chart.excerpt import Excerpt
from synth.units import parse_seconds, shown

_WHERE = "in the chart and in --picture"


class ExcerptOptions(Record):
    """The part of a schedule that is drawn; by default all of it."""

    begin: Annotated[
        str | None,
        CommandOption(
            f"Draw from this time on, such as 250ms, {_WHERE}.",
            names=("--from",),
            metavar="TIME",
            default="the beginning",
        ),
    ] = None
    end: Annotated[
        str | None,
        CommandOption(
            f"Draw up to this time, {_WHERE}.", names=("--to",), metavar="TIME", default="the end"
        ),
    ] = None
    ranks: Annotated[
        str | None,
        CommandOption(
            f"Draw these ranks, such as 0-3,7, {_WHERE}.", metavar="RANKS", default="all"
        ),
    ] = None

    def read(self, num_ranks: int) -> Excerpt | None:
        """Read the options for a schedule of some ranks; None: everything is drawn.

        Raises:
            SynthError: not a time, or not ranks of the plan.
        """
        if self.begin is None and self.end is None and self.ranks is None:
            return None
        numbers = None if self.ranks is None else read_ranges(self.ranks, num_ranks)
        if self.ranks is not None and numbers is None:
            raise SynthError(
                f"--ranks {shown(self.ranks)} is not understood; write ranks from 0 to "
                f"{num_ranks - 1}, such as 0-3,7"
            )
        begin_us = 0 if self.begin is None else _microseconds(self.begin)
        end_us = None if self.end is None else _microseconds(self.end)
        return Excerpt(begin_us, end_us, numbers)


def _microseconds(text: str) -> int:
    return round(1e6 * parse_seconds(text))


class ShowRequest(CommandRequest):
    """Draw a plan as a Gantt chart, with a table of its ranks.

    The plan is verified first. Times are simulated from its costs.
    """

    plan: Annotated[Path, CommandArgument("Plan file.", metavar="PLAN")]
    width: ChartWidthOption = None
    measured: Annotated[
        Path | None,
        CommandOption("Trace of a run of PLAN (`synth run --trace`) to draw beside it."),
    ] = None
    trace: Annotated[
        Path | None, CommandOption("Write the simulated times here, as a trace file."), TRACE
    ] = None
    perfetto: Annotated[
        Path | None,
        CommandOption("Write the chart here, for ui.perfetto.dev or chrome://tracing."),
        PERFETTO,
    ] = None
    html: Annotated[
        Path | None,
        CommandOption(
            "Write charts and memory curves here, as one page for a browser that zooms and "
            "needs no network."
        ),
        PAGE,
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
    def others(self) -> list[str]:
        """The schedules to draw above the plan."""
        return self.against or []

    @property
    def draws_files(self) -> bool:
        """True if charts are written to files."""
        return bool(self.html or self.pictures or self.perfetto)

    def check_files(self, *inputs: Path | str | None) -> None:
        """Refuse files that cannot be written, and schedules without a file to draw them in."""
        if self.others and not self.draws_files:
            raise SynthError(
                "--against is for files; give --picture FILE, --html FILE or --perfetto FILE as "
                "well"
            )
        read = filter(is_file_name, self.others)
        super().check_files(self.plan, self.measured, *read, *inputs)
