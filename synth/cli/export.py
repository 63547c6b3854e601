"""`synth export`: a schedule in the format of another runtime."""

from pathlib import Path
from typing import Annotated

from synth.cli.read.options import ForceOption
from synth.cli.read.request import CommandRequest
from synth.interop.export_format import ExportFormat
from synth.records.command_option import CommandArgument, CommandOption


class ExportRequest(CommandRequest):
    """Write a schedule for another runtime; `synth import` reads PyTorch's CSV again.

    The file is verified first.
    """

    plan: Annotated[Path, CommandArgument("Plan file.", metavar="PLAN")]
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
