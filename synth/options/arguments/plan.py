"""The arguments of the choice of a layout: the model, the devices, the batch, and the program."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from synth.estimates.layout import Precision
from synth.options.arguments.estimate import (
    DEFAULT_OPTIMIZER,
    MOST_GPUS,
    CalibrationOption,
    DeviceOption,
    DtypeOption,
    Fp8ParamGatherOption,
    GpusPerNodeOption,
    ModelArgument,
    OptimizerOption,
)
from synth.options.arguments.groups import LIMIT_DEFAULT, SEARCH, AtOnce
from synth.options.values import Count, Limit, TimeLimit, texts_like
from synth.plan.runtimes import Allowed, Runtime
from synth.records.command_option import CommandOption
from synth.records.record import Record

# Sequences of a step, at most.
_MOST_BATCH = 1 << 24


class LayoutArguments(Record):
    """The arguments of `synth plan`."""

    model: ModelArgument
    device: DeviceOption
    gpus: Annotated[
        Count, Field(ge=1, le=MOST_GPUS), CommandOption("Number of devices of the run.")
    ]
    global_batch: Annotated[
        Count, Field(ge=1, le=_MOST_BATCH), CommandOption("Sequences of a step.")
    ]
    seq_len: Annotated[PositiveInt, CommandOption("Tokens per sequence.")] = 4096
    nodes: Annotated[
        Annotated[Count, Field(ge=1, le=MOST_GPUS)] | None,
        CommandOption(
            "Number of nodes, among which --gpus are shared equally.",
            default="--gpus over --gpus-per-node",
        ),
    ] = None
    gpus_per_node: GpusPerNodeOption = None
    runtime: Annotated[
        Literal["synth", "torch", "torchtitan", "megatron"],
        CommandOption(
            "Program that will execute the pipeline: its placements, its rules of recomputation, "
            "and with megatron its orders, 1F1B and interleaved 1F1B. With torchtitan and megatron "
            "the answer has their options.",
            names=("--for",),
        ),
    ] = "synth"
    also: Annotated[
        Annotated[list[str], texts_like("tp=8,pp=4,vp=5")] | None,
        CommandOption(
            "Layout to judge beside the others: tp, cp, ep, etp, pp, dp (the devices that are "
            "left), mbs, vp, sharding, recompute, schedule. Can be repeated.",
            metavar="tp=N,pp=N,…",
        ),
    ] = None
    dtype: DtypeOption = Precision.BF16
    fp8_param_gather: Fp8ParamGatherOption = False
    optimizer: OptimizerOption = DEFAULT_OPTIMIZER
    software: Annotated[
        str | None,
        CommandOption(
            "Training program, as of synth estimate.",
            default="torchtitan with --for torch and torchtitan, else megatron",
        ),
    ] = None
    calibration: CalibrationOption = None
    mem_limit: Annotated[
        Limit | None,
        CommandOption(
            "Memory limit of a device: 70GB; auto: its capacity less 10 %; none: no limit.",
            default=LIMIT_DEFAULT,
        ),
    ] = None
    time_limit: Annotated[
        TimeLimit, CommandOption("Time limit of the search, such as 60s or 2m.")
    ] = 120.0
    seed: Annotated[Count, SEARCH, Field(ge=0), CommandOption("Random seed of the search.")] = 0
    workers: Annotated[
        AtOnce | None, SEARCH, CommandOption("Number of solver threads.", default="all cores")
    ] = None

    @property
    def allowed(self) -> Allowed:
        """The schedules that the program executes."""
        return Allowed(Runtime(self.runtime))
