"""The command line as one Typer application.

A command is a record of its options in a module of this folder, and a function `work` in the module
of the same name in `work`. The first is imported when the command is named, the second when it is
called. The list of commands needs the docstring of the record only, which is read from the source,
so that `synth --help` is instant.
"""

import functools
import importlib
import keyword
from typing import Annotated, Any

import typer
import typer.core

from synth.system.discovery import docstrings
from synth.system.processors import limit_ranks
from synth.version import __version__

__all__ = ["app"]


_SETTINGS = {"help_option_names": ["-h", "--help"]}


class _Commands(typer.core.TyperGroup):
    """The commands of this folder, each imported when it is called."""

    def __init__(self, **options: Any) -> None:
        """List the commands: their names and helps."""
        super().__init__(**options)
        for name, text in docstrings("synth.cli", "Request"):
            self.commands[name] = typer.core.TyperCommand(name, help=text)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name of the command that is called, the command, and its arguments.

        `get_command` returns the command as it is listed: the list of commands asks it for each.
        """
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None else command_named(listed.name), rest


@functools.cache
def command_named(name: str) -> Any:
    """Return a command with its options: the record `CheckRequest` of the module `check`."""
    from synth.cli.read.parsed_command import parsed_command  # with pydantic, which takes 0.2 s

    module = f"{name}_" if keyword.iskeyword(name) else name
    record = getattr(importlib.import_module(f"synth.cli.{module}"), f"{name.title()}Request")

    def work(request: Any) -> None:
        if request.launches_ranks:
            limit_ranks()
        importlib.import_module(f"synth.cli.work.{module}").work(request)

    return parsed_command(name, record, work, _SETTINGS)


app = typer.Typer(
    name="synth",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
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
