"""Options for the part of a schedule that is drawn: a range of time, and some ranks."""

from typing import TYPE_CHECKING, Annotated

import typer

from synth.errors import SynthError
from synth.options.ranges import read_ranges
from synth.units import parse_seconds, shown

if TYPE_CHECKING:
    from synth.report.chart.excerpt import Excerpt

_WHERE = "in the chart and in --picture"

BeginOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help=f"Draw from this time on, such as 250ms, {_WHERE}.",
        show_default="the beginning",
    ),
]
EndOption = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="TIME", help=f"Draw up to this time, {_WHERE}.", show_default="the end"
    ),
]
ShownRanksOption = Annotated[
    str | None,
    typer.Option(
        metavar="RANKS", help=f"Draw these ranks, such as 0-3,7, {_WHERE}.", show_default="all"
    ),
]


def read_excerpt(
    begin: str | None, end: str | None, ranks: str | None, num_ranks: int
) -> "Excerpt | None":
    """Read the three options; None: everything is drawn.

    Raises:
        SynthError: not a time, or not ranks of the plan.
    """
    from synth.report.chart.excerpt import Excerpt

    if begin is None and end is None and ranks is None:
        return None
    numbers = None if ranks is None else read_ranges(ranks, num_ranks)
    if ranks is not None and numbers is None:
        raise SynthError(
            f"--ranks {shown(ranks)} is not understood; write ranks from 0 to {num_ranks - 1}, "
            f"such as 0-3,7"
        )
    times_us = [None if text is None else round(1e6 * parse_seconds(text)) for text in (begin, end)]
    return Excerpt(times_us[0] or 0, times_us[1], numbers)
