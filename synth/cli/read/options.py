"""Options that several commands share, besides those of `synth.options.arguments`."""

from typing import Annotated, Any

import typer

ForceOption = Annotated[
    bool, typer.Option("--force", help="Overwrite existing files even if synth did not write them.")
]

# Most columns of a plot: far more than any terminal has.
MOST_COLUMNS = 10_000


def width_option(what: str, default: str) -> Any:
    """Declare `--width` of something that a command draws, with its default in words."""
    return typer.Option(
        min=40, max=MOST_COLUMNS, help=f"Width of {what} in columns.", show_default=default
    )


ChartWidthOption = Annotated[int | None, width_option("the chart", "the terminal's, or 100")]
