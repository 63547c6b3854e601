"""Types of the values of options: each is read from a text, or is a plain value of Python."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Set
from numbers import Real
from typing import Annotated, Any, Final, Literal, SupportsInt

from pydantic import Field

from synth.errors import SynthError
from synth.objective import Objective
from synth.plan.memory_curve.target import TimeTarget
from synth.profile import Profile
from synth.profile.model_flops import parse_flops_per_s
from synth.profile.profile import RankSpeeds
from synth.records.command_option import Read
from synth.records.record import FileRecord
from synth.units import MOST_SUMMABLE, parse_bytes, parse_fraction, parse_seconds, shown

AUTO: Final = "auto"
EVEN: Final = "even"
NONE: Final = "none"
LEAST: Final = "min"
STEADY: Final = "steady"

# Targets above this percentage of the bound are met by any schedule.
_MOST_PERCENT = 1_000_000


def word(text: str) -> str:
    """Normalize text for comparison with an option's keywords."""
    return text.strip().lower()


# Numbers, texts and lists


def _number(given: object) -> float:
    if not isinstance(given, Real) or isinstance(given, bool):
        raise ValueError
    return float(given)


def _whole(given: object) -> int:
    """Return a whole number of any type, such as NumPy's or `4.0`, as an int."""
    number = _number(given)
    if number % 1 != 0 or not isinstance(given, SupportsInt):
        raise ValueError
    return int(given)


def _flag(given: object) -> bool:
    if given not in (True, False):
        raise ValueError
    return bool(given)


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError
    return given


