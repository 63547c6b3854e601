"""`synth.solve`: the best plan that fits in memory, as the command of the same name finds it."""

import os
import threading
from collections.abc import Callable, Sequence

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
    runtime_arguments,
    seconds_text,
    share_text,
    shown_value,
    sizes_text,
    text_or_none,
    truth,
    whole_number,
)
from synth.errors import SynthError
from synth.options.arguments.groups import HardwareArguments, SearchArguments
from synth.options.arguments.solve import LimitOrLeast, SolveArguments
from synth.options.hint import hint_name
from synth.options.request import NoSchedule
from synth.options.solve_task import SolveTask, read_solve
from synth.profile import Profile
from synth.records.safe_read import AnyPath
from synth.schedule.files.plan_file import Plan
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy
from synth.solver.result import Incumbent, Result


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
            `target`; None: no limit.
        mem_reserve: subtracted from the limit for memory that profiles do not contain.
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
        offload: also take published schedules that offload activations.
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
    """
    check_callable(on_improvement, "on_improvement")
    measured, begin = profile_or_name(profile), _hint(hint)
    with limits_told():
        given = SolveArguments(
            pipeline=pipeline_arguments(measured, ranks, micro_batches),
            memory=LimitOrLeast(
                mem_limit=sizes_text(mem_limit, "mem_limit"),
                mem_reserve=sizes_text(mem_reserve, "mem_reserve"),
            ),
            target=None if target is None else seconds_text(target, "target"),
            objective=objective_text(objective),
            placement=text_or_none(placement, "placement", "'linear', 'v', 'auto', …"),
            partition=numbers_text(partition, "partition"),
            recompute=recompute_text(recompute),
            freedom=runtime_arguments(runtime, offload),
            hardware=HardwareArguments(link=links_texts(link)),
            time_limit=seconds_text(time_limit),
            search=SearchArguments(gap=share_text(gap), seed=whole_number(seed, "seed")),
            deterministic=truth(deterministic, "deterministic"),
            workers=number_or_none(workers, "workers", 1),
            hint=hint_name(begin),
            solver=option_text(solver, "solver", "'cpsat' or 'milp'"),
            weights=option_text(weights, "weights", "'stay', 'ring', 'gather' or 'auto'"),
            data_parallel=whole_number(data_parallel, "data_parallel", 1),
            versions=text_or_none(versions, "versions", "'2bw', 'stash', 'vertical' or 'none'"),
        )
    asked = read_solve(
        given,
        measured if isinstance(measured, Profile) else None,
        begin if isinstance(begin, Plan) else None,
    )
    result = _search(asked, on_improvement)
    if result.schedule is None:
        raise NoSchedule(result)
    return asked.request.of(result).plan(result)


def _hint(given: AnyPath | Plan | None) -> str | Plan | None:
    """Return a plan itself, or a path or name as text.

    Raises:
        SynthError: something else.
    """
    if given is None or isinstance(given, Plan):
        return given
    if not isinstance(given, str | os.PathLike):
        raise SynthError(
            f"hint={shown_value(given)} is not understood; give a Plan (synth.simulate makes one "
            f"of a Schedule), the path of a plan file, or a name such as 'zb-h1'"
        )
    return os.fspath(given)


def _search(asked: SolveTask, on_improvement: Callable[[Plan], None] | None) -> Result:
    """Run the search; Ctrl-C returns the best result so far."""

    def tell(found: Incumbent) -> None:
        if on_improvement is not None:
            on_improvement(asked.request.of(found).plan(found))

    so_far, stop = BestSoFar(tell), threading.Event()
    try:
        return asked.search(so_far, stop).result
    except KeyboardInterrupt:
        best = so_far.close()
        if best is None:
            raise
        return best.as_result(asked.request.deadline.elapsed_s, StoppedBy.INTERRUPT)
    finally:
        stop.set()
