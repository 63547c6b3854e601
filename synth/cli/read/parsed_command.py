"""Commands of the command line, from records of their options and functions that take these."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Annotated, Any, TypeVar

import typer
import typer.core
import typer.main

from synth.cli.progress.line import progress_line
from synth.cli.read.arguments import refuse_absurd
from synth.cli.read.record_options import with_parameters, with_record
from synth.errors import SynthError
from synth.records.record import Record, without_prefix
from synth.system.messages import silenced

_Made = TypeVar("_Made", bound=Record)

_QUIET = inspect.Parameter(
    "quiet",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print the answer only, and warnings and errors if any."
        ),
    ],
)

# The names of the options and arguments that the command line gives, and how it writes them.
_GIVEN: ContextVar[Mapping[str, str]] = ContextVar("GIVEN")


def given_options() -> Mapping[str, str]:
    """Return how the options are written that the running command was given, by their names."""
    return _GIVEN.get()


class _Command(typer.core.TyperCommand):
    """A command that refuses an option of one value that is given twice, and that knows `--json`.

    Parsers take the last of such values without a word.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command's name.

        Raises:
            SynthError: an option of one value is given more than once.
            typer.BadParameter: a value is wrong; without the prefix of pydantic's messages.
        """
        args = self._in_full(args)
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if times > 1 and not may_repeat(option):
                names = "/".join((*option.opts, *option.secondary_opts))
                raise SynthError(
                    f"{names} is given more than once, and takes one value; give it once"
                )
        _GIVEN.set({each.name or "": each.opts[0] for each in self.params if each in given})
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = without_prefix(error.message)
            raise

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


def parsed_command(
    name: str,
    record: type[_Made],
    work: Callable[[_Made], object],
    settings: Mapping[str, Any],
) -> Any:
    """Return a command that parses its options into a record, and calls a function with it.

    It has a line of progress and the option `--quiet`, which leaves out that line and all messages.

    Args:
        record: its fields are the options, and its docstring the help.
        settings: of the command's context.
    """
    parsed = with_record(record, work)

    def command(*, quiet: bool = False, **values: Any) -> None:
        with ExitStack() as stack:
            if quiet:
                stack.enter_context(silenced())
            stack.enter_context(progress_line(name))
            refuse_absurd(values)
            parsed(**values)

    alone = typer.Typer(add_completion=False)
    with_parameters(command, [*inspect.signature(parsed).parameters.values(), _QUIET])
    alone.command(name, cls=_Command, context_settings=dict(settings), help=record.__doc__)(command)
    return typer.main.get_command(alone)
