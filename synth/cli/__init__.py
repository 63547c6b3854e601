"""The commands: each is a module of this folder with a function `command`, found by being here.

A command's heavy imports (torch, ortools, pulp, networkx) stand inside its function, so that
`synth --help` is instant.
"""

import errno
import importlib
import io
import pkgutil
import sys
from typing import Annotated, NoReturn

import typer

from synth import __version__
from synth.cli.arguments import refuse_empty, within_limits
from synth.errors import ExitCode, SynthError
from synth.terminal import as_message

__all__ = ["app", "main"]

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
    """Options that stand before the command."""


def _add_commands() -> None:
    for found in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{found.name}")
        command = getattr(module, "command", None)
        if command is not None:
            app.command(found.name)(within_limits(command))


_add_commands()


def main() -> None:
    """Run the command line: a user's mistake is one message on stderr, a bug a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal gets ? for µ, not a traceback
    try:
        refuse_empty(sys.argv)
        app(prog_name="synth")
    except SynthError as error:
        _end(str(error), error.exit_code)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            _end(f"{error.filename}: {error.strerror}; give another path", ExitCode.USAGE)
        if error.errno not in (errno.ENOSPC, errno.EPIPE, errno.EIO):
            raise
        _end(f"cannot write the answer: {error.strerror or error}", ExitCode.FAILURE)


def _end(message: str, exit_code: ExitCode) -> NoReturn:
    """Say what is wrong, whatever is in the names that the message quotes, and exit."""
    print(f"error: {as_message(message)}", file=sys.stderr)
    sys.exit(exit_code)
