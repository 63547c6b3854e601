"""The arguments of `synth compare`."""

from typing import Annotated

from synth.options.arguments.groups import (
    PROBLEM,
    SEARCH,
    ChosenRecompute,
    HardwareArguments,
    MemoryArguments,
    ObjectiveText,
    PipelineArguments,
    RuntimeArguments,
    SearchArguments,
)
from synth.records.command_option import CommandOption, OptionPanel
from synth.records.record import Record

# The heading over the options that say what is compared.
ROWS = OptionPanel("Rows of the table")


class CompareArguments(Record):
    """The arguments of a comparison of published schedules with those of the solver, as texts."""

    pipeline: PipelineArguments
    memory: MemoryArguments = MemoryArguments()
    objective: Annotated[ObjectiveText, PROBLEM] = "makespan"
    only: Annotated[
        list[str] | None,
        ROWS,
        CommandOption(
            "Published schedule, with options: interleaved:3,group=8. Can be repeated.",
            default="all",
        ),
    ] = None
    placement: Annotated[
        list[str] | None,
        ROWS,
        CommandOption(
            "Placement on which the solver searches: linear, v, bidirectional, …; auto: all with "
            "one copy of the weights. Can be repeated.",
            default="auto",
        ),
    ] = None
    recompute: Annotated[ChosenRecompute, PROBLEM] = None
    freedom: Annotated[RuntimeArguments, PROBLEM] = RuntimeArguments()
    weights: Annotated[
        list[str] | None,
        ROWS,
        CommandOption(
            "ring or gather: a further row of the solver, with weight passing. Can be repeated.",
            default="none",
        ),
    ] = None
    planner: Annotated[
        list[str] | None,
        ROWS,
        CommandOption(
            "pipedream or 2bw: a further row, the choice of that published planner, with its "
            "prediction. Can be repeated.",
            default="none",
        ),
    ] = None
    versions: Annotated[
        list[str] | None,
        ROWS,
        CommandOption(
            "2bw, 2bw:every=8, stash, vertical or none: a further row of the solver, which never "
            "flushes the pipeline and minimizes the time of a micro-batch while it is full. Can be "
            "repeated.",
            default="none",
        ),
    ] = None
    hardware: Annotated[HardwareArguments, PROBLEM] = HardwareArguments()
    no_solve: Annotated[bool, ROWS, CommandOption("Compare published schedules only.")] = False
    partition: Annotated[
        str,
        PROBLEM,
        CommandOption(
            "Layers per stage, such as 3,3,2, on placements of as many stages; even: balance the "
            "work of the ranks, or equal numbers of layers for published schedules that are "
            "faster so; auto: the best for each published schedule, searched by the solver."
        ),
    ] = "auto"
    time_limit: Annotated[
        str,
        CommandOption(
            "Time limit of each search, and of all published schedules together, such as 30s or "
            "2m. Schedules that do not finish in time are left out."
        ),
    ] = "30s"
    search: Annotated[SearchArguments, SEARCH] = SearchArguments()
