"""`synth calibrate`: the factors of a device and a training program, from measured rows."""

from pathlib import Path
from typing import Annotated

from pydantic import PositiveInt

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ForceOption
from synth.cli.read.request import CommandRequest
from synth.records.command_option import CommandArgument, CommandOption
from synth.records.overwrite_guard import CALIBRATION


class CalibrateRequest(CommandRequest):
    """Fit the three factors of `synth estimate` to RUNS: matrices, memory, communication.

    Prints what each run leaves unexplained. Without runs that show a part, its factor stays near 1,
    and its uncertainty large.
    """

    runs: Annotated[
        str,
        CommandArgument(
            "CSV file of runs with their tokens_per_s_gpu, a measured profile, or a source of "
            "published runs (nemo, mlperf, megatron-2021, …).",
            metavar="RUNS",
        ),
    ]
    device: Annotated[
        str, CommandOption("Device of the runs, as of `synth estimate`.", metavar="DEVICE")
    ]
    software: Annotated[
        str | None,
        CommandOption(
            "Training program: megatron, megatron-2021, torchtitan, …",
            default="megatron, or that of a published source",
        ),
    ] = None
    model: Annotated[
        str | None, CommandOption("Model of a profile, as of `synth estimate`.", metavar="MODEL")
    ] = None
    rows: Annotated[
        PositiveInt | None,
        CommandOption("Use as many rows, those from which all are predicted best.", default="all"),
    ] = None
    output: Annotated[
        Path | None,
        CommandOption("Calibration file to write.", names=("--output", "-o"), default="none"),
        CALIBRATION,
    ] = None
    force: ForceOption = False
    format: FormatOption = Format.TEXT
