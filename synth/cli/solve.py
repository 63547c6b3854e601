"""`synth solve`: the best schedule that fits in memory, with a proven lower bound."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from synth.cli.answer.output import Format, FormatOption
from synth.cli.answer.preview import preview
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
    PeakFlopsOption,
    PipelinesOption,
    ProfileArgument,
    RanksOption,
    SeedOption,
    VersionsOption,
    WeightsOption,
)
from synth.cli.searches.least_cap import solve_least
from synth.cli.searches.search import solve_within_limits
from synth.cli.searches.steady_cap import solve_steady
from synth.cli.searches.trials import preview_candidates, solve_candidates
from synth.cli.searches.versions import solve_versions
from synth.cli.searches.weights import solve_weights
from synth.options.solve_arguments import SolveArguments, read_solve
from synth.options.target import is_steady


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
    weights: WeightsOption = "stay",
    data_parallel: PipelinesOption = 1,
    versions: VersionsOption = None,
    link: LinkOption = None,
    peak_flops: PeakFlopsOption = None,
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
            help="Show stages, costs, and whether the memory limit is feasible; do not search.",
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
    asked = read_solve(
        SolveArguments(
            profile_name=profile_name,
            ranks=ranks,
            micro_batches=micro_batches,
            mem_limit=mem_limit,
            mem_reserve=mem_reserve,
            target=target,
            output=output,
            objective=objective,
            placement=placement,
            partition=partition,
            recompute=recompute,
            link=link,
            time_limit=time_limit,
            gap=gap,
            seed=seed,
            deterministic=deterministic,
            workers=workers,
            hint=hint,
            solver=solver,
            verbose=verbose,
            weights=weights,
            peak_flops=peak_flops,
            data_parallel=data_parallel,
            versions=versions,
        )
    )
    if asked.weight_choices and (asked.target is None or dry_run):
        solve_weights(asked, format, is_dry=dry_run)
    elif asked.candidates is not None and asked.target is None and not dry_run:
        solve_candidates(asked.request, asked.candidates, format)
    elif asked.candidates is not None and len(asked.candidates.them) > 1:
        preview_candidates(asked.request, asked.candidates, format)
    elif dry_run:
        preview(asked.request, format, asked.flush_free)
    elif asked.flush_free is not None:
        solve_versions(asked, format)
    elif is_steady(target):
        solve_steady(asked.request, format)
    elif asked.target is not None:
        solve_least(asked.request, asked.target, format, asked.weight_candidates)
    else:
        solve_within_limits(asked.request, format)
