"""`synth.frontier`: the Pareto front of time and memory limit."""

from collections.abc import Callable, Sequence

from synth.api.front import AnyProfile, check_callable, named_as_arguments
from synth.api.notebook import curve_html
from synth.options.arguments.curve import CurveArguments
from synth.options.arguments.groups import MOST_AT_ONCE
from synth.options.curve import read_curve, read_effort
from synth.plan.memory_curve.curve_file import MemoryCurve
from synth.plan.memory_curve.curve_search import trace
from synth.records.command_option import from_values, not_understood
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
    partition: str | Sequence[int] = "even",
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

    The searches run in processes of their own, which end with this one.

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

    Example:
        >>> curve = synth.frontier("zb-1.5b-p8-m24", ranks=4, micro_batches=8, time_limit=10)
        >>> [(plan.caps_bytes, plan.claim.makespan_us) for plan in curve.points]
    """
    options = locals()
    draw_with(MemoryCurve, curve_html)
    check_callable(on_point, "on_point")
    if begun is not None and not isinstance(begun, MemoryCurve):
        raise not_understood(
            "begun", begun, "a curve that frontier returned, or MemoryCurve.load(path)"
        )
    if workers is None:
        options["workers"] = min(num_processors(), MOST_AT_ONCE)
    given = from_values(CurveArguments, options)
    measured = given.hardware.profile(given.pipeline.profile)
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
