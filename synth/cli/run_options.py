"""The options of `synth run`, by what they are about; the command gives their defaults."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from synth.errors import SynthError

if TYPE_CHECKING:
    from synth.runtime.checkpoint.options import CheckpointOptions
    from synth.runtime.training.learning_rate import LearningRate

_STEP = "Optimizer"
_LAST = "Checkpoints and restarts"

DataOption = Annotated[
    Path, typer.Option(help="Text file, folder of text files (bytes are tokens), or .npy of ids.")
]
StepsOption = Annotated[
    int, typer.Option(min=1, help="Optimizer steps, those before a resumed checkpoint included.")
]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Go through the data so often, then end; without: draw from it for ever."
    ),
]
AccumulateOption = Annotated[
    int,
    typer.Option(
        min=1, help="Mini-batches of the plan that one step averages over.", rich_help_panel=_STEP
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
    float, typer.Option(min=0, help="What it falls to at the last step.", rich_help_panel=_STEP)
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
TraceEveryOption = Annotated[int, typer.Option(min=1, help="Trace one step in N.")]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=1, help="Seconds after which a silent rank counts as dead.", rich_help_panel=_LAST
    ),
]
PatienceOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="Seconds that a rank may stand still in an op that has all it needs, at least "
        "(20 steps if they are longer, never more than --timeout), before it is ended; 0: never.",
        rich_help_panel=_LAST,
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Folder to save training in.", rich_help_panel=_LAST),
]
CheckpointEveryOption = Annotated[
    int, typer.Option(min=1, help="Steps between two checkpoints.", rich_help_panel=_LAST)
]
KeepOption = Annotated[
    int, typer.Option(min=0, help="Keep the last so many; 0: all.", rich_help_panel=_LAST)
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on from the last checkpoint, if there is one; under any plan of the same layers.",
        rich_help_panel=_LAST,
    ),
]
RestartsOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="Start failed ranks again, to go on from the last checkpoint, at most so often "
        "(inside torchrun: its --max-restarts).",
        rich_help_panel=_LAST,
    ),
]


def learning_rate(peak: float, decay: str, warmup_steps: int, least: float) -> "LearningRate":
    """The learning rate asked for.

    Raises:
        SynthError: it would have to fall to more than it is.
    """
    from synth.runtime.training.learning_rate import LearningRate

    if least > peak:
        raise SynthError(f"--min-lr {least} is above --lr {peak}; give a smaller one")
    return LearningRate.model_validate(
        {"peak": peak, "decay": decay, "warmup_steps": warmup_steps, "least": least}
    )


def checkpoints(
    folder: Path | None, every: int, keep: int, resume: bool, restarts: int
) -> "CheckpointOptions | None":
    """The checkpoints asked for; none without a folder.

    Raises:
        SynthError: there is nothing to resume from.
    """
    from synth.runtime.checkpoint.options import CheckpointOptions

    if folder is None:
        if resume:
            raise SynthError("--resume needs to know from where; give --checkpoint FOLDER")
        if restarts:
            raise SynthError("--restarts goes on from checkpoints; give --checkpoint FOLDER")
        return None
    return CheckpointOptions(folder=folder, every=every, keep=keep, resume=resume)
