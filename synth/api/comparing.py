"""`synth.compare`: the published schedules and the solver's, on one profile."""

from collections.abc import Sequence

from synth.api.front import AnyProfile, named_as_arguments, stopped_behind
from synth.api.notebook import comparison_html
from synth.options.arguments.compare import CompareArguments
from synth.options.question import read_comparison
from synth.plan.compare import compare as compared
from synth.plan.comparison import Comparison
from synth.plan.comparison_entries import so_far
from synth.records.command_option import from_values
from synth.search.outcome import StoppedBy
from synth.system.display import draw_with


@named_as_arguments
def compare(
    profile: AnyProfile,
    *,
    ranks: int,
    micro_batches: int,
    mem_limit: str | int | Sequence[int | str] | None = None,
    objective: str = "makespan",
    only: str | Sequence[str] | None = None,
    placement: str | Sequence[str] | None = "auto",
    partition: str | Sequence[int] = "auto",
    recompute: str | None = None,
    runtime: str = "synth",
    offload: bool = False,
    planner: str | Sequence[str] | None = None,
    link: str | Sequence[str] | None = None,
    rank_speed: str | Sequence[float] | None = None,
    rank_order: str = "given",
    time_limit: str | float = 30,
    gap: str | float = 0.005,
    seed: int = 0,
) -> Comparison:
    """Compare the published schedules, each on its own placement, with those of the solver.

    Args:
        profile: a `Profile`, the path of a profile file, or the name of a shipped profile.
        ranks: number of ranks of the pipeline.
        micro_batches: number of micro-batches per iteration.
        mem_limit: memory limit of each rank, as of `synth.solve`.
        objective: the time to sort by and to minimize, as of `synth.solve`.
        only: one published schedule or several, with their options, such as `"interleaved:3"`;
            None: all.
        placement: where the solver searches, one or several; `"auto"`: one search over all
            placements with one copy of the weights; None: no search.
        partition: layers per stage, `"even"`, or `"auto"`: the best for each published schedule,
            searched by the solver.
        recompute: as of `synth.solve`; `"none"` leaves out the rows of published schedules with
            recomputed layers, too; None: auto with `placement="auto"`, else none.
        runtime: the program that will execute a plan, which limits the solver to what it can run:
            `"synth"`, `"torch"`, `"torchtitan"` or `"megatron"`.
        offload: also offload activations to the host's memory, or to other ranks as published.
        planner: `"pipedream"` or `"2bw"`, or both: the choice of that published planner, too.
        link: latency and bandwidth instead of the profile's, as of `synth.solve`.
        rank_speed: the speed of each rank, as of `synth.solve`.
        rank_order: the order of ranks of unequal speed: `"given"`, or `"auto"`: search.
        time_limit: the time limit of each search, and of all published schedules together, in
            seconds.
        gap: the relative gap at which a search may stop.
        seed: the seed of the searches.

    Returns:
        The entries and the schedules that do not apply. `ranked()` sorts the entries, and
        `plan(entry)` makes the plan of one. Ctrl-C returns the entries so far.

    Raises:
        SynthError: an argument is wrong.

    Example:
        >>> table = synth.compare("zb-1.5b-p8-m24", ranks=4, micro_batches=8, only="1f1b")
        >>> best = table.plan(table.ranked()[0])
    """
    options = locals()
    draw_with(Comparison, comparison_html)
    if not placement:
        rows_only = "none" if recompute == "none" else None
        options |= {"no_solve": True, "recompute": rows_only}
    given = from_values(CompareArguments, options)
    asked = read_comparison(given)
    found = Comparison(asked.question)
    with stopped_behind() as stop:
        try:
            return compared(
                asked.question,
                given.only,
                asked.searches,
                asked.options,
                stop=stop,
                so_far=found,
                planners=asked.planners,
            )
        except KeyboardInterrupt:
            comparison = so_far(found, asked.options, StoppedBy.INTERRUPT)
            if not comparison.entries:
                raise
            return comparison
