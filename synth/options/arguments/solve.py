"""The arguments of `synth solve`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from synth.objective import Objective
from synth.options.arguments.groups import (
    LIMIT_DEFAULT,
    LIMIT_HELP,
    MEMORY,
    OUTPUT,
    PARTITION_HELP,
    PLACEMENT_HELP,
    PROBLEM,
    SEARCH,
    AtOnce,
    ChosenRecompute,
    MemoryArguments,
    ObjectiveOption,
    PipelineArguments,
    PlacementName,
    RankHardwareArguments,
    RuntimeArguments,
    SearchArguments,
    WeightsPlace,
)
from synth.options.memory_limit import MemoryLimit, read_limit
from synth.options.values import Count, Flag, Hint, Limit, Partition, Target, TimeLimit, text_like
from synth.profile import Profile
from synth.profile.links import MOST_COPIES
from synth.records.command_option import CommandOption
from synth.records.record import Record


class LimitOrLeast(MemoryArguments):
    """The memory limit of ranks, which may be minimized."""

    mem_limit: Annotated[
        Limit | None,
        CommandOption(
            f"{LIMIT_HELP}; min: minimize it, subject to --target.", default=LIMIT_DEFAULT
        ),
    ] = None

    def limits(self, num_ranks: int, profile: Profile) -> MemoryLimit:
        """Return the limits of all ranks; see `read_limit`."""
        return read_limit(self.mem_limit, num_ranks, profile, self.mem_reserve)


class SolveArguments(Record):
    """The arguments of a search for the best schedule."""

    pipeline: PipelineArguments
    memory: LimitOrLeast = LimitOrLeast()
    target: Annotated[
        Target | None,
        MEMORY,
        CommandOption(
            "With --mem-limit min: the time to meet, such as 850ms; 105%: of the lower bound "
            "without a memory limit; steady: no bubble in the steady state."
        ),
    ] = None
    output: Annotated[
        Path | None,
        CommandOption(
            "Plan file to write; updated on every improvement.", names=("--output", "-o")
        ),
    ] = None
    objective: Annotated[ObjectiveOption, PROBLEM] = Objective.MAKESPAN
    placement: Annotated[
        PlacementName | None,
        PROBLEM,
        CommandOption(
            f"{PLACEMENT_HELP}; auto: search over all of them with one copy of the weights.",
            default="auto",
        ),
    ] = None
    partition: Annotated[
        Partition | None, PROBLEM, CommandOption(PARTITION_HELP, default="auto")
    ] = None
    recompute: Annotated[ChosenRecompute, PROBLEM] = None
    freedom: Annotated[RuntimeArguments, PROBLEM] = RuntimeArguments()
    weights: Annotated[WeightsPlace, PROBLEM] = "stay"
    data_parallel: Annotated[
        Count,
        PROBLEM,
        Field(ge=1, le=MOST_COPIES),
        CommandOption(
            "Data-parallel pipelines, each with --ranks and --micro-batches, that share the "
            "optimizer state of each stage (ZeRO-1), or with --weights gather what the search "
            "chooses. The plan is for all their ranks."
        ),
    ] = 1
    versions: Annotated[
        Annotated[str, text_like("'2bw', 'stash', 'vertical' or 'none'")] | None,
        PROBLEM,
        CommandOption(
            "Never flush the pipeline, and minimize the time of a micro-batch while it is full. "
            "2bw: an update every k micro-batches, two versions of the weights (2bw:every=8); "
            "stash: an update after each, B reads the version that F read (PipeDream); vertical: "
            "the same, and all stages read the version of the first; none: no version is stashed "
            "(none:every=8).",
            default="flush",
        ),
    ] = None
    hardware: Annotated[RankHardwareArguments, PROBLEM] = RankHardwareArguments()
    time_limit: Annotated[
        TimeLimit, CommandOption("Time limit of the search, such as 60s or 2m.")
    ] = 60.0
    search: Annotated[SearchArguments, SEARCH] = SearchArguments()
    deterministic: Annotated[
        Flag,
        SEARCH,
        CommandOption(
            "The same input gives the same plan. Limits are then deterministic, not wall-clock: "
            "--time-limit counts solver steps, and takes several times as long."
        ),
    ] = False
    workers: Annotated[
        AtOnce | None, SEARCH, CommandOption("Number of solver threads.", default="all cores")
    ] = None
    hint: Annotated[
        Hint | None,
        SEARCH,
        CommandOption(
            "Initial schedule: a plan file of the same problem, or the name of a published "
            "schedule, such as zb-h1."
        ),
    ] = None
    solver: Annotated[
        Literal["cpsat", "milp"],
        SEARCH,
        CommandOption("Solver of the exact model; milp is a slow cross-check for small problems."),
    ] = "cpsat"
    verbose: Annotated[
        bool, OUTPUT, CommandOption("Print the solver's log, too.", names=("--verbose", "-v"))
    ] = False

    @property
    def is_for_one(self) -> bool:
        """True if the options are for one problem, so that nothing is left to choose."""
        return self.target is not None or self.solver == "milp" or self.versions is not None
