"""`synth.frontier`: the Pareto front of time and memory limit."""

from collections.abc import Callable, Sequence

from synth.api.notebook import curve_html
from synth.api.words import (
    AnyProfile,
    check_callable,
    limits_told,
    links_texts,
    named_as_arguments,
    number_or_none,
    numbers_text,
    objective_text,
    option_text,
    pipeline_arguments,
    profile_or_name,
    recompute_text,
    seconds_text,
    share_text,
    shown_value,
    whole_number,
)
from synth.errors import SynthError
from synth.options.arguments.curve import CurveArguments
from synth.options.arguments.groups import MOST_AT_ONCE, HardwareArguments, SearchArguments
from synth.options.curve import read_curve, read_effort
from synth.options.defaults import NONE
from synth.options.partition import EVEN
from synth.plan.memory_curve.curve_file import MemoryCurve
from synth.plan.memory_curve.curve_search import trace
from synth.system.display import draw_with
from synth.system.processors import num_processors


@named_as_arguments
def frontier(
    profile: AnyProfile,
    *,
    ranks: int,
    micro_batches: int,
    placement: str = "linear",
    objective: str = "makespan",
    partition: str | Sequence[int] = EVEN,
    recompute: str = "none",
    weights: str = "stay",
    link: str | Sequence[str] | None = None,
    points: int = 8,
    time_limit: str | float = 30,
    gap: str | float = 0.005,
    jobs: int = 1,
    workers: int | None = None,
    seed: int = 0,
    begun: MemoryCurve | None = None,
    on_point: Callable[[MemoryCurve], None] | None = None,
) -> MemoryCurve:
    """Trace the Pareto front of time and memory limit, from the smallest feasible limit on.

    The searches run in processes of their own, which import the calling script again: call this
    below `if __name__ == "__main__":`, unless in a notebook.

    Args:
        profile: a `Profile`, the path of a profile file, or the name of a shipped profile.
        ranks: number of ranks of the pipeline.
        micro_batches: number of micro-batches per iteration.
        placement: mapping of stages to ranks, as of `synth.solve`, but not `"auto"`.
        objective: the time to minimize, as of `synth.solve`.
        partition: layers per stage, `"even"`, or `"auto"`: search it for each point.
        recompute: as of `synth.solve`, but no single layers.
        weights: as of `synth.solve`; with `"auto"` the pipelines have the `placement`.
        link: latency and bandwidth instead of the profile's, as of `synth.solve`.
        points: number of memory limits to solve for, 2 or more.
        time_limit: the time limit of each point, in seconds.
        gap: the relative gap at which a search may stop.
        jobs: points solved in parallel.
        workers: solver threads per point; None: one per core.
        seed: the seed of the searches.
        begun: a curve of the same problem, to continue.
        on_point: called with the curve so far after every point.

    Returns:
        The curve; `curve.points` are plans, under rising limits. Ctrl-C returns the points so far.

    Raises:
        SynthError: an argument is wrong.
    """
    draw_with(MemoryCurve, curve_html)
    check_callable(on_point, "on_point")
    if begun is not None and not isinstance(begun, MemoryCurve):
        raise SynthError(
            f"begun={shown_value(begun)} is not understood; give a curve that frontier returned, "
            f"or MemoryCurve.load(path)"
        )
    named = profile_or_name(profile)
    with limits_told():
        given = CurveArguments(
            pipeline=pipeline_arguments(named, ranks, micro_batches),
            placement=option_text(placement, "placement", "'linear', 'looped:2', 'v', …"),
            objective=objective_text(objective),
            partition=numbers_text(partition, "partition") or EVEN,
            recompute=recompute_text(recompute) or NONE,
            weights=option_text(weights, "weights", "'stay', 'ring', 'gather' or 'auto'"),
            hardware=HardwareArguments(link=links_texts(link)),
            points=whole_number(points, "points"),
            time_limit=seconds_text(time_limit),
            search=SearchArguments(gap=share_text(gap), seed=whole_number(seed, "seed")),
            jobs=whole_number(jobs, "jobs", 1),
            workers=number_or_none(workers, "workers", 1) or min(num_processors(), MOST_AT_ONCE),
        )
    measured = given.hardware.profile(named)
    so_far: list[MemoryCurve] = []

    def take(curve: MemoryCurve) -> None:
        so_far.append(curve)
        if on_point is not None:
            on_point(curve)

    try:
        return trace(measured, read_curve(given, measured), read_effort(given), begun, take)
    except KeyboardInterrupt:
        if not so_far:
            raise
        return so_far[-1]
