"""`synth schema`: the JSON Schema of a file format."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from synth.cli.read.request import CommandRequest
from synth.records.command_option import CommandArgument, CommandOption


class FileFormat(StrEnum):
    """A file format that has a schema."""

    PROFILE = "profile"
    PLAN = "plan"
    TRACE = "trace"
    CURVE = "curve"
    CHECKPOINT = "checkpoint"
    RUN = "run"


class SchemaRequest(CommandRequest):
    """Print the JSON Schema of a file format: profile, plan, trace, curve, checkpoint or run."""

    file_format: Annotated[
        FileFormat | None, CommandArgument("Kind of file.", metavar="FORMAT")
    ] = None
    folder: Annotated[
        Path | None,
        CommandOption("Write the schema, or those of all formats, into this folder."),
    ] = None
