"""The command line as one Typer application.

The heavy imports of a command (torch, ortools, pulp, networkx) stand inside its function, so that
`synth --help` is instant.
"""

from typing import Annotated

import typer

from synth.cli.progress.command import with_progress
from synth.cli.read.arguments import within_limits
from synth.cli.read.record_options import with_records
from synth.system.discovery import discover
from synth.version import __version__

__all__ = ["app"]

app = typer.Typer(
    name="synth",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure a model's pipeline stages, synthesize the best schedule that fits, replay it.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"synth {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options before the command."""


def _add_commands() -> None:
    for name, command in discover("synth.cli", "command"):
        app.command(name)(with_progress(name, within_limits(with_records(command))))


_add_commands()
