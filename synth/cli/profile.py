"""`synth profile`: measure a model's layers on this machine's device."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.options import ForceOption
from synth.cli.read.request import CommandRequest
from synth.errors import SynthError
from synth.options.arguments.groups import PeakFlops
from synth.profile.optimizer import OptimizerSpec, OptimizerSwitches
from synth.profile.workload import ModelArguments
from synth.records.command_option import CommandArgument, CommandOption
from synth.records.overwrite_guard import PROFILE


class ProfileRequest(CommandRequest):
    """Measure MODEL layer by layer: time and memory of F, B, W, BW and STEP.

    Under torchrun, rank 0 measures the layers, and all ranks the links between them.
    """

    model: Annotated[
        str,
        CommandArgument(
            "Built-in model (gpt-bytes, gpt2-small, llama3-8b, …); hf:NAME or hf:config.json "
            "of Hugging Face; path/to/file.py:function or package.module:function that returns a "
            "whole module or a list of layers; or a .csv file of times that were measured "
            "elsewhere.",
            metavar="MODEL",
        ),
    ]
    output: Annotated[
        Path, CommandOption("Profile file to write.", names=("--output", "-o")), PROFILE
    ]
    arguments: Annotated[
        list[str] | None,
        CommandOption(
            "Argument name=value of the model's function. Can be repeated.", names=("--arg",)
        ),
    ] = None
    inputs: Annotated[
        str | None,
        CommandOption(
            "Function that returns or yields (inputs, targets) of a micro-batch, also as "
            "package.module:function; without it, inputs are random token ids.",
            metavar="FILE.py:FUNCTION",
        ),
    ] = None
    micro_batch_size: Annotated[
        PositiveInt | None, CommandOption("Sequences per micro-batch.", default="1, or of --inputs")
    ] = None
    seq_len: Annotated[
        PositiveInt | None, CommandOption("Tokens per sequence.", default="1024, or of --inputs")
    ] = None
    dtype: Annotated[str, CommandOption("Parameter type: float32 or bfloat16 (bf16).")] = "float32"
    optimizer: Annotated[str, CommandOption("adamw, sgd, or sgd:MOMENTUM.")] = "adamw"
    switches: OptimizerSwitches = OptimizerSwitches()
    autocast: Annotated[
        str | None, CommandOption("Compute type under torch.autocast: bfloat16 (bf16).")
    ] = None
    recompute: Annotated[
        list[str] | None,
        CommandOption(
            "Activation checkpointing: layers to recompute within B, by name or pattern "
            "('block.*'). Can be repeated."
        ),
    ] = None
    recompute_policy: Annotated[
        list[str] | None,
        CommandOption(
            "Policy of recomputation within a layer, under which each layer is measured, too: "
            "selective (attention core), ops (every other matrix product), or a function of your "
            "own, FILE.py:FUNCTION. Can be repeated.",
            metavar="POLICY",
        ),
    ] = None
    cut: Annotated[
        str | None,
        CommandOption(
            "Modules of a whole model at which layers begin ('embed | blocks.* | norm | head').",
            metavar="NAMES",
            default="its blocks, and what follows the last",
        ),
    ] = None
    device: Annotated[str, CommandOption("auto, cpu or cuda.")] = "auto"
    threads: Annotated[PositiveInt, CommandOption("CPU threads per rank.")] = 1
    warmup: Annotated[NonNegativeInt, CommandOption("Warm-up iterations.")] = 3
    iters: Annotated[PositiveInt, CommandOption("Measured iterations.")] = 20
    separate: Annotated[bool, CommandOption("Measure identical layers, too, each by itself.")] = (
        False
    )
    pairs: Annotated[
        bool,
        CommandOption(
            "Also measure F and BW of two micro-batches at once, on two streams of a CUDA device, "
            "for schedules that overlap them."
        ),
    ] = False
    ranks: Annotated[
        Annotated[int, Field(ge=2)] | None,
        CommandOption("Also measure the links between this many processes on this machine."),
    ] = None
    tensor_parallel: Annotated[
        Annotated[int, Field(ge=2)] | None,
        CommandOption(
            "Processes that are one rank and divide each layer (tensor parallelism); start as many "
            "with torchrun. The links between ranks are not measured."
        ),
    ] = None
    parallelize: Annotated[
        str | None,
        CommandOption(
            "With --tensor-parallel: function that divides a layer over a device mesh; built-in "
            "models need none, nor do those of hf: that have a plan of their own.",
            metavar="FILE.py:FUNCTION",
        ),
    ] = None
    peak_flops: PeakFlops = None
    format: FormatOption = Format.TEXT
    force: ForceOption = False

    @property
    def optimizer_spec(self) -> OptimizerSpec:
        """The optimizer with all its parts.

        Raises:
            SynthError: it is not understood, or its parts do not go together.
        """
        return self.switches.added_to(OptimizerSpec.parse(self.optimizer))

    @property
    def model_arguments(self) -> ModelArguments:
        """The arguments of the model's function by name.

        Raises:
            SynthError: one is not understood.
        """
        parsed: ModelArguments = {}
        for item in self.arguments or ():
            name, equals, text = item.partition("=")
            if not equals or not name.isidentifier():
                raise SynthError(
                    f"--arg {item!r} is not understood; write name=value, e.g. width=512"
                )
            parsed[name] = _parse_value(text)
        return parsed

    def check_processes(self, there: int | None) -> None:
        """Refuse another number of processes than those that are to be one rank.

        Args:
            there: those that torchrun started; None: it did not.

        Raises:
            SynthError: says how many there are, and how many are needed.
        """
        if self.tensor_parallel is None:
            if self.parallelize is not None:
                raise SynthError("--parallelize divides layers; give --tensor-parallel N, too")
        elif there != self.tensor_parallel:
            found = "torchrun started none" if there is None else f"torchrun started {there}"
            raise SynthError(
                f"--tensor-parallel {self.tensor_parallel} takes as many processes, and {found}; "
                f"start torchrun --nproc-per-node {self.tensor_parallel} with this command"
            )


def _parse_value(text: str) -> int | float | str | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
