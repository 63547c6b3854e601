"""`synth schema`: the JSON Schema of a file format."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class FileFormat(StrEnum):
    """A file format that has a schema."""

    PROFILE = "profile"
    PLAN = "plan"
    TRACE = "trace"
    CURVE = "curve"
    CHECKPOINT = "checkpoint"
    RUN = "run"


def command(
    file_format: Annotated[
        FileFormat | None, typer.Argument(metavar="FORMAT", help="Kind of file.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Write the schema, or those of all formats, into this folder."),
    ] = None,
) -> None:
    """Print the JSON Schema of a file format: profile, plan, trace, curve, checkpoint or run."""
    from synth.cli.work.schema import work

    work(file_format, folder)
