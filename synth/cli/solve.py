"""`synth solve`: the best schedule that fits in memory, and how good it is proven to be."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from synth.cli.answers import as_json, as_text
from synth.cli.interrupt import run_interruptibly
from synth.cli.limits import read_limit, read_partition
from synth.cli.output import Format, FormatOption, answer, answer_json, talk
from synth.cli.preview import preview
from synth.cli.progress import Progress
from synth.cli.request import Request
from synth.costs import cut
from synth.errors import ExitCode, SynthError
from synth.profile import Profile
from synth.schedule.file import Plan
from synth.schedule.model import Placement, Schedule
from synth.units import parse_fraction, parse_seconds

if TYPE_CHECKING:
    from synth.solve.problem import Problem, Result


def command(
    profile_name: Annotated[
        str, typer.Argument(metavar="PROFILE", help="A profile file, or a shipped one's name.")
    ],
    ranks: Annotated[int, typer.Option("--ranks", "-r", min=1, help="Number of pipeline ranks.")],
    micro_batches: Annotated[
        int, typer.Option("--micro-batches", "-m", min=1, help="Micro-batches per iteration.")
    ],
    mem_limit: Annotated[
        str | None,
        typer.Option(
            help="The most a rank may hold: 40GB, one per rank (40GB,36GB,…), or auto: the "
            "device's capacity less a reserve.",
            show_default="no limit",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The schedule file; written on every improvement."),
    ] = None,
    objective: Annotated[
        Literal["makespan", "period"],
        typer.Option(help="makespan: first op to last; period: time when iterations overlap."),
    ] = "makespan",
    partition: Annotated[
        str, typer.Option(help="Layers per stage (3,3,2), or auto: as even as can be.")
    ] = "auto",
    time_limit: Annotated[str, typer.Option(help="Stop after so long: 60s, 2m.")] = "60s",
    gap: Annotated[str, typer.Option(help="Stop when proven to be within: 0.5%.")] = "0.5%",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Same input, same plan; the limit is no clock then."),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Solver threads.", show_default="all cores")
    ] = None,
    hint: Annotated[
        Path | None, typer.Option(help="A schedule file to start from, for the same problem.")
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
    from synth.solve.problem import SolveOptions, SolverName

    profile = _load(profile_name)
    limit = read_limit(mem_limit, ranks, profile)
    sizes = _sizes(partition, ranks, profile, limit.caps_bytes)
    is_best = read_partition(partition, ranks) is None
    problem = _problem(profile, sizes, micro_batches, limit.caps_bytes, objective, is_best)
    options = SolveOptions(
        time_limit_s=parse_seconds(time_limit),
        gap=parse_fraction(gap),
        workers=workers,
        seed=seed,
        deterministic=deterministic,
        hint=_load_hint(hint, problem, profile),
        solver=SolverName(solver),
        verbose=talk if verbose else None,
    )
    arguments = {
        "mem_limit": mem_limit or "none",
        "partition": partition,
        "time_limit": time_limit,
        "gap": gap,
        "solver": solver,
        "deterministic": str(deterministic).lower(),
    }
    request = Request(profile, sizes, problem, options, limit, arguments, output)
    request.check_output()
    if dry_run:
        preview(request, format)
    else:
        _solve(request, format)


def _load(name_or_path: str) -> Profile:
    from synth.profiles import find

    return Profile.load(find(name_or_path))


def _sizes(
    text: str, num_ranks: int, profile: Profile, caps_bytes: tuple[int, ...] | None
) -> tuple[int, ...]:
    """The partition given, or the most even one under which every rank can fit, if there is one."""
    from synth.plan.partition import balance

    given = read_partition(text, num_ranks)
    return balance(profile, num_ranks, caps_bytes) if given is None else given


def _problem(
    profile: Profile,
    sizes: tuple[int, ...],
    num_micro_batches: int,
    caps_bytes: tuple[int, ...] | None,
    objective: str,
    is_best: bool,
) -> "Problem":
    from synth.solve.problem import Objective, Problem

    return Problem(
        cut(profile, sizes),
        Placement.linear(len(sizes)),
        num_micro_batches,
        caps_bytes,
        Objective(objective),
        sizes,
        is_best,
    )


def _load_hint(path: Path | None, problem: "Problem", profile: Profile) -> Schedule | None:
    if path is None:
        return None
    plan = Plan.load(path)
    plan.check()
    schedule = plan.schedule()
    if (schedule.placement, schedule.num_micro_batches) != (
        problem.placement,
        problem.num_micro_batches,
    ):
        raise SynthError(
            f"--hint {path} is for {plan.num_ranks} ranks and {plan.num_micro_batches} "
            f"micro-batches, asked for are {problem.num_ranks} ranks and "
            f"{problem.num_micro_batches} micro-batches; give a plan for the same sizes, or none"
        )
    if plan.profile_fingerprint != profile.fingerprint():
        talk(
            f"note: --hint {path} was made from another profile ({plan.profile_name}, not this "
            f"{profile.name}); its order is taken, its times are not"
        )
    return schedule


def _solve(request: Request, format: Format) -> None:
    from synth.solve.portfolio import solve

    num_layers = len(request.profile.layers)
    talk(
        f"{request.profile.name}: {num_layers} layers on {request.problem.num_ranks} ranks as "
        f"{','.join(map(str, request.partition))}, {request.problem.num_micro_batches} "
        f"micro-batches; {request.limit.explanation}"
    )
    progress = Progress(request)

    def work(stop: threading.Event) -> "Result":
        return solve(request.problem, request.options, progress, stop)

    result = run_interruptibly(work)
    if result.schedule is not None:
        request.save(result)
    _answer(request, result, format)


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
        from synth.solve.problem import StoppedBy

        super().__init__(result.message or "no schedule was found")
        codes = {
            StoppedBy.INFEASIBLE: ExitCode.INFEASIBLE,
            StoppedBy.INTERRUPT: ExitCode.INTERRUPTED,
        }
        self.exit_code = codes.get(result.stopped_by, ExitCode.NOTHING_FOUND)
