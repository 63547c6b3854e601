"""The line of progress of a command, and `--quiet`, which leaves it and all messages out."""

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from synth.cli.progress.line import progress_line
from synth.system.messages import silenced

QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print the answer only, and warnings and errors if any."),
]

_NAME = "quiet"


def with_progress(name: str, command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with a line of progress and the option `--quiet`."""

    @functools.wraps(command)
    def shown(*, quiet: bool = False, **values: Any) -> None:
        with ExitStack() as stack:
            if quiet:
                stack.enter_context(silenced())
            stack.enter_context(progress_line(name))
            command(**values)

    # Typer reads the options from these two.
    signature = inspect.signature(command)
    parameter = inspect.Parameter(
        _NAME, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=QuietOption
    )
    parameters = [*signature.parameters.values(), parameter]
    shown.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    shown.__annotations__ = {**command.__annotations__, _NAME: QuietOption}
    return shown
