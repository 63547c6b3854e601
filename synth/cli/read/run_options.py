"""The options of `synth run` by subject; the command has their defaults."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from synth.errors import SynthError
from synth.units import shown

if TYPE_CHECKING:
    from synth.optimizer import OptimizerSpec
    from synth.runtime.training.learning_rate import LearningRate

# The longest timeout in seconds: much longer ones overflow in sockets.
WEEK_S = 7 * 24 * 3600.0
_STEP = "Optimizer"
_DELAY = "Late gradients (plans without a flush)"
LAST_PANEL = "Checkpoints and restarts"


DataOption = Annotated[
    Path | None,
    typer.Option(
        help="Training data: a text file or a folder of .txt, .md, .rst and .py files, whose bytes "
        "are the tokens (folders named test, tests, site-packages or __pycache__ are skipped); or "
        "an .npy file of token ids. Or give --inputs."
    ),
]
InputsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION",
        help="Function that makes the micro-batches instead of --data: called with the number of a "
        "micro-batch it returns (inputs, targets), or called without it yields them.",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Optimizer steps, including those before a resumed checkpoint; with --epochs, a "
        "maximum.",
        show_default="20, or all of --epochs",
    ),
]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of epochs; without it, windows of the data are sampled with replacement.",
    ),
]
AccumulateOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="Gradient accumulation: mini-batches per optimizer step, on each pipeline.",
        rich_help_panel=_STEP,
    ),
]
DataParallelOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="Data-parallel pipelines: each trains on mini-batches of its own, and gradients are "
        "averaged. Needs this many times the plan's ranks.",
    ),
]
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        help="adamw, sgd, or sgd:MOMENTUM; by default that of the profile.",
        rich_help_panel=_STEP,
    ),
]
MasterWeightsOption = Annotated[
    bool,
    typer.Option(
        "--master-weights",
        help="Keep float32 master weights of bfloat16 parameters.",
        rich_help_panel=_STEP,
    ),
]
Float32GradientsOption = Annotated[
    bool,
    typer.Option(
        "--float32-gradients",
        help="Accumulate gradients in float32; needs --master-weights.",
        rich_help_panel=_STEP,
    ),
]
PostValidationOption = Annotated[
    bool,
    typer.Option(
        "--post-validation",
        help="Post-validation: step without waiting for the global gradient norm, and undo the "
        "step if it had to be clipped or skipped. Keeps a copy of the parameters.",
        rich_help_panel=_STEP,
    ),
]
LookAheadOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="While the next op waits for a receive, run one of this many ops after it, if its "
        "inputs are there and the plan's memory limit allows it; 0: the plan's order.",
    ),
]
LrOption = Annotated[
    float, typer.Option(min=0, max=1e6, help="Peak learning rate.", rich_help_panel=_STEP)
]
DecayOption = Annotated[
    Literal["constant", "linear", "cosine"],
    typer.Option("--schedule", help="Learning-rate schedule after warm-up.", rich_help_panel=_STEP),
]
WarmupOption = Annotated[
    int, typer.Option(min=0, help="Steps of linear warm-up to --lr.", rich_help_panel=_STEP)
]
MinLrOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="Learning rate at the last step, with --schedule linear or cosine.",
        rich_help_panel=_STEP,
    ),
]
WeightDecayOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=1e3,
        help="Weight decay of all parameters: decoupled (AdamW) or L2 (SGD).",
        rich_help_panel=_STEP,
    ),
]
BetasOption = Annotated[
    str | None,
    typer.Option(
        help="Adam β₁, β₂.",
        show_default="0.9,0.999",
        rich_help_panel=_STEP,
    ),
]
ClipOption = Annotated[
    float,
    typer.Option(
        min=0, max=1e30, help="Maximum global gradient norm; 0: no clipping.", rich_help_panel=_STEP
    ),
]
LrReschedulingOption = Annotated[
    int | None,
    typer.Option(
        metavar="UPDATES",
        min=1,
        help="Learning-rate rescheduling by delay (PipeMare): a stage's rate is divided by its "
        "delay at first, and undivided after this many updates.",
        rich_help_panel=_DELAY,
    ),
]
AsyncNesterovOption = Annotated[
    bool,
    typer.Option(
        "--async-nesterov",
        help="Nesterov momentum for asynchronous pipelines: gradients are weighted by 1 − "
        "momentum, and the weights are look-ahead points. With sgd:MOMENTUM.",
        rich_help_panel=_DELAY,
    ),
]
WeightPredictionOption = Annotated[
    bool,
    typer.Option(
        "--weight-prediction",
        help="Weight prediction (SpecTrain, PipeOptim): a forward reads the weights as the "
        "optimizer's last update predicts them for when its gradient is used.",
        rich_help_panel=_DELAY,
    ),
]
SeedOption = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Random seed of initial weights and data order.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
TraceOption = Annotated[
    Path | None, typer.Option(help="Write the times of all ops and transfers here, as JSON.")
]
TraceEveryOption = Annotated[
    int | None,
    typer.Option(min=1, help="With --trace: trace every N-th step.", show_default="1"),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=1,
        max=WEEK_S,
        help="Seconds without a sign of life after which a rank is declared dead.",
        rich_help_panel=LAST_PANEL,
    ),
]
PatienceOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=WEEK_S,
        help="Hang detection: seconds after which a rank is ended that makes no progress in an op "
        "whose inputs are there. At least 20 steps, at most --timeout; 0: off.",
        rich_help_panel=LAST_PANEL,
    ),
]
RestartsOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="Restarts of failed ranks, each from the last checkpoint (under torchrun use its "
        "--max-restarts).",
        rich_help_panel=LAST_PANEL,
    ),
]


def learning_rate(peak: float, decay: str, warmup_steps: int, least: float) -> "LearningRate":
    """Make the learning-rate schedule.

    Raises:
        SynthError: --min-lr is above --lr, or given with a constant learning rate.
    """
    from synth.runtime.training.learning_rate import LearningRate

    if least > peak:
        raise SynthError(f"--min-lr {least} is above --lr {peak}; give a smaller one")
    if least > 0 and decay == "constant":
        raise SynthError(
            f"--min-lr {least} needs a learning rate that falls, --schedule is constant; give "
            f"--schedule linear or cosine, or leave --min-lr out"
        )
    return LearningRate.model_validate(
        {"peak": peak, "decay": decay, "warmup_steps": warmup_steps, "least": least}
    )


def betas(text: str | None, optimizer: "OptimizerSpec") -> tuple[float, float] | None:
    """Return Adam's β₁ and β₂; None for the defaults.

    Raises:
        SynthError: they are not two numbers from 0 to below 1, or the optimizer is not AdamW.
    """
    from synth.optimizer import OptimizerKind

    if text is None:
        return None
    if optimizer.kind != OptimizerKind.ADAMW:
        raise SynthError(f"--betas are of adamw, and the optimizer is {optimizer}; leave them out")
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        first = second = -1.0
    if not (0 <= first < 1 and 0 <= second < 1):
        raise SynthError(
            f"--betas {shown(text)} is not understood; write two numbers from 0 to below 1, such "
            f"as 0.9,0.95"
        )
    return first, second


def traced_steps(trace: Path | None, every: int | None) -> int:
    """Return N, where every N-th step is traced.

    Raises:
        SynthError: N is given without --trace.
    """
    if trace is None and every is not None:
        raise SynthError(f"--trace-every {every} needs a trace; give --trace FILE, or leave it out")
    return every or 1


def refuse_charts(look_ahead: int, *files: Path | None) -> None:
    """Refuse files about the order of a run that need not keep its plan's order.

    Raises:
        SynthError: there is one.
    """
    wanted = [str(path) for path in files if path is not None]
    if look_ahead and wanted:
        raise SynthError(
            f"{', '.join(wanted)} would compare the run with the order of its plan, op by op, and "
            f"--look-ahead {look_ahead} changes the order; leave one of the two out"
        )
