"""Reading `--mem-limit`, `--target`, `--partition` and `--recompute`, against the profile."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synth.errors import SynthError
from synth.plan.memory_curve.target import TimeTarget
from synth.profile import Profile
from synth.units import format_bytes, format_bytes_both, parse_bytes, parse_seconds, shown

if TYPE_CHECKING:
    from synth.schedule.model import Placement

LEAST = "min"

# Names of a partition that is searched for, and of a balanced one.
SEARCH, SOUGHT = "auto", ("auto", "search")
EVEN = "even"

# Targets above this percentage of the bound are met by any schedule.
_MOST_PERCENT = 1_000_000

# Most digits of a stage's number.
_MOST_DIGITS = 6

# Prefix of the layers that `--recompute` lists.
LAYERS = "layers:"

# The target of a steady state without bubble.
STEADY = "steady"

# Share that `auto` reserves for the CUDA context, communicators' buffers and fragmentation.
RESERVED_SHARE = 0.1


@dataclass(frozen=True)
class MemoryLimit:
    """Memory limits by rank (None: no limit), and a sentence that explains them."""

    caps_bytes: tuple[int, ...] | None
    explanation: str


def read_limit(
    text: str | None, num_ranks: int, profile: Profile, reserve: str | None = None
) -> MemoryLimit:
    """Read one size for all ranks, one per rank separated by commas, `auto`, `min` or nothing.

    The limits are these sizes less the reserve, which is a size.

    Raises:
        SynthError: sizes without a clear unit, too few or too many, or `auto` without a capacity; a
            reserve without a limit, or as large as one.
    """
    if reserve is not None and (text is None or is_least(text)):
        raise SynthError(
            "--mem-reserve is subtracted from a --mem-limit that is a size or auto; give one, "
            "for example --mem-limit 40GB"
        )
    if text is None:
        return MemoryLimit(None, "no memory limit (--mem-limit sets one)")
    reserved = None if reserve is None else parse_bytes(reserve)
    if word(text) == "auto":
        return _automatic(num_ranks, profile, reserved)
    if is_least(text):
        return MemoryLimit(None, "memory limit: minimized subject to the target")
    given = tuple(parse_bytes(part) for part in text.split(","))
    if len(given) == 1:
        given *= num_ranks
    if len(given) != num_ranks:
        raise SynthError(
            f"--mem-limit gives {len(given)} sizes for {num_ranks} ranks; give one, or one per rank"
        )
    if min(given) <= 0:
        raise SynthError("--mem-limit must be more than 0 bytes; leave it out for no limit")
    caps = _less(given, reserved)
    listed = [format_bytes_both(cap) for cap in dict.fromkeys(caps)]
    limit = f"{listed[0]} on every rank" if len(listed) == 1 else ", ".join(map(format_bytes, caps))
    return MemoryLimit(caps, f"memory limit {limit}{_reserve_words(reserved)}")


def _less(sizes: tuple[int, ...], reserved: int | None) -> tuple[int, ...]:
    """Subtract the reserve from each size.

    Raises:
        SynthError: nothing is left.
    """
    caps = tuple(size - (reserved or 0) for size in sizes)
    if min(caps) <= 0:
        raise SynthError(
            f"--mem-reserve {format_bytes_both(reserved or 0)} leaves nothing of a limit of "
            f"{format_bytes_both(min(sizes))}; reserve less"
        )
    return caps


def _reserve_words(reserved: int | None) -> str:
    if reserved is None:
        return ""
    return (
        f", after a reserve of {format_bytes(reserved)} was subtracted; all limits below and in "
        f"files are without the reserve"
    )


def _automatic(num_ranks: int, profile: Profile, reserved: int | None) -> MemoryLimit:
    capacity = profile.capacity_bytes
    if capacity is None:
        raise SynthError(
            f"--mem-limit auto: profile {profile.name} does not say how much memory its device "
            f"has; give a size, for example 40GB"
        )
    if reserved is None:
        cap, less = round(capacity * (1 - RESERVED_SHARE)), f"{RESERVED_SHARE:.0%}"
    else:
        (cap,), less = _less((capacity,), reserved), format_bytes(reserved)
    return MemoryLimit(
        (cap,) * num_ranks,
        f"memory limit {format_bytes_both(cap)} on every rank: {format_bytes(capacity)} of "
        f"{profile.provenance.device} less {less} for context, communicators and "
        f"fragmentation",
    )


def word(text: str) -> str:
    """Normalize text for comparison with an option's keywords."""
    return text.strip().lower()


def is_least(text: str | None) -> bool:
    """Return True if the memory limit is to be minimized subject to a target."""
    return text is not None and word(text) == LEAST


def is_steady(target: str | None) -> bool:
    """Return True if the target is a steady state without bubble."""
    return target is not None and word(target) == STEADY


