"""The arguments of an estimate: model, device, sizes of groups, and the training program."""

from typing import Annotated

from pydantic import Field, PositiveInt

from synth.estimates.layout import Precision, Recompute, Sharding
from synth.options.values import Count
from synth.records.command_option import CommandArgument, CommandOption
from synth.records.record import Record

ModelArgument = Annotated[
    str,
    CommandArgument(
        "A config.json of Hugging Face's library, its folder, or the name of a known model "
        "(llama3-70b, deepseek-v3, …).",
        metavar="MODEL",
    ),
]
DeviceOption = Annotated[
    str,
    CommandOption(
        "a100, h100, h200, b200, … or a JSON file of a device of your own.", metavar="DEVICE"
    ),
]
DtypeOption = Annotated[
    Precision, CommandOption("Type of the factors of matrices: bf16, fp8, fp4.")
]
Fp8ParamGatherOption = Annotated[
    bool,
    CommandOption(
        "With --dtype fp8 and zero1: parameters of matrices are kept and gathered in float8 "
        "(Megatron-LM's option)."
    ),
]
OptimizerOption = Annotated[str, CommandOption("As adamw+master+float32-gradients, sgd:0.9, …")]
DEFAULT_OPTIMIZER = "adamw+master+float32-gradients"
CalibrationOption = Annotated[
    str | None,
    CommandOption(
        "File of `synth calibrate`, or none.",
        metavar="FILE",
        default="the shipped one of --device and --software, if any",
    ),
]

# Devices of a run, at most.
MOST_GPUS = 1 << 16
GpusPerNodeOption = Annotated[
    Annotated[Count, Field(ge=1, le=MOST_GPUS)] | None,
    CommandOption("Devices that fast links connect.", default="of the device"),
]


class EstimateArguments(Record):
    """The model, device and layout of an estimate."""

    model: ModelArgument
    device: DeviceOption
    gpus_per_node: GpusPerNodeOption = None
    seq_len: Annotated[PositiveInt, CommandOption("Tokens per sequence.")] = 4096
    micro_batch_size: Annotated[PositiveInt, CommandOption("Sequences per micro-batch.")] = 1
    tp: Annotated[PositiveInt, CommandOption("Ranks of tensor parallelism.")] = 1
    sp: Annotated[
        bool,
        CommandOption("Sequence parallelism, beside tensor parallelism.", names=("--sp/--no-sp",)),
    ] = True
    cp: Annotated[PositiveInt, CommandOption("Ranks that share the tokens of a sequence.")] = 1
    ep: Annotated[
        PositiveInt,
        CommandOption("Ranks that share the experts, of those of --tp, --cp and --dp together."),
    ] = 1
    etp: Annotated[
        PositiveInt,
        CommandOption("Ranks that divide each expert; experts have --ep × --etp of all ranks."),
    ] = 1
    dp: Annotated[
        PositiveInt | None,
        CommandOption(
            "Ranks with other samples that share the optimizer state.",
            default="1, or as many as --ep and --etp need",
        ),
    ] = None
    dtype: DtypeOption = Precision.BF16
    fp8_param_gather: Fp8ParamGatherOption = False
    optimizer: OptimizerOption = DEFAULT_OPTIMIZER
    sharding: Annotated[
        Sharding,
        CommandOption("What --dp and --cp ranks share. none; zero1: optimizer state; fsdp: all."),
    ] = Sharding.ZERO1
    recompute: Annotated[
        Recompute,
        CommandOption(
            "What B computes again. none; selective: what attention's kernels save; ops: every "
            "second matrix product; full: layers."
        ),
    ] = Recompute.NONE
    software: Annotated[
        str,
        CommandOption(
            "Training program: megatron, megatron-graphs (CUDA graphs launch layers with experts), "
            "megatron-plain, megatron-2021, torchtitan, llm-foundry."
        ),
    ] = "megatron"
    calibration: CalibrationOption = None
