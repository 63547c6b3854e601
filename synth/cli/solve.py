"""`synth solve`: the best schedule that fits in memory, and how good it is proven to be."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from synth.cli.answers import as_json, as_text
from synth.cli.hint import read_hint
from synth.cli.interrupt import run_interruptibly
from synth.cli.least import solve_least
from synth.cli.limits import (
    LEAST,
    STEADY,
    MemoryLimit,
    is_least,
    read_limit,
    read_recompute,
    read_target,
)
from synth.cli.options import (
    GapOption,
    MicroBatchesOption,
    ObjectiveOption,
    PartitionOption,
    PlacementOption,
    ProfileArgument,
    RanksOption,
    RecomputeOption,
    SeedOption,
    asked_problem,
    load_profile,
)
from synth.cli.output import Format, FormatOption, answer, answer_json, percent, talk
from synth.cli.preview import preview
from synth.cli.progress import Progress
from synth.cli.request import Request, announce, failure_code
from synth.errors import SynthError
from synth.plan.target import NOT_REPEATABLE, Target
from synth.record import check_outputs
from synth.units import format_bytes, format_bytes_both, parse_fraction, parse_seconds

if TYPE_CHECKING:
    from synth.solve.problem import Problem, Result

# A smaller bubble rate is none: times are whole microseconds.
_NOTHING = 1e-4


def command(
    profile_name: ProfileArgument,
    ranks: RanksOption,
    micro_batches: MicroBatchesOption,
    mem_limit: Annotated[
        str | None,
        typer.Option(
            help="The most a rank may hold: 40GB, one per rank (40GB,36GB,…), auto: the device's "
            "capacity less a reserve, or min: the least with which --target is met.",
            show_default="no limit",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="With --mem-limit min: the time to meet, 850ms, or 105% of the lower bound "
            "without a limit; or steady: no bubble once the pipeline is full."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The schedule file; written on every improvement."),
    ] = None,
    objective: ObjectiveOption = "makespan",
    placement: PlacementOption = "linear",
    partition: PartitionOption = "auto",
    recompute: RecomputeOption = "none",
    time_limit: Annotated[str, typer.Option(help="Stop after so long: 60s, 2m.")] = "60s",
    gap: GapOption = "0.5%",
    seed: SeedOption = 0,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Same input, same plan; the limit is no clock then."),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Solver threads.", show_default="all cores"),
    ] = None,
    hint: Annotated[
        str | None,
        typer.Option(
            help="Where to start from: a schedule file for the same problem, or the name of a "
            "published schedule: zb-h1."
        ),
    ] = None,
    solver: Annotated[
        Literal["cpsat", "milp"],
        typer.Option(help="milp is slow: a cross-check for small problems."),
    ] = "cpsat",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the problem and whether it can fit; no search.")
    ] = False,
    format: FormatOption = Format.TEXT,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="The solver's log too.")] = False,
) -> None:
    """Find the best pipeline schedule that fits in memory, with a proven bound.

    Ctrl-C keeps the best so far. Exits with 3 if nothing can fit, with 4 if nothing was found.
    """
    from synth.schedule.placements import placement as named_placement
    from synth.solve.problem import SolveOptions, SolverName

    check_outputs(output, inputs=[profile_name])
    wanted = _target(mem_limit, target)
    if wanted is not None and deterministic:
        raise SynthError(NOT_REPEATABLE)
    profile, where = load_profile(profile_name), named_placement(placement, ranks)
    limit = read_limit(mem_limit, ranks, profile)
    problem = asked_problem(profile, where, micro_batches, partition, objective, limit.caps_bytes)
    assert problem.partition is not None
    options = SolveOptions(
        time_limit_s=parse_seconds(time_limit),
        gap=parse_fraction(gap),
        workers=workers,
        seed=seed,
        deterministic=deterministic,
        hint=read_hint(hint, problem, profile),
        solver=SolverName(solver),
        verbose=talk if verbose else None,
    )
    arguments = {
        "mem_limit": mem_limit or "none",
        "placement": placement,
        "partition": partition,
        "recompute": recompute,
        "time_limit": time_limit,
        "gap": gap,
        "solver": solver,
        "deterministic": str(deterministic).lower(),
    }
    if target is not None:
        arguments["target"] = target
    choice = read_recompute(recompute, problem.costs.num_stages)
    if target == STEADY and choice != ():
        raise SynthError(
            f"--recompute {recompute} and --target {STEADY} do not go together: the pattern that "
            f"is sought keeps what F saves; give a time as target, or leave --recompute out"
        )
    request = Request(
        profile, problem.partition, problem, options, limit, arguments, output, choice
    )
    if dry_run:
        preview(request, format)
    elif target == STEADY:
        _solve(_in_least_steady(request), format)
    elif wanted is not None:
        solve_least(request, wanted, format)
    else:
        _solve(request, format)


def _target(mem_limit: str | None, target: str | None) -> Target | None:
    """The target of `--mem-limit min`; none for any other limit."""
    if is_least(mem_limit) != (target is not None):
        given, missing = ("--target", f"--mem-limit {LEAST}")
        if target is None:
            given, missing = missing, given
        raise SynthError(
            f"{given} is given without {missing}; together they ask for the least memory with "
            f"which a time is met, for example --mem-limit {LEAST} --target 105%"
        )
    return None if target in (None, STEADY) else read_target(target)


def _in_least_steady(request: Request) -> Request:
    """The request with the least limit under which the pipeline, once full, has no bubble.

    Raises:
        SynthError: no such limit was found in the time given.
    """
    from synth.plan.steady import least_steady

    found = least_steady(request.problem, request.options)
    if found is None:
        raise SynthError(
            "--target steady: no schedule that repeats without bubble was found in "
            f"{request.options.time_limit_s:g} s; allow more --time-limit, or give a time as target"
        )
    rest = "" if found.bubble_rate < _NOTHING else f" ({percent(found.bubble_rate)} bubble)"
    least = "times are too fine for a proof that it is the least"
    if found.not_below_bytes is not None:
        least = f"proven not below {format_bytes(found.not_below_bytes)} for such a pattern"
    explanation = (
        f"memory limit found: {format_bytes_both(found.cap_bytes)} on every rank, in which one "
        f"more micro-batch takes {found.each_us:,.0f} µs where the busiest rank works "
        f"{found.work_us:,} µs{rest}; {least}"
    )
    caps = (found.cap_bytes,) * request.problem.num_ranks
    return replace(
        request,
        problem=replace(request.problem, caps_bytes=caps),
        limit=MemoryLimit(caps, explanation),
        options=replace(request.options, hint=found.schedule),
    )


def _solve(request: Request, format: Format) -> None:
    from synth.plan.choice import solve_with
    from synth.plan.repartition import solve_repartitioning

    announce(request)
    given = (request.problem, request.recompute, request.options)

    def work(stop: threading.Event) -> "Result":
        if request.arguments["partition"] != "auto":
            return solve_with(*given, Progress(request), stop)
        return solve_repartitioning(request.profile, *given, listener, stop)

    def listener(problem: "Problem") -> Progress:
        if problem.partition != request.partition:
            talk(f"cut again, R counted: {','.join(map(str, problem.partition or ()))}")
        return Progress(_with_partition_of(request, problem))

    result = run_interruptibly(work)
    request = _with_partition_of(request, result.problem)
    if result.schedule is not None:
        request.save(result)
    _answer(request, result, format)


def _with_partition_of(request: Request, problem: "Problem") -> Request:
    """The request on another cut of the model."""
    assert problem.partition is not None
    return replace(request, problem=problem, partition=problem.partition)


def _answer(request: Request, result: "Result", format: Format) -> None:
    if format == Format.JSON:
        answer_json(as_json(request, result))
    if result.schedule is None:
        raise NoSchedule(result)
    if format == Format.TEXT:
        answer(as_text(request, result))
    kept = f"saved as {request.output}" if request.output else "not saved: give -o plan.json"
    talk(kept)


class NoSchedule(SynthError):
    """There is no schedule to give; the exit code says whether there can be one."""

    def __init__(self, result: "Result") -> None:
        super().__init__(result.message or "no schedule was found")
        self.exit_code = failure_code(result.stopped_by)
