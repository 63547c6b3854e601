"""The options of `synth run`, by what they are about; the command gives their defaults."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from synth.errors import SynthError
from synth.units import shown

if TYPE_CHECKING:
    from synth.optimizer import OptimizerSpec
    from synth.runtime.training.learning_rate import LearningRate

# The longest wait that can be asked for: much longer ones are beyond what sockets can count.
WEEK_S = 7 * 24 * 3600.0
_STEP = "Optimizer"
LAST_PANEL = "Checkpoints and restarts"


DataOption = Annotated[
    Path,
    typer.Option(
        help="Text file, folder of .txt, .md, .rst and .py files (bytes are tokens; folders in it "
        "named test, tests, site-packages or __pycache__ are left out), or .npy of ids."
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Optimizer steps, those before a resumed checkpoint included; with --epochs: at most.",
        show_default="20, or as many as --epochs gives",
    ),
]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Go through the data so often, then end (earlier with fewer --steps); without: draw "
        "from it for ever.",
    ),
]
AccumulateOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="Mini-batches of the plan that one step averages over, on each pipeline.",
        rich_help_panel=_STEP,
    ),
]
DataParallelOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="Pipelines that train side by side, on mini-batches of their own, and average their "
        "gradients; takes this many times the plan's ranks.",
    ),
]
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        help="adamw, sgd, or sgd:MOMENTUM; without: the one that was profiled.",
        rich_help_panel=_STEP,
    ),
]
MasterWeightsOption = Annotated[
    bool,
    typer.Option(
        "--master-weights",
        help="Update float32 copies of the parameters (bfloat16).",
        rich_help_panel=_STEP,
    ),
]
Float32GradientsOption = Annotated[
    bool,
    typer.Option(
        "--float32-gradients",
        help="Accumulate gradients in float32, whatever parameters are in; with --master-weights.",
        rich_help_panel=_STEP,
    ),
]
PostValidationOption = Annotated[
    bool,
    typer.Option(
        "--post-validation",
        help="Step without waiting for the global norm; clip or skip afterwards where needed. "
        "Keeps a copy of the parameters.",
        rich_help_panel=_STEP,
    ),
]
LrOption = Annotated[
    float, typer.Option(min=0, max=1e6, help="The learning rate.", rich_help_panel=_STEP)
]
DecayOption = Annotated[
    Literal["constant", "linear", "cosine"],
    typer.Option(
        "--schedule", help="How the learning rate falls after warm-up.", rich_help_panel=_STEP
    ),
]
WarmupOption = Annotated[
    int, typer.Option(min=0, help="Steps in which it rises to --lr.", rich_help_panel=_STEP)
]
MinLrOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="What it falls to at the last step, with --schedule linear or cosine.",
        rich_help_panel=_STEP,
    ),
]
WeightDecayOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=1e3,
        help="Of all parameters: with adamw apart from the gradient, with sgd added to it.",
        rich_help_panel=_STEP,
    ),
]
BetasOption = Annotated[
    str | None,
    typer.Option(
        help="Of adamw: how much of the moments stays, 0.9,0.95.",
        show_default="0.9,0.999",
        rich_help_panel=_STEP,
    ),
]
ClipOption = Annotated[
    float,
    typer.Option(
        min=0, max=1e30, help="Clip to this global gradient norm; 0: never.", rich_help_panel=_STEP
    ),
]
SeedOption = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Of the weights and of the data's order.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
TraceOption = Annotated[
    Path | None, typer.Option(help="Write when every op and transfer ran here, as JSON.")
]
TraceEveryOption = Annotated[
    int | None,
    typer.Option(min=1, help="Trace one step in N; with --trace.", show_default="1"),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=1,
        max=WEEK_S,
        help="Seconds after which a silent rank counts as dead.",
        rich_help_panel=LAST_PANEL,
    ),
]
PatienceOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=WEEK_S,
        help="Seconds that a rank may stand still in an op that has all it needs, at least "
        "(20 steps if they are longer, never more than --timeout), before it is ended; 0: never.",
        rich_help_panel=LAST_PANEL,
    ),
]
RestartsOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="Start failed ranks again, to go on from the last checkpoint, at most so often "
        "(inside torchrun: its --max-restarts).",
        rich_help_panel=LAST_PANEL,
    ),
]


def learning_rate(peak: float, decay: str, warmup_steps: int, least: float) -> "LearningRate":
    """The learning rate asked for.

    Raises:
        SynthError: it would have to fall to more than it is, or to something without falling.
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
    """The betas asked for, if any.

    Raises:
        SynthError: they are no two shares below 1, or of an optimizer that has none.
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
    """One step in how many is traced.

    Raises:
        SynthError: that was said, and no trace is asked for.
    """
    if trace is None and every is not None:
        raise SynthError(f"--trace-every {every} needs a trace; give --trace FILE, or leave it out")
    return every or 1
