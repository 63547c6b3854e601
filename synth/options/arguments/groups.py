"""Arguments that several commands have: groups of them, and single ones, each declared once."""

from typing import Annotated, Literal

from pydantic import Field

from synth.errors import SynthError
from synth.options.memory_limit import MemoryLimit, read_limit
from synth.options.profiles import load_profile, with_speeds
from synth.options.values import (
    LEAST,
    Bytes,
    Count,
    Flag,
    FlopsPerS,
    Limit,
    ObjectiveValue,
    ProfileSource,
    Share,
    Speeds,
    text_like,
    texts_like,
)
from synth.plan.runtimes import Allowed, Runtime
from synth.profile import Profile
from synth.profile.links import MOST_RANKS
from synth.records.command_option import CommandArgument, CommandOption, OptionPanel
from synth.records.record import Record

# Most solver threads or processes: starting more takes longer than they gain.
MOST_AT_ONCE = 1024

# The headings of `--help` below the options that matter first.
PROBLEM = OptionPanel("Problem")
MEMORY = OptionPanel("Memory")
SEARCH = OptionPanel("Search")
OUTPUT = OptionPanel("Output")

AtOnce = Annotated[Count, Field(ge=1, le=MOST_AT_ONCE)]

LIMIT_HELP = (
    "Memory limit of each rank: 40GB; 40GB,36GB,…: one per rank; auto: the device's capacity less "
    "10 %; none: no limit"
)
LIMIT_DEFAULT = "auto if the profile has the device's capacity, else none"
PARTITION_HELP = (
    "Layers per stage, such as 3,3,2; even: balance the work of the ranks; auto: search for the "
    "best partition (under a tight memory limit the first stages get fewer layers). With auto and "
    "one stage per rank the lower bound holds for all partitions."
)
PLACEMENT_HELP = (
    "Mapping of stages to ranks: linear, looped:N, v, wave:N, bidirectional, bidirectional-v, …"
)
RECOMPUTE_HELP = (
    "Activation checkpointing. none; all or 0,1,2: these stages, as an op R before B; "
    "layers:3-8,10: these layers, within B; ops:3-8: under a profiled policy; auto: search "
    "for the best choice, including published schedules that recompute."
)

ProfileArgument = Annotated[
    ProfileSource,
    CommandArgument("Profile file, or the name of a shipped profile.", metavar="PROFILE"),
]
ObjectiveOption = Annotated[
    ObjectiveValue,
    CommandOption(
        "Time to minimize. makespan: from the first op of an iteration to the last; period: per "
        "iteration when iterations overlap; iterations:8: of 8 iterations, one makespan and 7 "
        "periods."
    ),
]
RecomputeText = Annotated[str, text_like("'none', 'all', 'auto', or stages such as '0,1'")]
ChosenRecompute = Annotated[RecomputeText | None, CommandOption(RECOMPUTE_HELP, default="auto")]
PlacementName = Annotated[str, text_like("'linear', 'looped:2', 'v', …")]
WeightsPlace = Annotated[
    Literal["stay", "ring", "gather", "auto"],
    CommandOption(
        "Place of the weights. stay: each rank keeps its stages; ring: every rank runs whole "
        "micro-batches, and weights go from rank to rank (WeiPipe); gather: weights are sharded "
        "and gathered (ZeRO, FSDP); auto: the best of these and of data parallelism. With "
        "--data-parallel, gather and auto also search which state its pipelines shard."
    ),
]
LinkTexts = Annotated[
    Annotated[list[str], texts_like("10us,25GB/s")] | None,
    CommandOption(
        "Latency and bandwidth of transfers, instead of the profile's: 10us,25GB/s between all "
        "ranks, 8:20us,200Gb/s between nodes of 8 ranks. Can be repeated.",
        metavar="[N:]LATENCY,BANDWIDTH",
    ),
]
PeakFlops = Annotated[
    FlopsPerS | None,
    CommandOption(
        "FLOP/s of a rank's device at its peak, in the dtype of the layers, for the MFU: 989e12 or "
        "989TFLOPS.",
        metavar="RATE",
        default="of the profile, if any",
    ),
]


