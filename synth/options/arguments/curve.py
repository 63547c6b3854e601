"""The arguments of `synth frontier`."""

from typing import Annotated

from pydantic import Field

from synth.options.arguments.groups import (
    PARTITION_HELP,
    PLACEMENT_HELP,
    PROBLEM,
    RECOMPUTE_HELP,
    SEARCH,
    AtOnce,
    HardwareArguments,
    ObjectiveText,
    PipelineArguments,
    SearchArguments,
    WeightsPlace,
)
from synth.records.command_option import After, CommandOption
from synth.records.record import Record


class CurveArguments(Record):
    """The arguments of a memory curve, as texts."""

    pipeline: PipelineArguments
    placement: Annotated[str, PROBLEM, CommandOption(PLACEMENT_HELP)] = "linear"
    objective: Annotated[ObjectiveText, PROBLEM] = "makespan"
    partition: Annotated[str, PROBLEM, CommandOption(PARTITION_HELP)] = "even"
    recompute: Annotated[str, PROBLEM, CommandOption(RECOMPUTE_HELP)] = "none"
    weights: Annotated[WeightsPlace, PROBLEM] = "stay"
    hardware: Annotated[HardwareArguments, PROBLEM] = HardwareArguments()
    points: Annotated[int, Field(ge=2), CommandOption("Number of memory limits to solve for.")] = 8
    time_limit: Annotated[str, CommandOption("Time limit of each point, such as 30s or 2m.")] = (
        "30s"
    )
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
