"""Commands of the command line, from functions that take values."""

from collections.abc import Callable
from typing import Any

import typer
import typer.main

from synth.cli.progress.command import with_progress
from synth.cli.read.arguments import within_limits
from synth.cli.read.record_options import with_records


def parsed_command(name: str, function: Callable[..., None]) -> Any:
    """Return a command that parses its options, checks them, and calls a function with the values.

    Args:
        name: of the command.
        function: its parameters are records, whose fields are options, or annotated for typer.
    """
    alone = typer.Typer(add_completion=False)
    alone.command(name)(with_progress(name, within_limits(with_records(function))))
    return typer.main.get_command(alone)