class PipelineArguments(Record):
    """A model's profile, and the size of the pipeline that runs it."""

    profile: ProfileArgument
    ranks: Annotated[
        Count,
        Field(ge=1, le=MOST_RANKS),
        CommandOption("Number of pipeline ranks.", names=("--ranks", "-r")),
    ]
    micro_batches: Annotated[
        Count,
        Field(ge=1),
        CommandOption("Micro-batches per iteration.", names=("--micro-batches", "-m")),
    ]

    @property
    def profile_file(self) -> str | None:
        """The path or the name of the profile; None: it is given itself."""
        return self.profile if isinstance(self.profile, str) else None


class MemoryArguments(Record):
    """The memory limit of ranks."""

    mem_limit: Annotated[Limit | None, CommandOption(f"{LIMIT_HELP}.", default=LIMIT_DEFAULT)] = (
        None
    )
    mem_reserve: Annotated[
        Bytes | None,
        MEMORY,
        CommandOption(
            "Memory to subtract from --mem-limit for what the profile does not contain: CUDA "
            "context, NCCL and cuBLAS buffers, fragmentation; such as 1.5GB. With --mem-limit auto "
            "it replaces the 10 % that are subtracted otherwise.",
            default="0",
        ),
    ] = None

    def limits(self, num_ranks: int, profile: Profile) -> MemoryLimit:
        """Return the limits of all ranks.

        Raises:
            SynthError: the limit is to be minimized; or see `read_limit`.
        """
        if self.mem_limit == LEAST:
            raise SynthError(
                "§mem_limit min minimizes memory subject to a time, which only synth solve does; "
                "give a size here, or none"
            )
        return read_limit(self.mem_limit, num_ranks, profile, self.mem_reserve)


class HardwareArguments(Record):
    """The links and the devices, where they differ from those of the profile."""

    link: LinkTexts = None
    peak_flops: PeakFlops = None

    def profile(self, given: Profile | str) -> Profile:
        """Return a profile, or load it by its name, with these links and devices.

        Raises:
            SynthError: see `load_profile`.
        """
        return load_profile(given, self.link, self.peak_flops)


class RankHardwareArguments(HardwareArguments):
    """The same, and the speeds of the ranks."""

    rank_speed: Annotated[
        Speeds | None,
        CommandOption(
            "Speed of each rank relative to the device of the profile: 1,1,0.5,1 for a rank of "
            "half the speed. For placements with one copy of each stage.",
            metavar="SPEED,SPEED,…",
            default="of the profile, if any",
        ),
    ] = None

    rank_order: Annotated[
        Literal["given", "auto"],
        CommandOption(
            "Order of ranks of unequal speed or memory. given: as in --rank-speed and --mem-limit; "
            "auto: also the fast ones first or last, and those of much memory first."
        ),
    ] = "given"

    def of_ranks(self, given: Profile | str, num_ranks: int) -> Profile:
        """Return a profile, or load it by its name, with these links, devices and speeds.

        Raises:
            SynthError: see `load_profile`; or the speeds are for another number of ranks.
        """
        profile, speeds = self.profile(given), self.rank_speed
        return profile if speeds is None else with_speeds(profile, speeds, num_ranks)


class RuntimeArguments(Record):
    """The program that will execute a plan, and what a schedule may do besides F, B and W."""

    runtime: Annotated[
        Literal["synth", "torch", "torchtitan", "megatron"],
        CommandOption(
            "Search only what this runtime can execute: its placements, its rules of recomputation "
            "(no ops R but with synth), and with megatron its orders, 1F1B and interleaved 1F1B. "
            "The answer says how much faster the best known schedule without this limit is.",
            names=("--for",),
        ),
    ] = "synth"
    offload: Annotated[
        Flag,
        CommandOption(
            "Also offload activations to the host's memory, if the profile has a link to it, and "
            "take published schedules that offload to another rank (BPipe)."
        ),
    ] = False

    @property
    def allowed(self) -> Allowed:
        """The schedules with which a search may answer."""
        return Allowed(Runtime(self.runtime), self.offload)


class SearchArguments(Record):
    """The gap at which a search may stop, and its seed."""

    gap: Annotated[Share, CommandOption("Stop at this proven gap to the lower bound.")] = 0.005
    seed: Annotated[Count, Field(ge=0), CommandOption("Random seed of the search.")] = 0
