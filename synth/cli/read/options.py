"""Options that several commands share, and the profile that they read."""

from typing import Annotated, Any, Literal

import typer

from synth.links import MOST_COPIES, MOST_RANKS

ProfileArgument = Annotated[
    str, typer.Argument(metavar="PROFILE", help="Profile file, or the name of a shipped profile.")
]
RanksOption = Annotated[
    int,
    typer.Option("--ranks", "-r", min=1, max=MOST_RANKS, help="Number of pipeline ranks."),
]
MicroBatchesOption = Annotated[
    int, typer.Option("--micro-batches", "-m", min=1, help="Micro-batches per iteration.")
]
PlacementOption = Annotated[
    str,
    typer.Option(
        help="Mapping of stages to ranks: linear, looped:N, v, wave:N, bidirectional, "
        "bidirectional-v, …"
    ),
]
AnyPlacementOption = Annotated[
    str | None,
    typer.Option(
        help="Mapping of stages to ranks: linear, looped:N, v, wave:N, bidirectional, "
        "bidirectional-v, …; auto: search over all of them.",
        show_default="auto",
    ),
]
ObjectiveOption = Annotated[
    str,
    typer.Option(
        help="Time to minimize. makespan: from the first op of an iteration to the last; period: "
        "per iteration when iterations overlap; iterations:8: of 8 iterations, one makespan and 7 "
        "periods."
    ),
]
PartitionOption = Annotated[
    str, typer.Option(help="Layers per stage, such as 3,3,2; even: balance the work of the ranks.")
]
_ANY_PARTITION = (
    "Layers per stage, such as 3,3,2; even: balance the work of the ranks; auto: search for the "
    "best partition (under a tight memory limit the first stages get fewer layers). With auto and "
    "one stage per rank the lower bound holds for all partitions."
)
AnyPartitionOption = Annotated[str, typer.Option(help=_ANY_PARTITION)]
ChosenPartitionOption = Annotated[
    str | None, typer.Option(help=_ANY_PARTITION, show_default="auto")
]
_RECOMPUTE = (
    "Activation checkpointing. none; all or 0,1,2: these stages, as an op R before B; "
    "layers:3-8,10: these layers, within B; auto: search for the best choice, including published "
    "schedules that recompute or offload activations."
)
RecomputeOption = Annotated[str, typer.Option(help=_RECOMPUTE)]
ChosenRecomputeOption = Annotated[str | None, typer.Option(help=_RECOMPUTE, show_default="auto")]
WeightsOption = Annotated[
    Literal["stay", "ring", "gather", "auto"],
    typer.Option(
        help="Place of the weights. stay: each rank keeps its stages; ring: every rank runs whole "
        "micro-batches, and weights go from rank to rank (WeiPipe); gather: weights are sharded "
        "and gathered (ZeRO, FSDP); auto: the best of these and of data parallelism. With "
        "--data-parallel, gather and auto also search which state its pipelines shard."
    ),
]
PipelinesOption = Annotated[
    int,
    typer.Option(
        "--data-parallel",
        min=1,
        max=MOST_COPIES,
        help="Data-parallel pipelines, each with --ranks and --micro-batches, that share the "
        "optimizer state of each stage (ZeRO-1), or with --weights gather what the search chooses. "
        "The plan is for all their ranks.",
    ),
]
VersionsOption = Annotated[
    str | None,
    typer.Option(
        help="Never flush the pipeline, and minimize the time of a micro-batch while it is full. "
        "2bw: an update every k micro-batches, two versions of the weights (2bw:every=8); stash: "
        "an update after each, B reads the version that F read (PipeDream); vertical: the "
        "same, and all stages read the version of the first; none: no version is stashed "
        "(none:every=8).",
        show_default="flush",
    ),
]
LinkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--link",
        metavar="[N:]LATENCY,BANDWIDTH",
        help="Latency and bandwidth of transfers, instead of the profile's: 10us,25GB/s between "
        "all ranks, 8:20us,200Gb/s between nodes of 8 ranks. Can be repeated.",
    ),
]
PeakFlopsOption = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="FLOP/s of a rank's device at its peak, in the dtype of the layers, for the MFU: "
        "989e12 or 989TFLOPS.",
        show_default="of the profile, if any",
    ),
]
# Most solver threads or processes: starting more takes longer than they gain.
MOST_AT_ONCE = 1024

MemReserveOption = Annotated[
    str | None,
    typer.Option(
        help="Memory to subtract from --mem-limit for what the profile does not contain: CUDA "
        "context, NCCL and cuBLAS buffers, fragmentation; such as 1.5GB. With --mem-limit auto it "
        "replaces the 10 % that are subtracted otherwise.",
        show_default="0",
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Overwrite existing files even if synth did not write them.")
]

# Most columns of a plot: far more than any terminal has.
MOST_COLUMNS = 10_000


def width_option(what: str, default: str) -> Any:
    """Declare `--width` of something that a command draws, with its default in words."""
    return typer.Option(
        min=40, max=MOST_COLUMNS, help=f"Width of {what} in columns.", show_default=default
    )


ChartWidthOption = Annotated[int | None, width_option("the chart", "the terminal's, or 100")]

GapOption = Annotated[str, typer.Option(help="Stop at this proven gap to the lower bound.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Random seed of the search.")]
