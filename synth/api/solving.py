"""`synth.solve`: the best plan that fits in memory, as the command of the same name finds it."""

from collections.abc import Callable, Sequence

from synth.api.front import AnyProfile, check_callable, named_as_arguments, stopped_behind
from synth.options.arguments.solve import SolveArguments
from synth.options.request import NoSchedule
from synth.options.solve_task import SolveTask, read_solve
from synth.plan.choose.candidates import SearchWatch
from synth.records.command_option import from_values
from synth.records.safe_read import AnyPath
from synth.schedule.files.plan_file import Plan
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy
from synth.solver.result import Incumbent, Result
from synth.system.processor_waits import ProcessorWatch


@named_as_arguments
def solve(
    profile: AnyProfile,
    *,
    ranks: int,
    micro_batches: int,
    mem_limit: str | int | Sequence[int | str] | None = None,
    mem_reserve: str | int | None = None,
    target: str | float | None = None,
    objective: str = "makespan",
    placement: str | None = None,
    partition: str | Sequence[int] | None = None,
    recompute: str | None = None,
    runtime: str = "synth",
    offload: bool = False,
    weights: str = "stay",
    data_parallel: int = 1,
    versions: str | None = None,
    link: str | Sequence[str] | None = None,
    rank_speed: str | Sequence[float] | None = None,
    rank_order: str = "given",
    time_limit: str | float = 60,
    gap: str | float = 0.005,
    seed: int = 0,
    deterministic: bool = False,
    workers: int | None = None,
    hint: AnyPath | Plan | None = None,
    solver: str = "cpsat",
    on_improvement: Callable[[Plan], None] | None = None,
) -> Plan:
    """Find the best pipeline schedule that fits in memory, with a proven lower bound.

    Ctrl-C ends the search; the best plan so far is returned if there is one.

    Args:
        profile: a `Profile`, the path of a profile file, or the name of a shipped profile.
        ranks: number of ranks of the pipeline.
        micro_batches: number of micro-batches per iteration.
        mem_limit: memory limit of each rank: `"40GB"`, `"auto"` (the device's capacity less
            10 %), bytes, or a number of bytes for each rank; `"min"`: minimize it, subject to
            `target`; `"none"`: no limit; None: auto if the profile has a capacity, else none.
        mem_reserve: subtracted from the limit for memory that profiles do not contain; with auto
            it replaces the 10 %.
        target: with `mem_limit="min"` the time to meet, in seconds or such as `"850ms"`; `"105%"`:
            of the lower bound without a memory limit; `"steady"`: no bubble in the steady state.
        objective: the time to minimize: `"makespan"`, `"period"` or `"iterations:8"`.
        placement: `"linear"`, `"looped:2"`, `"v"`, `"wave:2"`, `"bidirectional"`, …, or `"auto"`:
            search over all with one copy of the weights. None: auto, or that of the hint.
        partition: layers per stage, `"even"`, or `"auto"`: search; None: auto.
        recompute: `"none"`, `"all"`, stages such as `"0,1"`, layers such as `"layers:3-8"`, or
            `"auto"`: search; None: auto.
        runtime: the program that will execute the plan, which limits the search to what it can run:
            `"synth"`, `"torch"`, `"torchtitan"` or `"megatron"`.
        offload: also offload activations to the host's memory, or to other ranks as published.
        weights: `"stay"`: each rank keeps its stages; `"ring"` or `"gather"`: every rank runs whole
            micro-batches and weights are passed (WeiPipe, ZeRO); `"auto"`: the best of these.
            With `data_parallel`, `"gather"` and `"auto"` search which state the pipelines shard,
            and where stages are gathered and freed.
        data_parallel: the number of data-parallel pipelines, each with `ranks` and `micro_batches`,
            that share the optimizer state of each stage (ZeRO-1), or with `weights` the state that
            the search chooses. The plan is for all their ranks.
        versions: never flush the pipeline, and minimize the time of a micro-batch while it is full:
            `"2bw"`, `"2bw:every=8"`, `"stash"`, `"vertical"`, `"none"` or `"none:every=8"`
            (docs/weights-and-versions.md); `plan.claim.steady` has that time and its bounds.
            None: flush.
        link: latency and bandwidth instead of the profile's: `"10us,25GB/s"` between all ranks,
            `"8:20us,200Gb/s"` between nodes of 8 ranks; or several of these.
        rank_speed: the speed of each rank relative to the profile's device, such as `"1,1,0.5,1"`;
            None: of the profile, if any.
        rank_order: the order of ranks of unequal speed: `"given"`, or `"auto"`: search.
        time_limit: the time limit of the search, in seconds.
        gap: the relative gap to the lower bound at which the search may stop.
        seed: the seed of the search, 0 or more.
        deterministic: the same input gives the same plan; the limit then counts solver steps.
        workers: number of solver threads; None: one per core.
        hint: the initial schedule: a plan, a plan file, or a published schedule such as `"zb-h1"`.
        solver: the solver of the exact model, `"cpsat"`, or `"milp"` as a slow cross-check of small
            problems.
        on_improvement: called in this or another thread with each better plan, and with the same
            plan for each better bound.

    Returns:
        The plan; `plan.claim` has its times, peaks, bound and gap. With `mem_limit="min"` its
        `caps_bytes` is the least limit found.

    Raises:
        SynthError: an argument is wrong, no schedule fits, or none was found in time.

    Example:
        >>> plan = synth.solve("zb-1.5b-p8-m24", ranks=4, micro_batches=8, mem_limit=30 * 10**9)
        >>> plan.save("plan.json")
    """
    options = locals()
    given = from_values(SolveArguments, options)
    check_callable(on_improvement, "on_improvement")
    task = read_solve(given)
    result = _search(task, on_improvement)
    if result.schedule is None:
        raise NoSchedule(result)
    return task.request.of(result).plan(result)


def _search(task: SolveTask, on_improvement: Callable[[Plan], None] | None) -> Result:
    """Run the search; Ctrl-C returns the best result so far."""

    def tell(found: Incumbent) -> None:
        if on_improvement is not None:
            on_improvement(task.request.of(found).plan(found))

    so_far = BestSoFar(tell)
    machine = ProcessorWatch()
    with stopped_behind() as stop, machine.looking():
        try:
            found = task.search(SearchWatch(so_far, stop)).result
        except KeyboardInterrupt:
            best = so_far.close()
            if best is None:
                raise
            found = best.as_result(task.request.deadline.elapsed_s, StoppedBy.INTERRUPT)
    return task.timed(found, machine)
