"""Arguments of Python as the texts that options are, and errors that name the arguments."""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from synth.errors import SynthError
from synth.messages import REWORDED
from synth.profile import Profile

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")

AnyProfile = Profile | str | Path

# An option of the command line in a message, such as `--mem-limit`.
_OPTION = re.compile(r"--([a-z][a-z-]*)")


def named_as_arguments(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Wrap a function so that its errors and messages say `mem_limit`, not `--mem-limit`."""

    @functools.wraps(function)
    def wrapped(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        token = REWORDED.set(_renamed)
        try:
            return function(*args, **kwargs)
        except SynthError as error:
            error.args = tuple(_renamed(str(said)) for said in error.args)
            raise
        finally:
            REWORDED.reset(token)

    return wrapped


def _renamed(said: str) -> str:
    return _OPTION.sub(lambda option: option[1].replace("-", "_"), said)


def profile_or_name(profile: AnyProfile) -> Profile | str:
    """Return a profile itself, or its path or name as text."""
    return profile if isinstance(profile, Profile) else str(profile)


def sizes_text(given: str | int | Sequence[int] | None) -> str | None:
    """`40GB` as it is; bytes as `40000000000B`, of several ranks separated by commas."""
    if given is None or isinstance(given, str):
        return given
    return ",".join(f"{size}B" for size in ([given] if isinstance(given, int) else given))


def numbers_text(given: str | Sequence[int] | None) -> str | None:
    """`3,3,2` as it is, or made from numbers."""
    return given if given is None or isinstance(given, str) else ",".join(map(str, given))


def seconds_text(given: str | float) -> str:
    """`60s` as it is, or made from seconds."""
    return given if isinstance(given, str) else f"{given:f}s"


def share_text(given: str | float) -> str:
    """`0.5%` as it is, or made from a share."""
    return given if isinstance(given, str) else f"{given:f}"


def links_texts(given: str | Sequence[str] | None) -> list[str] | None:
    """One link or several, as a list."""
    return [given] if isinstance(given, str) else None if given is None else list(given)
