"""Options for the part of a schedule that is drawn: a range of time, and some ranks."""

from typing import Annotated

from synth.errors import SynthError
from synth.options.ranges import read_ranges
from synth.records.command_option import CommandOption
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
