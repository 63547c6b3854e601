"""The arguments of `synth frontier`."""

from typing import Annotated

from pydantic import Field

from synth.options.arguments.groups import (
    PARTITION_HELP,
    PLACEMENT_HELP,
    RECOMPUTE_HELP,
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
    placement: Annotated[str, CommandOption(PLACEMENT_HELP)] = "linear"
    objective: ObjectiveText = "makespan"
    partition: Annotated[str, CommandOption(PARTITION_HELP)] = "even"
    recompute: Annotated[str, CommandOption(RECOMPUTE_HELP)] = "none"
    weights: WeightsPlace = "stay"
    hardware: HardwareArguments = HardwareArguments()
    points: Annotated[int, Field(ge=2), CommandOption("Number of memory limits to solve for.")] = 8
    time_limit: Annotated[str, CommandOption("Time limit of each point, such as 30s or 2m.")] = (
        "30s"
    )
    search: SearchArguments = SearchArguments()
    jobs: Annotated[
        AtOnce | None,
        After("--gap"),
        CommandOption("Points solved in parallel.", default="by the cores"),
    ] = None
    workers: Annotated[
        AtOnce | None,
        After("--jobs"),
        CommandOption("Solver threads per point.", default="cores / jobs"),
    ] = None
