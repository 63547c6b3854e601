"""The arguments of `synth compare`."""

from typing import Annotated

from synth.objective import Objective
from synth.options.arguments.groups import (
    PROBLEM,
    SEARCH,
    ChosenRecompute,
    MemoryArguments,
    ObjectiveOption,
    PipelineArguments,
    RankHardwareArguments,
    RuntimeArguments,
    SearchArguments,
)
from synth.options.values import AUTO, Flag, Partition, TimeLimit, texts_like
from synth.records.command_option import CommandOption, OptionPanel
from synth.records.record import Record

# The heading over the options that say what is compared.
ROWS = OptionPanel("Rows of the table")


class CompareArguments(Record):
    """The arguments of a comparison of published schedules with those of the solver."""

    pipeline: PipelineArguments
    memory: MemoryArguments = MemoryArguments()
    objective: Annotated[ObjectiveOption, PROBLEM] = Objective.MAKESPAN
    only: Annotated[
        Annotated[list[str], texts_like("1f1b")] | None,
        ROWS,
        CommandOption(
            "Published schedule, with options: interleaved:3,group=8. Can be repeated.",
            default="all",
        ),
    ] = None
    placement: Annotated[
        Annotated[list[str], texts_like("linear")] | None,
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
        Annotated[list[str], texts_like("ring")] | None,
        ROWS,
        CommandOption(
            "ring or gather: a further row of the solver, with weight passing. Can be repeated.",
            default="none",
        ),
    ] = None
    planner: Annotated[
        Annotated[list[str], texts_like("pipedream")] | None,
        ROWS,
        CommandOption(
            "pipedream or 2bw: a further row, the choice of that published planner, with its "
            "prediction. Can be repeated.",
            default="none",
        ),
    ] = None
    versions: Annotated[
        Annotated[list[str], texts_like("2bw")] | None,
        ROWS,
        CommandOption(
            "2bw, 2bw:every=8, stash, vertical or none: a further row of the solver, which never "
            "flushes the pipeline and minimizes the time of a micro-batch while it is full. Can be "
            "repeated.",
            default="none",
        ),
    ] = None
    hardware: Annotated[RankHardwareArguments, PROBLEM] = RankHardwareArguments()
    no_solve: Annotated[Flag, ROWS, CommandOption("Compare published schedules only.")] = False
    partition: Annotated[
        Partition,
        PROBLEM,
        CommandOption(
            "Layers per stage, such as 3,3,2, on placements of as many stages; even: balance the "
            "work of the ranks, or equal numbers of layers for published schedules that are "
            "faster so; auto: the best for each published schedule, searched by the solver."
        ),
    ] = AUTO
    time_limit: Annotated[
        TimeLimit,
        CommandOption(
            "Time limit of each search, and of all published schedules together, such as 30s or "
            "2m. Schedules that do not finish in time are left out."
        ),
    ] = 30.0
    search: Annotated[SearchArguments, SEARCH] = SearchArguments()
