"""Commands of the command line, from functions that take values."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from synth.cli.progress.line import progress_line
from synth.cli.read.arguments import within_limits
from synth.cli.read.record_options import with_records
from synth.errors import SynthError
from synth.system.messages import silenced


class _Command(typer.core.TyperCommand):
    """A command that refuses an option of one value that is given twice, and that knows `--json`.

    Parsers take the last of such values without a word.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command's name.

        Raises:
            SynthError: an option of one value is given more than once.
        """
        args = self._in_full(args)
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if times > 1 and not may_repeat(option):
                names = "/".join((*option.opts, *option.secondary_opts))
                raise SynthError(
                    f"{names} is given more than once, and takes one value; give it once"
                )
        return super().parse_args(ctx, args)

    def _in_full(self, args: list[str]) -> list[str]:
        """Return the words with `--format json` for `--json`, where the command has a format."""
        if not any("--format" in parameter.opts for parameter in self.params):
            return args
        end = args.index("--") if "--" in args else len(args)
        full = {"--json": ("--format", "json")}
        return [each for word in args[:end] for each in full.get(word, (word,))] + args[end:]


def may_repeat(option: Any) -> bool:
    """Return True for options of several values, and for a flag that only says itself again."""
    is_plain_flag = getattr(option, "is_flag", False) and not option.secondary_opts
    several = getattr(option, "multiple", False) or getattr(option, "count", False)
    return is_plain_flag or several or option.param_type_name == "argument"


def parsed_command(name: str, function: Callable[..., None], settings: dict[str, Any]) -> Any:
    """Return a command that parses its options, checks them, and calls a function with the values.

    Args:
        function: its parameters are records, whose fields are options, or annotated for typer.
        settings: of the command's context.
    """
    alone = typer.Typer(add_completion=False)
    command = with_progress(name, within_limits(with_records(function)))
    alone.command(name, cls=_Command, context_settings=settings)(command)
    return typer.main.get_command(alone)


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
