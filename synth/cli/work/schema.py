"""The work of `synth schema`."""

import json

from synth.cli.answer.output import answer, talk
from synth.cli.schema import FileFormat, SchemaRequest
from synth.errors import SynthError
from synth.plan.memory_curve.curve_file import MemoryCurve
from synth.profile import Profile
from synth.records.json_schema import schema_name, schema_of
from synth.records.record import FileRecord
from synth.records.safe_write import check_folder, make_folder, write_atomically
from synth.report.run_file import RunFile
from synth.schedule.files.plan_file import Plan
from synth.schedule.measured.trace_file import Trace


def work(request: SchemaRequest) -> None:
    file_format, folder = request.file_format, request.folder
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


def _record_of(file_format: FileFormat) -> type[FileRecord]:
    """Return the record of a format; that of checkpoints needs torch."""
    match file_format:
        case FileFormat.PROFILE:
            return Profile
        case FileFormat.PLAN:
            return Plan
        case FileFormat.TRACE:
            return Trace
        case FileFormat.CURVE:
            return MemoryCurve
        case FileFormat.CHECKPOINT:
            from synth.runtime.checkpoint.manifest import Manifest

            return Manifest
        case FileFormat.RUN:
            return RunFile
