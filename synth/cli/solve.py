"""`synth solve`: the best schedule that fits in memory, with a proven lower bound."""

from typing import Annotated

import typer

from synth.cli.answer.output import Format, FormatOption
from synth.cli.answer.preview import preview
from synth.cli.searches.least_cap import solve_least
from synth.cli.searches.steady_cap import solve_steady
from synth.cli.searches.trials import preview_candidates, solve_candidates
from synth.cli.searches.versions import solve_versions
from synth.cli.searches.weights import solve_weights
from synth.cli.searches.within_limits import solve_within_limits
from synth.options.arguments.solve import SolveArguments
from synth.options.asked_solve import read_solve
from synth.options.target import is_steady
from synth.records.command_option import After
from synth.records.record import Record


class SolveRequest(Record):
    """The options of `synth solve`."""

    arguments: SolveArguments
    dry_run: Annotated[
        bool,
        After("--solver"),
        typer.Option(
            "--dry-run",
            help="Show stages, costs, and whether the memory limit is feasible; do not search.",
        ),
    ] = False
    format: Annotated[FormatOption, After("--dry-run")] = Format.TEXT


def command(request: SolveRequest) -> None:
    """Find the best pipeline schedule that fits in memory, with a proven bound.

    Ctrl-C keeps the best schedule so far. Exit code 3: the memory limit is infeasible; 4: no
    schedule was found in time.
    """
    asked, dry_run, format = read_solve(request.arguments), request.dry_run, request.format
    if asked.weight_choices and (asked.target is None or dry_run):
        solve_weights(asked, format, is_dry=dry_run)
    elif asked.candidates is not None and asked.target is None and not dry_run:
        solve_candidates(asked.request, asked.candidates, format)
    elif asked.candidates is not None and asked.candidates.are_several:
        preview_candidates(asked.request, asked.candidates, format)
    elif dry_run:
        preview(asked.request, format, asked.flush_free)
    elif asked.flush_free is not None:
        solve_versions(asked, format)
    elif is_steady(request.arguments.target):
        solve_steady(asked.request, format)
    elif asked.target is not None:
        solve_least(asked.request, asked.target, format, asked.weight_candidates)
    else:
        solve_within_limits(asked.request, format)
