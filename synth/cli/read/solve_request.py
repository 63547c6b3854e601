"""The options of `synth solve`."""

from typing import Annotated

import typer

from synth.cli.answer.output import Format, FormatOption
from synth.options.arguments.groups import OUTPUT
from synth.options.arguments.solve import SolveArguments
from synth.records.command_option import After
from synth.records.record import Record


class SolveRequest(Record):
    """The options of `synth solve`."""

    arguments: SolveArguments
    dry_run: Annotated[
        bool,
        After("--solver"),
        OUTPUT,
        typer.Option(
            "--dry-run",
            help="Show stages, costs, and whether the memory limit is feasible; do not search.",
        ),
    ] = False
    format: Annotated[FormatOption, After("--dry-run"), OUTPUT] = Format.TEXT
