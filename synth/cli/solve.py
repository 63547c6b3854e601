"""`synth solve`: the best schedule that fits in memory, with a proven lower bound."""

from typing import Annotated

from synth.cli.answer.output import Format, FormatOption
from synth.cli.read.request import CommandRequest
from synth.options.arguments.groups import OUTPUT
from synth.options.arguments.solve import SolveArguments
from synth.records.command_option import After, CommandOption


class SolveRequest(CommandRequest):
    """Find the best pipeline schedule that fits in memory, with a proven bound.

    Ctrl-C keeps the best schedule so far. Exit code 3: the memory limit is infeasible; 4: no
    schedule was found in time.
    """

    arguments: SolveArguments
    dry_run: Annotated[
        bool,
        After("--solver"),
        OUTPUT,
        CommandOption(
            "Show stages, costs, and whether the memory limit is feasible; do not search."
        ),
    ] = False
    has_all_rows: Annotated[
        bool,
        After("--dry-run"),
        OUTPUT,
        CommandOption(
            "Show all schedules and candidates, not only those that matter most.", names=("--all",)
        ),
    ] = False
    format: Annotated[FormatOption, After("--all"), OUTPUT] = Format.TEXT
