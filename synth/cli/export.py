"""`synth export`: a schedule in the format of another runtime."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from synth.cli.read.options import ForceOption


class ExportFormat(StrEnum):
    """Format of the exported file."""

    TORCH = "torch"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    JAXPP = "jaxpp"


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
        Path | None, typer.Option("--output", "-o", help="File to write; - or none: stdout.")
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
    from synth.cli.work.export import work

    work(plan_path, to, output, layer, force)
