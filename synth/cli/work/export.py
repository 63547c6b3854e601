"""The work of `synth export`."""

from pathlib import Path

from synth.cli.answer.output import answer, talk
from synth.cli.export import ExportRequest
from synth.cli.read.plans import load_checked
from synth.errors import SynthError
from synth.interop.export_format import ExportFormat
from synth.interop.exported import exported_texts, losses
from synth.interop.stage_table import beside
from synth.records.overwrite_guard import (
    JAXPP,
    MEGATRON,
    STAGE_TABLE,
    TORCH_CSV,
    TORCHTITAN,
    FileKind,
    check_replaceable,
)
from synth.records.safe_write import check_outputs, is_stream, write_together
from synth.units import counted, shown

_KINDS: dict[ExportFormat, FileKind] = {
    ExportFormat.TORCH: TORCH_CSV,
    ExportFormat.TORCHTITAN: TORCHTITAN,
    ExportFormat.MEGATRON: MEGATRON,
    ExportFormat.JAXPP: JAXPP,
}

# As the name of the output: stdout.
_STDOUT = Path("-")


def work(request: ExportRequest) -> None:
    to, output = request.to, None if request.output == _STDOUT else request.output
    names = _layer_names(to, request.layer or [])
    files = _files(to, output)
    check_outputs(*files, inputs=[request.plan])
    for path, kind in files.items():
        check_replaceable(path, kind, "-o", request.force)
    plan, _, _ = load_checked(request.plan)
    texts = exported_texts(plan, to, names, *map(str, list(files)[1:]))
    if files:
        write_together(dict(zip(files, texts, strict=True)))
    else:
        answer(texts[0].removesuffix("\n"))
    for note in losses(plan, str(request.plan), to, names):
        talk(note)
    if output is not None:
        copies = len(plan.placement)
        talk(
            f"{', '.join(map(str, files))}: {counted(plan.num_ranks // copies, 'rank')}, "
            f"{counted(len(plan.partition), 'stage')}, "
            f"{counted(plan.num_micro_batches // copies, 'micro-batch')}, for {to}"
        )


def _layer_names(to: ExportFormat, given: list[str]) -> dict[str, str]:
    """Read `--layer`: the format's names of layers, by the names of the layers.

    Raises:
        SynthError: one is no NAME=TARGET, or the format has no names of layers.
    """
    if given and to not in (ExportFormat.TORCHTITAN, ExportFormat.MEGATRON):
        raise SynthError(
            f"--layer is for --to torchtitan and --to megatron; the format {to} has no names of "
            f"layers: leave it out"
        )
    parts = [text.partition("=") for text in given]
    wrong = next((part for part in parts if not part[0] or not part[1]), None)
    if wrong is not None:
        raise SynthError(
            f"--layer {shown(''.join(wrong))} is not understood; write NAME=TARGET, such as mtp=m"
        )
    return {name: target for name, _, target in parts}


def _files(to: ExportFormat, output: Path | None) -> dict[Path, FileKind]:
    """Return the files to write, the named one first.

    Raises:
        SynthError: torchtitan's options are to be written to stdout, or under the CSV's name.
    """
    if output is None or is_stream(output):
        if to == ExportFormat.TORCHTITAN:
            raise SynthError(
                "torchtitan reads two files, the options and the CSV; give -o plan.toml, and "
                "plan.csv is written beside it"
            )
        return {} if output is None else {output: _KINDS[to]}
    files = {output: _KINDS[to]}
    if to == ExportFormat.TORCH:
        files[beside(output)] = STAGE_TABLE
    if to == ExportFormat.TORCHTITAN:
        files[_csv_beside(output)] = TORCH_CSV
    return files


def _csv_beside(options: Path) -> Path:
    """Return the path of the CSV: `plan.csv`, or `plan.schedule.csv` if that is another file.

    A table of times may have the name, from which the plan's profile was made.

    Raises:
        SynthError: the options are to be written under the CSV's name.
    """
    csv = options.with_suffix(".csv")
    if csv == options:
        raise SynthError(
            f"torchtitan reads two files, and {options} would be both; the options and the CSV "
            f"need two names; give -o {options.with_suffix('.toml')}"
        )
    is_free = not csv.is_file() or not csv.stat().st_size or TORCH_CSV.is_kind_of(csv)
    return csv if is_free else csv.with_suffix(".schedule.csv")
