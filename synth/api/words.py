"""Arguments of Python as the texts that options are, and errors that name the arguments."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from numbers import Real
from typing import ParamSpec, TypeGuard, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from synth.errors import SynthError
from synth.option_names import IN_PYTHON
from synth.options.arguments.groups import PipelineArguments, RuntimeArguments
from synth.options.memory_limit import is_least
from synth.plan.runtimes import Runtime
from synth.profile import Profile
from synth.records.safe_read import AnyPath
from synth.schedule.files.plan_file import Plan

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")

AnyProfile = Profile | AnyPath

_SIZES = "layers per stage, such as (3, 3, 2), 'even' or 'auto'"
_SECONDS = "seconds, such as 60, or a time such as '2m'"
_SHARE = "a share, such as 0.005 or '0.5%'"

# Characters of a wrong value that a message shows.
_MOST_SHOWN = 60


def named_as_arguments(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Wrap a function so that its errors and messages say `mem_limit`, not `--mem-limit`."""

    @functools.wraps(function)
    def wrapped(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        token = IN_PYTHON.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            IN_PYTHON.reset(token)

    return wrapped


def runtime_arguments(runtime: object, offload: object) -> RuntimeArguments:
    """Return the group of `--for` and `--offload`.

    Raises:
        SynthError: no runtime is called so, or `offload` is not a truth value.
    """
    known = " or ".join(map(repr, map(str, Runtime)))
    return RuntimeArguments(
        runtime=option_text(runtime, "runtime", known), offload=truth(offload, "offload")
    )


def profile_or_name(profile: AnyProfile) -> Profile | str:
    """Return a profile itself, or its path or name as text.

    Raises:
        SynthError: something else.
    """
    if isinstance(profile, Profile):
        return profile
    if isinstance(profile, str | os.PathLike):
        return os.fspath(profile)
    if isinstance(profile, Plan):
        raise SynthError(
            f"profile is a Plan, which has the costs of its stages alone; give the profile that it "
            f"was made from ({profile.profile_name})"
        )
    raise _not_understood(
        "profile", profile, "a Profile, the path of a profile file, or the name of a shipped one"
    )


def pipeline_arguments(profile: Profile | str, ranks: int, micro_batches: int) -> PipelineArguments:
    """Return the name of a profile with the size of its pipeline."""
    return PipelineArguments(
        profile_name=profile.name if isinstance(profile, Profile) else profile,
        ranks=whole_number(ranks, "ranks", 1),
        micro_batches=whole_number(micro_batches, "micro_batches", 1),
    )


@contextmanager
def limits_told() -> Iterator[None]:
    """Tell of a value beyond the limits of a record's field as of other wrong values.

    Raises:
        SynthError: there is such a value.
    """
    try:
        yield
    except ValidationError as error:
        found = error.errors()[0]
        name, needed = str(found["loc"][-1]), _needed(found)
        raise _not_understood(name, found["input"], needed) from None


def _needed(found: ErrorDetails) -> str:
    limits = found.get("ctx", {})
    if "le" in limits:
        return f"at most {limits['le']}"
    if "ge" in limits:
        return f"{limits['ge']} or more"
    return str(limits.get("expected", found["msg"]))


def whole_number(given: object, name: str, least: int | None = None) -> int:
    """Return a whole number of any type, such as NumPy's or `4.0`, as an int.

    Raises:
        SynthError: something else, or less than `least`.
    """
    if not _is_whole(given):
        raise _not_understood(name, given, "a whole number")
    if least is not None and given < least:
        raise SynthError(f"{name}={given} is too few; give {least} or more")
    return int(given)


def number_or_none(given: object, name: str, least: int | None = None) -> int | None:
    """Return None as it is, and all else as `whole_number` does."""
    return None if given is None else whole_number(given, name, least)


def option_text(given: object, name: str, examples: str) -> str:
    """Return a text as it is.

    Raises:
        SynthError: something else; the message shows the examples.
    """
    if not isinstance(given, str):
        raise _not_understood(name, given, f"a text: {examples}")
    return given


def text_or_none(given: object, name: str, examples: str) -> str | None:
    """Return None as it is, and all else as `option_text` does."""
    return None if given is None else option_text(given, name, examples)


def objective_text(given: object) -> str:
    """Return `objective`, which is a text."""
    return option_text(given, "objective", "'makespan', 'period' or 'iterations:8'")


def recompute_text(given: object) -> str | None:
    """Return `recompute`, which is a text or None."""
    return text_or_none(given, "recompute", "'none', 'all', 'auto', or stages such as '0,1'")


def truth(given: object, name: str) -> bool:
    """Return True or False, also of NumPy's type, as a bool.

    Raises:
        SynthError: something else, such as a text.
    """
    if given not in (True, False):
        raise _not_understood(name, given, "True or False")
    return bool(given)


def check_callable(given: object, name: str) -> None:
    """Check an argument that is to be called, unless it is None.

    Raises:
        SynthError: it cannot be called.
    """
    if given is not None and not callable(given):
        raise _not_understood(name, given, "a function")


def sizes_text(given: str | int | Sequence[int | str] | None, name: str) -> str | None:
    """`40GB` as it is; bytes as `40000000000B`, of several ranks separated by commas."""
    return _listed(given, name, "B", "a size such as '40GB', bytes, or one of these for each rank")


def limit_text(given: str | int | Sequence[int | str] | None) -> str | None:
    """Return `mem_limit` as text.

    Raises:
        SynthError: it is `min`, which only a search for the least memory knows, or no size.
    """
    text = sizes_text(given, "mem_limit")
    if is_least(text):
        raise SynthError(
            "mem_limit='min' is only of synth.solve, with a target; give a size, such as '40GB'"
        )
    return text


def numbers_text(given: str | Sequence[int] | None, name: str) -> str | None:
    """`3,3,2` as it is, or made from numbers."""
    if isinstance(given, Real):
        raise _not_understood(name, given, _SIZES)
    return _listed(given, name, "", _SIZES)


def _listed(given: object, name: str, unit: str, needed: str) -> str | None:
    """Return numbers as texts with a unit, separated by commas; texts and None as they are."""
    if given is None or isinstance(given, str):
        return given
    listed = []
    for part in _parts(given):
        if not isinstance(part, str) and not _is_whole(part):
            raise _not_understood(name, given, needed)
        listed.append(part if isinstance(part, str) else f"{int(part)}{unit}")
    if not listed:
        raise _not_understood(name, given, needed)
    return ",".join(listed)


def _is_whole(given: object) -> TypeGuard[int]:
    """True of an int, and of NumPy's and `4.0`, which `int` makes one of."""
    return isinstance(given, Real) and not isinstance(given, bool) and given % 1 == 0


def seconds_text(given: str | float, name: str = "time_limit") -> str:
    """`60s` as it is, or made from seconds."""
    if isinstance(given, str):
        return given
    return f"{_real(given, name, _SECONDS):f}".rstrip("0").rstrip(".") + "s"


def share_text(given: str | float) -> str:
    """`0.5%` as it is, or made from a share."""
    return given if isinstance(given, str) else f"{_real(given, 'gap', _SHARE):f}"


def _real(given: object, name: str, needed: str) -> float:
    if not isinstance(given, Real) or isinstance(given, bool):
        raise _not_understood(name, given, needed)
    return float(given)


def texts(given: str | Sequence[str] | None, name: str, example: str) -> list[str] | None:
    """Return one text or several as a list; None as it is.

    Raises:
        SynthError: something else.
    """
    if given is None:
        return None
    parts = [given] if isinstance(given, str) else _parts(given)
    found = [part for part in parts if isinstance(part, str)]
    if len(found) < len(parts) or not isinstance(given, Iterable):
        raise _not_understood(name, given, f"a text such as {example!r}, or several")
    return found


def links_texts(given: str | Sequence[str] | None) -> list[str] | None:
    """One link or several, as a list."""
    return texts(given, "link", "10us,25GB/s")


def _parts(given: object) -> list[object]:
    """Return the elements of a sequence, also of an array; of anything else itself."""
    if isinstance(given, Iterable) and not isinstance(given, bytes | Mapping | Set):
        return [*given]
    return [given]


def _not_understood(name: str, given: object, needed: str) -> SynthError:
    return SynthError(f"{name}={shown_value(given)} is not understood; give {needed}")


def shown_value(given: object) -> str:
    """Return the first line of a value's `repr`, shortened."""
    line = repr(given).partition("\n")[0]
    return line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}…"
