"""The arguments of `synth frontier`."""

from typing import Annotated

from pydantic import Field

from synth.objective import Objective
from synth.options.arguments.groups import (
    PARTITION_HELP,
    PLACEMENT_HELP,
    PROBLEM,
    RECOMPUTE_HELP,
    SEARCH,
    AtOnce,
    HardwareArguments,
    ObjectiveOption,
    PipelineArguments,
    PlacementName,
    RecomputeText,
    SearchArguments,
    WeightsPlace,
)
from synth.options.values import EVEN, Count, Partition, TimeLimit
from synth.records.command_option import After, CommandOption
from synth.records.record import Record


class CurveArguments(Record):
    """The arguments of a memory curve."""

    pipeline: PipelineArguments
    placement: Annotated[PlacementName, PROBLEM, CommandOption(PLACEMENT_HELP)] = "linear"
    objective: Annotated[ObjectiveOption, PROBLEM] = Objective.MAKESPAN
    partition: Annotated[Partition, PROBLEM, CommandOption(PARTITION_HELP)] = EVEN
    recompute: Annotated[RecomputeText, PROBLEM, CommandOption(RECOMPUTE_HELP)] = "none"
    weights: Annotated[WeightsPlace, PROBLEM] = "stay"
    hardware: Annotated[HardwareArguments, PROBLEM] = HardwareArguments()
    points: Annotated[
        Count, Field(ge=2), CommandOption("Number of memory limits to solve for.")
    ] = 8
    time_limit: Annotated[
        TimeLimit, CommandOption("Time limit of each point, such as 30s or 2m.")
    ] = 30.0
    search: Annotated[SearchArguments, SEARCH] = SearchArguments()
    jobs: Annotated[
        AtOnce | None,
        SEARCH,
        After("--gap"),
        CommandOption("Points solved in parallel.", default="by the cores"),
    ] = None
    workers: Annotated[
        AtOnce | None,
        SEARCH,
        After("--jobs"),
        CommandOption("Solver threads per point.", default="cores / jobs"),
    ] = None
