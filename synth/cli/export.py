"""`synth export`: a schedule in the format of another runtime."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.read.options import ForceOption
from synth.interop.export_format import ExportFormat
from synth.records.command_option import CommandOption
from synth.records.record import Record


class ExportRequest(Record):
    """The options of `synth export`."""

    to: Annotated[
        ExportFormat,
        CommandOption(
            "Format. torch: CSV for torch.distributed.pipelining, and beside it the layers "
            "and the rank of each stage; torchtitan: options as TOML, and beside it the CSV; "
            "megatron: value of --pipeline-model-parallel-layout; jaxpp: module with a schedule."
        ),
    ] = ExportFormat.TORCH
    output: Annotated[
        Path | None, CommandOption("File to write; - or none: stdout.", names=("--output", "-o"))
    ] = None
    layer: Annotated[
        list[str] | None,
        CommandOption(
            "What the format calls the layers of this name. torchtitan: modules, such as "
            "head=norm,output or moe=layers.{}, with {} for their number; megatron: a letter, such "
            "as mtp=m. Can be repeated.",
            metavar="NAME=TARGET",
        ),
    ] = None
    force: ForceOption = False


def command(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.")],
    request: ExportRequest,
) -> None:
    """Write a schedule for another runtime; `synth import` reads PyTorch's CSV again.

    The file is verified first.
    """
    from synth.cli.work.export import work

    work(plan_path, request)
