"""`synth schema`: the JSON Schema of a file format."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.answer.output import answer, talk
from synth.errors import SynthError
from synth.records.record import check_folder, make_folder, write_atomically

if TYPE_CHECKING:
    from synth.records.record import FileRecord


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
    from synth.records.json_schema import schema_name, schema_of

    if file_format is None and folder is None:
        names = ", ".join(FileFormat)
        raise SynthError(f"give a format ({names}), or --folder FOLDER for the schemas of all")
    formats = list(FileFormat) if file_format is None else [file_format]
    check_folder("--folder", folder)
    for each in formats:
        record = _record_of(each)
        text = json.dumps(schema_of(record), indent=1) + "\n"
        if folder is None:
            answer(text.removesuffix("\n"))
            continue
        make_folder(folder)
        path = folder / f"{schema_name(record)}.json"
        write_atomically(path, text)
        talk(f"written: {path}")


def _record_of(file_format: FileFormat) -> "type[FileRecord]":
    """Import the record of a format; only that of checkpoints needs torch."""
    match file_format:
        case FileFormat.PROFILE:
            from synth.profile import Profile

            return Profile
        case FileFormat.PLAN:
            from synth.schedule.files.plan_file import Plan

            return Plan
        case FileFormat.TRACE:
            from synth.schedule.measured.trace_file import Trace

            return Trace
        case FileFormat.CURVE:
            from synth.plan.memory_curve.curve_file import MemoryCurve

            return MemoryCurve
        case FileFormat.CHECKPOINT:
            from synth.runtime.checkpoint.manifest import Manifest

            return Manifest
        case FileFormat.RUN:
            from synth.report.run_file import RunFile

            return RunFile
