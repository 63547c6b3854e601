"""`synth export`: a schedule in the format of another runtime."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.answer.output import answer, talk
from synth.cli.read.options import ForceOption
from synth.cli.read.plans import load_checked
from synth.errors import SynthError
from synth.records.overwrite_guard import (
    JAXPP,
    MEGATRON,
    STAGE_TABLE,
    TORCH_CSV,
    TORCHTITAN,
    FileKind,
    check_replaceable,
)
from synth.records.record import check_outputs, is_stream, write_atomically
from synth.version import __version__

if TYPE_CHECKING:
    from synth.schedule.files.plan_file import Plan


class ExportFormat(StrEnum):
    """Format of the exported file."""

    TORCH = "torch"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    JAXPP = "jaxpp"


_KINDS: dict[ExportFormat, FileKind] = {
    ExportFormat.TORCH: TORCH_CSV,
    ExportFormat.TORCHTITAN: TORCHTITAN,
    ExportFormat.MEGATRON: MEGATRON,
    ExportFormat.JAXPP: JAXPP,
}


def command(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.")],
    to: Annotated[
        ExportFormat,
        typer.Option(
            help="Format. torch: CSV for torch.distributed.pipelining, and beside it the layers "
            "and the rank of each stage; torchtitan: options as TOML, and beside it the CSV; "
            "megatron: value of --pipeline-model-parallel-layout; jaxpp: module with a schedule."
        ),
    ] = ExportFormat.TORCH,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; stdout by default.")
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TARGET",
            help="What the format calls the layers of this name. torchtitan: modules, such as "
            "head=norm,output or moe=layers.{}, with {} for their number; megatron: a letter, such "
            "as mtp=m. Can be repeated.",
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write a schedule for another runtime; `synth import` reads PyTorch's CSV again.

    The file is verified first.
    """
    files = _files(to, output)
    check_outputs(*files, inputs=[plan_path])
    for path, kind in files.items():
        check_replaceable(path, kind, "-o", force)
    plan, _, _ = load_checked(plan_path)
    texts = dict(zip(files, _texts(plan, to, files), strict=True)) if files else {}
    if not files:
        answer(_text(plan, to, None).removesuffix("\n"))
    for path, text in texts.items():
        write_atomically(path, text)
    _tell_of_losses(plan, plan_path, to)
    if output is not None:
        copies = len(plan.placement)
        talk(
            f"{', '.join(map(str, files))}: {plan.num_ranks // copies} ranks, "
            f"{len(plan.partition)} stages, {plan.num_micro_batches // copies} micro-batches, "
            f"for {to}"
        )


def _files(to: ExportFormat, output: Path | None) -> dict[Path, FileKind]:
    """Return the files to write, the named one first.

    Raises:
        SynthError: torchtitan's options are to be written to stdout, or under the CSV's name.
    """
    from synth.interop.stage_table import beside

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
        csv = output.with_suffix(".csv")
        if csv == output:
            raise SynthError(
                f"torchtitan reads two files, and {output} would be both; the options and the CSV "
                f"need two names; give -o {output.with_suffix('.toml')}"
            )
        files[csv] = TORCH_CSV
    return files


def _texts(plan: "Plan", to: ExportFormat, files: dict[Path, FileKind]) -> list[str]:
    from synth.interop.stage_table import stage_table
    from synth.interop.torch_csv import to_torch_csv

    others = list(files)[1:]
    texts = [_text(plan, to, others[0] if others else None)]
    if others:
        is_torch = to == ExportFormat.TORCH
        texts.append(stage_table(plan) if is_torch else to_torch_csv(plan.schedule()))
    return texts


def _text(plan: "Plan", to: ExportFormat, other: Path | None) -> str:
    """Return the named file; `other` is the path of the file beside it."""
    if to == ExportFormat.MEGATRON:
        from synth.interop.megatron import to_megatron

        return f"{to_megatron(plan)}\n"
    if to == ExportFormat.JAXPP:
        from synth.interop.jaxpp import to_jaxpp

        return to_jaxpp(plan, __version__)
    if to == ExportFormat.TORCHTITAN:
        from synth.interop.torchtitan import to_torchtitan

        return to_torchtitan(plan, str(other))
    from synth.interop.torch_comms_csv import to_torch_comms_csv
    from synth.interop.torch_csv import to_torch_csv

    schedule = plan.schedule()
    return to_torch_csv(schedule) if schedule.weights is None else to_torch_comms_csv(schedule)


def _tell_of_losses(plan: "Plan", plan_path: Path, to: ExportFormat) -> None:
    """Say what the format does not carry."""
    from synth.report.text.tables import places

    if plan.recomputed_layers:
        talk(
            f"note: {plan_path} recomputes layers {places(plan.recomputed_layers)}, which the "
            f"format does not say; checkpoint them in the model, or it takes more memory than here"
        )
    if to == ExportFormat.TORCH and plan.schedule().weights is not None:
        talk(
            "note: the file is for one of the data-parallel pipelines, and lists collectives and "
            "transfers: wrap each stage in fully_shard over the data-parallel ranks, and load it "
            "with format='compute_comms'"
        )
    if to == ExportFormat.MEGATRON:
        if not plan.schedule().keeps_saved:
            talk(
                f"note: {plan_path} recomputes whole stages (R), which the layout does not say; "
                f"give Megatron-LM its own options of recomputation, or it takes more memory than "
                f"here"
            )
        talk(
            "note: the layout is the partition alone; Megatron-LM runs its own order of ops, 1F1B "
            "or interleaved 1F1B"
        )
