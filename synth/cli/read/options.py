"""Options that several commands share, besides those of `synth.options.arguments`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from synth.records.command_option import CommandOption
from synth.records.overwrite_guard import PICTURE

ForceOption = Annotated[
    bool, CommandOption("Overwrite existing files even if synth did not write them.")
]

# Most columns of a plot: far more than any terminal has.
MOST_COLUMNS = 10_000

Columns = Annotated[int, Field(ge=40, le=MOST_COLUMNS)]


def width_option(what: str, default: str) -> CommandOption:
    """Declare `--width` of something that a command draws, with its default in words."""
    return CommandOption(f"Width of {what} in columns.", default=default)


ChartWidthOption = Annotated[Columns | None, width_option("the chart", "the terminal's, or 100")]

PictureOption = Annotated[
    list[Path] | None,
    CommandOption(
        "Write the picture here, as SVG, PNG or PDF by the file's suffix. Can be repeated.",
        names=("--picture", "--svg"),
        metavar="FILE",
    ),
    PICTURE,
]
