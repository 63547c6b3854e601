"""The options of a training run; everything else is in the plan.

`synth run` parses its command line into this record, and ranks train by it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from synth.errors import SynthError
from synth.profile.optimizer import OptimizerKind, OptimizerSpec, OptimizerSwitches
from synth.records.command_option import CommandOption, OptionPanel, Read
from synth.records.record import Record
from synth.run_options.checkpoint_options import CheckpointOptions
from synth.run_options.delay_options import DelayOptions
from synth.run_options.learning_rate import LearningRate
from synth.run_options.weight_files import WeightFiles
from synth.units import shown

DEFAULT_STEPS = 20
# The longest timeout in seconds: much longer ones overflow in sockets.
WEEK_S = 7 * 24 * 3600.0
_OPTIMIZER = OptionPanel("Optimizer")
_DELAY = OptionPanel("Late gradients (plans without a flush)")
_WEIGHTS = OptionPanel("Weights from and to other programs")
_CHECKPOINTS = OptionPanel("Checkpoints and restarts")

LookAheadCount = Annotated[
    NonNegativeInt,
    CommandOption(
        "While the next op waits for a receive, run one of this many ops after it, if its inputs "
        "are there and the plan's memory limit allows it; 0: the plan's order."
    ),
]

Timeout = Annotated[
    float,
    Field(ge=1, le=WEEK_S),
    CommandOption(
        "Seconds without a sign of life after which a rank is declared dead.", names=("--timeout",)
    ),
]


def _read_optimizer(given: object) -> object:
    return OptimizerSpec.parse(given) if isinstance(given, str) else given


def _read_betas(given: object) -> object:
    """Read two numbers and a comma between them."""
    if not isinstance(given, str):
        return given
    try:
        first, second = (float(part) for part in given.split(","))
    except ValueError:
        first = second = -1.0
    if not (0 <= first < 1 and 0 <= second < 1):
        raise SynthError(
            f"§betas {shown(given)} is not understood; write two numbers from 0 to below 1, such "
            f"as 0.9,0.95"
        )
    return first, second


class TrainOptions(Record):
    """The options of a run; `steps` counts from the run's beginning, also if it is resumed."""

    data: Annotated[
        Path | None,
        CommandOption(
            "Training data: a text file or a folder of .txt, .md, .rst and .py files, whose bytes "
            "are the tokens (folders named test, tests, site-packages or __pycache__ are skipped); "
            "or an .npy file of token ids. Or give --inputs."
        ),
    ] = None
    inputs: Annotated[
        str | None,
        CommandOption(
            "Function that makes the micro-batches instead of --data: called with the number of a "
            "micro-batch it returns (inputs, targets), or called without it yields them.",
            metavar="FILE.py:FUNCTION",
        ),
    ] = None
    model: Annotated[
        str | None,
        CommandOption(
            "Model to train, also as package.module:function, instead of the one that PLAN names "
            "(which is then not imported).",
            metavar="FILE.py:FUNCTION",
        ),
    ] = None
    """None: the plan's, if it is a built-in model."""
    parallelize: Annotated[
        str | None,
        CommandOption(
            "Function that divides a layer over the processes of a rank, where the plan has "
            "several (tensor parallelism): called with the layer and a device mesh of one "
            "dimension. Built-in models need none, nor do those of hf: that have a plan of their "
            "own.",
            metavar="FILE.py:FUNCTION",
        ),
    ] = None
    steps: Annotated[
        PositiveInt | None,
        CommandOption(
            "Optimizer steps, including those before a resumed checkpoint; with --epochs, a "
            "maximum.",
            default=f"{DEFAULT_STEPS}, or all of --epochs",
        ),
    ] = None
    epochs: Annotated[
        PositiveInt | None,
        CommandOption(
            "Number of epochs; without it, windows of the data are sampled with replacement."
        ),
    ] = None
    data_parallel: Annotated[
        PositiveInt | None,
        CommandOption(
            "Data-parallel pipelines: each trains on mini-batches of its own, and gradients are "
            "averaged. Needs this many times the plan's processes.",
            default="1, or what PLAN counts on",
        ),
    ] = None
    accumulate: Annotated[
        PositiveInt,
        _OPTIMIZER,
        CommandOption("Gradient accumulation: mini-batches per optimizer step, on each pipeline."),
    ] = 1
    optimizer: Annotated[
        OptimizerSpec | None,
        Read(_read_optimizer, "an optimizer"),
        _OPTIMIZER,
        CommandOption("adamw, sgd, or sgd:MOMENTUM; by default that of the profile."),
    ] = None
    switches: Annotated[OptimizerSwitches, _OPTIMIZER] = OptimizerSwitches()
    """Parts that the optimizer has besides its own."""
    look_ahead: LookAheadCount = 0
    learning_rate: Annotated[LearningRate, _OPTIMIZER] = LearningRate(peak=1e-3)
    weight_decay: Annotated[
        float,
        Field(ge=0, le=1e3),
        _OPTIMIZER,
        CommandOption("Weight decay of all parameters: decoupled (AdamW) or L2 (SGD)."),
    ] = 0.0
    betas: Annotated[
        tuple[float, float] | None,
        Read(_read_betas, "two numbers"),
        _OPTIMIZER,
        CommandOption("Adam β₁, β₂.", default="0.9,0.999"),
    ] = None
    clip_norm: Annotated[
        Annotated[float, Field(ge=0, le=1e30)] | None,
        BeforeValidator(lambda given: given or None),
        _OPTIMIZER,
        CommandOption("Maximum global gradient norm; 0: no clipping.", names=("--clip",)),
    ] = 1.0
    """None: no clipping, as 0."""
    delay: Annotated[DelayOptions, _DELAY] = DelayOptions()
    """Corrections of late gradients."""
    seed: Annotated[
        int,
        Field(ge=0, le=2**31 - 1),
        CommandOption("Random seed of initial weights and data order."),
    ] = 0
    device: Annotated[str, CommandOption("auto, cpu or cuda.")] = "auto"
    weights: Annotated[WeightFiles, _WEIGHTS] = WeightFiles()
    """Folders of weights to begin from and to export to."""
    checkpoint: Annotated[CheckpointOptions | None, _CHECKPOINTS] = None
    restarts: Annotated[
        NonNegativeInt,
        _CHECKPOINTS,
        CommandOption(
            "Restarts of failed ranks, each from the last checkpoint (under torchrun use its "
            "--max-restarts)."
        ),
    ] = 0
    timeout_s: Annotated[Timeout, _CHECKPOINTS] = 300.0
    patience_s: Annotated[
        NonNegativeFloat,
        Field(le=WEEK_S),
        _CHECKPOINTS,
        CommandOption(
            "Hang detection: seconds after which a rank is ended that makes no progress in an op "
            "whose inputs are there. At least 20 steps, at most --timeout; 0: off.",
            names=("--patience",),
        ),
    ] = 120.0
    trace_every: Annotated[
        PositiveInt | None, CommandOption("With --trace: trace every N-th step.", default="1")
    ] = None
    """None: every step."""

    @model_validator(mode="before")
    @classmethod
    def _check_folder(cls, given: Any) -> Any:
        saved = given.get("checkpoint") if isinstance(given, Mapping) else None
        if isinstance(saved, Mapping) and "folder" not in saved:
            CheckpointOptions.refuse_without_folder(saved, given.get("restarts", 0))
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.data is not None and self.inputs is not None:
            raise SynthError(
                f"--data {self.data} and --inputs {self.inputs} are both given; give one of them"
            )
        if self.checkpoint is not None:
            self.checkpoint.check_ignores_something(self.restarts)
        elif self.restarts:
            raise SynthError("--restarts continues from checkpoints; give --checkpoint FOLDER")
        return self

    def check_source(self) -> None:
        """Refuse a run without data."""
        if self.data is None and self.inputs is None:
            raise SynthError(
                "there is nothing to train on; give --data PATH, or --inputs FILE.py:FUNCTION"
            )

    def optimizer_of(self, profiled: OptimizerSpec) -> OptimizerSpec:
        """Return the optimizer of the run.

        Args:
            profiled: the plan's, which is the default.

        Raises:
            SynthError: its parts do not go together, or there are betas and it is not AdamW.
        """
        spec = self.switches.added_to(self.optimizer or profiled)
        if self.betas is not None and spec.kind != OptimizerKind.ADAMW:
            raise SynthError(f"--betas are of adamw, and the optimizer is {spec}; leave them out")
        return spec

    def resolved(self) -> Self:
        """The same for a process in another folder."""
        saved = self.checkpoint
        return self.replace(
            data=self.data and self.data.resolve(),
            weights=self.weights.resolved(),
            checkpoint=saved and saved.replace(folder=saved.folder.resolve()),
        )