def read_target(text: str) -> TimeTarget:
    """Read a time (`850ms`, `1.2s`), or a share of the lower bound without a limit (`105%`).

    Raises:
        SynthError: neither, a time of 0, a share below 100%, which nothing can meet, or one that
            everything meets.
    """
    if text.strip().endswith("%"):
        share = _percentage(text)
        if share < 1:
            raise SynthError(
                f"--target {text!r} is below the lower bound, so no schedule meets it; give 100% "
                f"or more"
            )
        return TimeTarget(share_of_bound=share)
    if re.fullmatch(r"\s*[\d.]+\s*", text):
        raise SynthError(
            f"--target {text!r} has no unit; write for example 850ms, 1.2s, or 105% of the lower "
            f"bound"
        )
    time_us = round(parse_seconds(text) * 1e6)
    if time_us < 1:
        raise SynthError(f"--target {text!r} is no time; write for example 850ms or 1.2s")
    return TimeTarget(time_us=time_us)


def _percentage(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise SynthError(f"--target {text!r} is not understood; write for example 105% or 850ms")
    percentage = float(match[1])
    if percentage > _MOST_PERCENT:
        raise SynthError(
            f"--target {shown(text)} is so large that every schedule meets it; give at most "
            f"{_MOST_PERCENT}%"
        )
    return percentage / 100


def read_partition(text: str, where: "Placement") -> tuple[int, ...] | None:
    """Read the layers of each stage, `3,3,2`; None for `even` and for `auto`.

    Raises:
        SynthError: not one whole number above 0 per stage.
    """
    sizes = read_sizes(text)
    if sizes is not None and len(sizes) != where.num_stages:
        raise SynthError(f"--partition gives {len(sizes)} stages for {_needed_sizes(where)}")
    return sizes


def is_searched(partition: str) -> bool:
    """Return True if the partition is to be searched for."""
    return word(partition) in SOUGHT


def read_sizes(text: str) -> tuple[int, ...] | None:
    """Read the layers of any number of stages; None for a keyword.

    Raises:
        SynthError: something is no whole number above 0.
    """
    if word(text) == EVEN or is_searched(text):
        return None
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SynthError(
            f"--partition {text!r} is not understood; write auto, even, or layers per stage such "
            f"as 3,3,2"
        ) from None
    if min(sizes) < 1:
        stage = next(stage for stage, size in enumerate(sizes) if size < 1)
        raise SynthError(
            f"--partition gives stage {stage} {sizes[stage]} layers; every stage needs at least one"
        )
    return sizes


def _needed_sizes(where: "Placement") -> str:
    from synth.schedule.model import Placement

    if where == Placement.linear(where.num_ranks):
        return f"{where.num_ranks} ranks; give one size per rank"
    return (
        f"{where.num_ranks} ranks that hold {where.num_stages} stages in this placement; give one "
        f"size per stage"
    )


def read_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Read the layers that `--recompute` lists: `layers:3-8,10`, `layers:all`; else empty.

    Raises:
        SynthError: something is no layer.
    """
    name = word(text)
    if not name.startswith(LAYERS):
        return ()
    if name == f"{LAYERS}all":
        return tuple(range(num_layers))
    ranges = [_range(part) for part in name.removeprefix(LAYERS).split(",")]
    known = [one for one in ranges if one is not None and one.stop <= num_layers]
    if len(known) < len(ranges):
        raise SynthError(
            f"--recompute {shown(text)} is not understood; write layers from 0 to "
            f"{num_layers - 1}, such as {LAYERS}3-8 or {LAYERS}0,2,4, or {LAYERS}all"
        )
    return tuple(sorted({index for one in known for index in one}))


def _range(text: str) -> range | None:
    """`3-8`, both ends included, or `3`; None: neither."""
    match = re.fullmatch(
        rf"\s*(\d{{1,{_MOST_DIGITS}}})\s*(?:-\s*(\d{{1,{_MOST_DIGITS}}})\s*)?", text
    )
    if match is None:
        return None
    found = range(int(match[1]), int(match[2] or match[1]) + 1)
    return found if found else None


def read_recompute(text: str, num_stages: int) -> tuple[int, ...] | None:
    """Read the stages that recompute: `none`, `all`, `0,1,2`; None for `auto`.

    Raises:
        SynthError: something is no stage, or layers are listed (`read_layers` reads these).
    """
    name = word(text)
    if name.startswith(LAYERS):
        raise SynthError(
            f"--recompute {shown(text)} lists layers, which `synth solve` takes; give none, all, "
            f"auto, or stages such as 0,1"
        )
    if name in ("auto", "none", "all"):
        return {"auto": None, "none": (), "all": tuple(range(num_stages))}[name]
    parts = [part.strip() for part in text.split(",")]
    short = all(part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts)
    if not short or max(map(int, parts)) >= num_stages:
        raise SynthError(
            f"--recompute {shown(text)} is not understood; write none, all, auto, or stages from 0 "
            f"to {num_stages - 1}, such as 0,1; of `synth solve` also layers, such as {LAYERS}3-8"
        )
    return tuple(sorted({int(part) for part in parts}))