def _listed(given: object) -> list[Any]:
    """Return the elements of a sequence, also of an array."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping | Set):
        raise ValueError
    return [*given]


def _texts(given: object) -> list[str]:
    return [given] if isinstance(given, str) else [_text(each) for each in _listed(given)]


def _or_number(parse: Callable[[str], float]) -> Callable[[object], float]:
    """Return the reader of a text, or of a number in the unit of the value."""
    return lambda given: parse(given) if isinstance(given, str) else _number(given)


Count = Annotated[int, Read(_whole, "a whole number", as_text=False)]
Flag = Annotated[bool, Read(_flag, "True or False", as_text=False)]


def text_like(examples: str) -> Read:
    """Return how a text is read, with examples."""
    return Read(_text, f"a text: {examples}", as_text=False)


def texts_like(example: str) -> Read:
    """Return how one text or several are read, with an example."""
    needed = f"a text such as {example!r}, or several"
    return Read(_texts, needed, written=", ".join, as_text=False)


# Units


def _read_bytes(given: object) -> int:
    size = parse_bytes(given) if isinstance(given, str) else _whole(given)
    if not 0 <= size <= MOST_SUMMABLE:
        raise ValueError
    return size


def _read_seconds(given: object) -> float:
    seconds = parse_seconds(given) if isinstance(given, str) else _number(given)
    if not 0 <= 1e6 * seconds <= MOST_SUMMABLE:
        raise ValueError
    return seconds


def _read_time_limit(given: object) -> float:
    limit_s = _read_seconds(given)
    if limit_s == 0:
        text = given if isinstance(given, str) else f"{limit_s:g}s"
        raise SynthError(
            f"§time_limit {text} leaves no time to search; give seconds, such as 60, or a time "
            f"such as 2m"
        )
    return limit_s


def _write_bytes(size: int) -> str:
    """Return the shortest text that is read as these bytes: `40GB`, `37.5GiB`, `1234567B`."""
    units = {"GB": 10**9, "MB": 10**6, "kB": 10**3, "GiB": 1 << 30, "MiB": 1 << 20}
    texts = [f"{size / factor:.10g}{unit}" for unit, factor in units.items()]
    exact = [text for text in texts if "e" not in text and parse_bytes(text) == size]
    return min((*exact, f"{size}B"), key=len)


Bytes = Annotated[int, Read(_read_bytes, "a size such as '40GB', or bytes", written=_write_bytes)]
TimeLimit = Annotated[
    float,
    Read(
        _read_time_limit,
        "seconds, such as 60, or a time such as '2m'",
        written=lambda limit_s: f"{limit_s:.10g}s",
    ),
]
Share = Annotated[
    float,
    Read(
        _or_number(parse_fraction),
        "a share, such as 0.005 or '0.5%'",
        written=lambda share: f"{100 * share:.10g}%",
    ),
    Field(ge=0, le=1),
]
FlopsPerS = Annotated[
    float, Read(_or_number(parse_flops_per_s), "a rate such as 989e12 or '989TFLOPS'")
]


def _read_speeds(given: object) -> tuple[float, ...]:
    parts = given.split(",") if isinstance(given, str) else _listed(given)
    return tuple(float(part) if isinstance(part, str) else _number(part) for part in parts)


Speeds = Annotated[
    RankSpeeds,
    Read(
        _read_speeds,
        "the speed of each rank, such as '1,1,0.5,1'",
        written=lambda speeds: ",".join(f"{speed:.10g}" for speed in speeds),
    ),
]


# The memory limit, and the time to meet with the least one


def _read_limit(given: object) -> tuple[int, ...] | str:
    if not isinstance(given, str):
        parts = _listed(given) if isinstance(given, Iterable) else [given]
        if not parts:
            raise ValueError
    elif word(given) in (AUTO, LEAST, NONE):
        return word(given)
    else:
        parts = given.split(",")
    return tuple(_read_bytes(part) for part in parts)


def _write_limit(limit: tuple[int, ...] | str) -> str:
    return limit if isinstance(limit, str) else ",".join(map(_write_bytes, limit))


Limit = Annotated[
    tuple[int, ...] | Literal["auto", "min", "none"],
    Read(
        _read_limit,
        "a size such as '40GB', bytes, or one of these for each rank",
        written=_write_limit,
    ),
]


def _read_target(given: object) -> TimeTarget | str:
    """Read a time (`850ms`, `1.2s`), or a share of the lower bound without a limit (`105%`).

    Raises:
        SynthError: neither, a time of 0, a share below 100%, which nothing can meet, or one that
            everything meets.
    """
    if isinstance(given, TimeTarget):
        return given
    if not isinstance(given, str):
        return _time_target(_read_seconds(given), f"{given}s")
    if word(given) == STEADY:
        return STEADY
    if given.strip().endswith("%"):
        return TimeTarget(share_of_bound=_share_of_bound(given))
    if re.fullmatch(r"\s*[\d.]+\s*", given):
        raise SynthError(
            f"§target {given!r} has no unit; write for example 850ms, 1.2s, or 105% of the lower "
            f"bound"
        )
    return _time_target(parse_seconds(given), given)


def _time_target(time_s: float, text: str) -> TimeTarget:
    if round(1e6 * time_s) < 1:
        raise SynthError(f"§target {text!r} is no time; write for example 850ms or 1.2s")
    return TimeTarget(time_us=round(1e6 * time_s))


def _share_of_bound(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise SynthError(f"§target {text!r} is not understood; write for example 105% or 850ms")
    percentage = float(match[1])
    if percentage > _MOST_PERCENT:
        raise SynthError(
            f"§target {shown(text)} is so large that every schedule meets it; give at most "
            f"{_MOST_PERCENT}%"
        )
    if percentage < 100:
        raise SynthError(
            f"§target {text!r} is below the lower bound, so no schedule meets it; give 100% or more"
        )
    return percentage / 100


def _write_target(target: TimeTarget | str) -> str:
    if isinstance(target, str):
        return target
    if target.share_of_bound is not None:
        return f"{100 * target.share_of_bound:.10g}%"
    assert target.time_us is not None
    unit, factor = ("s", 1e6) if target.time_us % 100_000 == 0 else ("ms", 1e3)
    return f"{target.time_us / factor:.10g}{unit}"


Target = Annotated[
    TimeTarget | Literal["steady"],
    Read(
        _read_target, "seconds, such as 0.85, or '850ms', '105%' or 'steady'", written=_write_target
    ),
]


# The problem


def _read_objective(given: object) -> Objective:
    try:
        return given if isinstance(given, Objective) else Objective.parse(_text(given))
    except ValueError as error:
        if isinstance(given, str):
            raise SynthError(f"§objective {error}") from None
        raise


ObjectiveValue = Annotated[
    Objective, Read(_read_objective, "a text: 'makespan', 'period' or 'iterations:8'")
]


def _read_partition(given: object) -> tuple[int, ...] | str:
    """Read the layers of each stage, or a keyword; `search` is another word for `auto`.

    Raises:
        SynthError: something is no whole number above 0.
    """
    if not isinstance(given, str):
        sizes = tuple(_whole(part) for part in _listed(given))
        if not sizes:
            raise ValueError
    elif word(given) in (AUTO, EVEN, "search"):
        return EVEN if word(given) == EVEN else AUTO
    else:
        try:
            sizes = tuple(int(part) for part in given.split(","))
        except ValueError:
            raise SynthError(
                f"§partition {given!r} is not understood; write auto, even, or layers per stage "
                f"such as 3,3,2"
            ) from None
    if min(sizes) < 1:
        stage = next(stage for stage, size in enumerate(sizes) if size < 1)
        raise SynthError(
            f"§partition gives stage {stage} {sizes[stage]} layers; every stage needs at least one"
        )
    return sizes


def written_partition(partition: tuple[int, ...] | str) -> str:
    """Return a partition as it is written on the command line."""
    return partition if isinstance(partition, str) else ",".join(map(str, partition))


Partition = Annotated[
    tuple[int, ...] | Literal["auto", "even"],
    Read(
        _read_partition,
        "layers per stage, such as (3, 3, 2), 'even' or 'auto'",
        written=written_partition,
    ),
]


# Files, and what they hold


def _read_profile(given: object) -> Profile | str:
    if _is_plan(given):
        raise SynthError(
            f"§profile is a Plan, which has the costs of its stages alone; give the profile that "
            f"it was made from ({getattr(given, 'profile_name', None)})"
        )
    return given if isinstance(given, Profile) else _path(given)


def _read_hint(given: object) -> object:
    return given if _is_plan(given) else _path(given)


def _is_plan(given: object) -> bool:
    """Return True of a Plan, whose module takes long to import."""
    return isinstance(given, FileRecord) and given.FORMAT == "synth-schedule"


def _path(given: object) -> str:
    if not isinstance(given, str | os.PathLike):
        raise ValueError
    return os.fspath(given)


ProfileSource = Annotated[
    Profile | str,
    Read(_read_profile, "a Profile, the path of a profile file, or the name of a shipped one"),
]
Hint = Annotated[
    FileRecord | str,
    Read(
        _read_hint,
        "a Plan (synth.simulate makes one of a Schedule), the path of a plan file, or a name such "
        "as 'zb-h1'",
        written=lambda hint: hint if isinstance(hint, str) else hint.name,
    ),
]
