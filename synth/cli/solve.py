"""`synth solve`: the best schedule that fits in memory, and how good it is proven to be."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from synth.cli.answer.output import Format, FormatOption, talk
from synth.cli.answer.preview import preview
from synth.cli.progress.deadline import Deadline
from synth.cli.read.defaults import choices, chooses_layers
from synth.cli.read.hint import read_hint
from synth.cli.read.limits import (
    LEAST,
    STEADY,
    is_least,
    is_steady,
    read_layers,
    read_limit,
    read_recompute,
    read_target,
)
from synth.cli.read.options import (
    MOST_AT_ONCE,
    AnyPlacementOption,
    ChosenPartitionOption,
    ChosenRecomputeOption,
    GapOption,
    LinkOption,
    MemReserveOption,
    MicroBatchesOption,
    ObjectiveOption,
    ProfileArgument,
    RanksOption,
    SeedOption,
    asked_problem,
    load_profile,
)
from synth.cli.read.request import Request
from synth.cli.solving.least import solve_least
from synth.cli.solving.search import solve_within_limits
from synth.cli.solving.steady import solve_steady
from synth.cli.solving.trials import (
    asked_candidates,
    check_goes_with_choice,
    is_choice,
    preview_candidates,
    solve_candidates,
)
from synth.errors import SynthError
from synth.plan.memory_curve.target import NOT_REPEATABLE, TimeTarget
from synth.recomputing import recomputing
from synth.record import check_outputs
from synth.units import parse_fraction, parse_seconds


def command(
    profile_name: ProfileArgument,
    ranks: RanksOption,
    micro_batches: MicroBatchesOption,
    mem_limit: Annotated[
        str | None,
        typer.Option(
            help="Memory limit of each rank: 40GB; 40GB,36GB,…: one per rank; auto: the device's "
            "capacity less 10 %; min: minimize it, subject to --target.",
            show_default="no limit",
        ),
    ] = None,
    mem_reserve: MemReserveOption = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="With --mem-limit min: the time to meet, such as 850ms; 105%: of the lower bound "
            "without a memory limit; steady: no bubble in the steady state."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Plan file to write; updated on every improvement."),
    ] = None,
    objective: ObjectiveOption = "makespan",
    placement: AnyPlacementOption = None,
    partition: ChosenPartitionOption = None,
    recompute: ChosenRecomputeOption = None,
    link: LinkOption = None,
    time_limit: Annotated[
        str, typer.Option(help="Time limit of the search, such as 60s or 2m.")
    ] = "60s",
    gap: GapOption = "0.5%",
    seed: SeedOption = 0,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="The same input gives the same plan. Limits are then deterministic, not "
            "wall-clock: --time-limit counts solver steps, and takes several times as long.",
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_AT_ONCE, help="Number of solver threads.", show_default="all cores"
        ),
    ] = None,
    hint: Annotated[
        str | None,
        typer.Option(
            help="Initial schedule: a plan file of the same problem, or the name of a published "
            "schedule, such as zb-h1."
        ),
    ] = None,
    solver: Annotated[
        Literal["cpsat", "milp"],
        typer.Option(
            help="Solver of the exact model; milp is a slow cross-check for small problems."
        ),
    ] = "cpsat",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show stages and costs, and if the memory limit is feasible; do not search.",
        ),
    ] = False,
    format: FormatOption = Format.TEXT,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the solver's log, too.")
    ] = False,
) -> None:
    """Find the best pipeline schedule that fits in memory, with a proven bound.

    Ctrl-C keeps the best schedule so far. Exit code 3: the memory limit is infeasible; 4: no
    schedule was found in time.
    """
    from synth.schedule.files.plan_file import check_replaceable
    from synth.schedule.placements import placement as named_placement
    from synth.solve.instance.instance import SPLIT
    from synth.solve.options import SolveOptions, SolverName

    deadline = Deadline.of(time_limit, is_clock=not deterministic)
    check_outputs(output, inputs=[profile_name])
    check_replaceable(output)
    wanted = _target(mem_limit, target)
    if wanted is not None and deterministic:
        raise SynthError(NOT_REPEATABLE)
    profile = load_profile(profile_name, link)
    layers = read_layers(recompute or "none", len(profile.layers))
    as_run = recomputing(profile, layers)
    limit = read_limit(mem_limit, ranks, profile, mem_reserve)
    is_for_one = target is not None or solver == "milp"
    chosen = choices(
        profile,
        ranks,
        placement,
        partition,
        "none" if layers else recompute,
        hint,
        is_for_one=is_for_one,
    )
    # The least limit is sought among whole stages, as its steps share what they find.
    limit_s = parse_seconds(time_limit)
    of_layers = target is None and chooses_layers(chosen, len(profile.layers), limit_s)
    candidates = None
    if is_choice(chosen, is_for_one=is_for_one or hint is not None):
        check_goes_with_choice(chosen, target, hint)
        candidates = asked_candidates(
            as_run,
            chosen,
            num_ranks=ranks,
            num_micro_batches=micro_batches,
            objective=objective,
            caps_bytes=limit.caps_bytes,
            deadline=deadline,
            recomputed_layers=layers,
            chooses_layers=of_layers,
        )
        problem = candidates.them[0].problem
    else:
        where = named_placement(chosen.placement, ranks)
        problem = asked_problem(
            as_run,
            where,
            num_micro_batches=micro_batches,
            partition=chosen.partition,
            objective=objective,
            caps_bytes=limit.caps_bytes,
            should_stop=deadline.for_partitions(),
            recomputed_layers=layers,
            chooses_layers=of_layers,
        )
    assert problem.partition is not None
    deadline = deadline.without_answer(len(SPLIT) * micro_batches * problem.costs.num_stages)
    options = SolveOptions(
        time_limit_s=deadline.left_of(limit_s),
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
        "placement": chosen.placement,
        "partition": chosen.partition,
        "recompute": recompute if recompute and layers else chosen.recompute,
        "link": "; ".join(link) if link else "as in the profile",
        "time_limit": time_limit,
        "gap": gap,
        "solver": solver,
        "deterministic": str(deterministic).lower(),
        "seed": str(seed),
        "workers": "all cores" if workers is None else str(workers),
        "hint": hint or "none",
    }
    if target is not None:
        arguments["target"] = target
    if mem_reserve is not None:
        arguments["mem_reserve"] = mem_reserve
    choice = read_recompute(chosen.recompute, problem.costs.num_stages)
    request = Request(
        profile,
        problem.partition,
        problem=problem,
        options=options,
        limit=limit,
        arguments=arguments,
        output=output,
        recompute=choice,
        deadline=deadline,
        costs_from=as_run,
    )
    if is_steady(target):
        _check_keeps_saved(request)
    if candidates is not None and wanted is None and not dry_run:
        solve_candidates(request, candidates, format)
    elif candidates is not None and len(candidates.them) > 1:
        preview_candidates(request, candidates, format)
    elif dry_run:
        preview(request, format)
    elif is_steady(target):
        solve_steady(request, format)
    elif wanted is not None:
        solve_least(request, wanted, format)
    else:
        solve_within_limits(request, format)


def _check_keeps_saved(request: Request) -> None:
    if request.recompute != ():
        raise SynthError(
            f"--recompute {request.arguments['recompute']} and --target {STEADY} do not go "
            f"together: a steady state is searched for without recomputation; give a time as "
            f"target, or leave --recompute out"
        )


def _target(mem_limit: str | None, target: str | None) -> TimeTarget | None:
    """The target of `--mem-limit min`; none for any other limit."""
    if is_least(mem_limit) != (target is not None):
        given, missing = ("--target", f"--mem-limit {LEAST}")
        if target is None:
            given, missing = missing, given
        raise SynthError(
            f"{given} is given without {missing}; together they minimize memory "
            f"subject to a time, for example --mem-limit {LEAST} --target 105%"
        )
    return None if target is None or is_steady(target) else read_target(target)
