"""Output of the commands: results go to stdout, messages to stderr."""

import json
import os
import shutil
import sys
from enum import StrEnum
from textwrap import fill
from typing import Annotated, Any, NamedTuple

import typer

from synth.profile import Profile
from synth.profile.measurement_conditions import Conditions
from synth.profile.measurement_conditions import warn_of as warn_of
from synth.records.command_option import CommandOption
from synth.system.messages import talk as talk
from synth.system.terminal_text import escaped
from synth.units import format_us

# Columns of sentences where there is no terminal.
_COLUMNS = 100


class Format(StrEnum):
    """Output format on stdout."""

    TEXT = "text"
    JSON = "json"


class AnswerForm(NamedTuple):
    """The format of an answer, and whether its tables have all rows or only those that matter."""

    format: Format
    has_all_rows: bool = False


FormatOption = Annotated[Format, CommandOption("Output on stdout; --json is --format json.")]


def answer(text: str) -> None:
    """Write to stdout."""
    typer.echo(escaped(text))


def answer_json(data: dict[str, Any]) -> None:
    """Write one JSON object to stdout."""
    typer.echo(json.dumps(data, indent=1))


def conditions_json(conditions: Conditions | None) -> dict[str, Any] | None:
    """Render the conditions of a profile for scripts; None where they were not noted."""
    return None if conditions is None else conditions.model_dump(exclude_none=True)


def estimate_lines(profile: Profile) -> list[str]:
    """Return the line over answers from an estimated profile, and an empty one; else nothing."""
    estimate = profile.provenance.estimate
    return [] if estimate is None else [f"{profile.name}: {estimate.words}", ""]


def estimate_json(profile: Profile) -> dict[str, Any]:
    """Render the estimate of a profile for scripts; nothing where it was measured."""
    estimate = profile.provenance.estimate
    return {} if estimate is None else {"estimate": estimate.model_dump(mode="json")}


def is_first_process() -> bool:
    """Return True in the process that prints: rank 0 of torchrun, or one without launcher."""
    return os.environ.get("RANK", "0") == "0"


def window_columns() -> int | None:
    """Return the width of the terminal; None: stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str) -> str:
    """Return a sentence in lines of the terminal's width, or of 100 characters."""
    return fill(text, window_columns() or _COLUMNS, subsequent_indent="     ")


def percent(share: float, decimals: int = 2) -> str:
    """A share for people: `12.34 %`."""
    return f"{100 * share:.{decimals}f} %"


def value_line(objective: str, value_us: int, lower_bound_us: int, gap: float) -> str:
    """Return the line of value, lower bound and gap, to the microsecond."""
    proven = "proven optimal" if gap == 0 else f"gap {percent(gap)}"
    return (
        f"{objective} {format_us(value_us)} ({value_us} µs), "
        f"lower bound {format_us(lower_bound_us)} ({lower_bound_us} µs), {proven}"
    )
