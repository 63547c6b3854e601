"""Reading `--target`: a time, a share of the lower bound, or a steady state without bubble."""

import re

from synth.errors import SynthError
from synth.options.keywords import word
from synth.options.memory_limit import LEAST, is_least
from synth.plan.memory_curve.target import TimeTarget
from synth.units import parse_seconds, shown

# The target of a steady state without bubble.
STEADY = "steady"

# Targets above this percentage of the bound are met by any schedule.
_MOST_PERCENT = 1_000_000


def is_steady(target: str | None) -> bool:
    """Return True if the target is a steady state without bubble."""
    return target is not None and word(target) == STEADY


def read_least_target(mem_limit: str | None, target: str | None) -> TimeTarget | None:
    """Return the time to meet with `--mem-limit min`; None if there is none.

    Raises:
        SynthError: one of the two options is given without the other; see `read_target`.
    """
    if is_least(mem_limit) != (target is not None):
        given, missing = ("§target", f"§mem_limit {LEAST}")
        if target is None:
            given, missing = missing, given
        raise SynthError(
            f"{given} is given without {missing}; together they minimize memory subject to a "
            f"time, such as 105% of the lower bound"
        )
    return None if target is None or is_steady(target) else read_target(target)


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
                f"§target {text!r} is below the lower bound, so no schedule meets it; give 100% "
                f"or more"
            )
        return TimeTarget(share_of_bound=share)
    if re.fullmatch(r"\s*[\d.]+\s*", text):
        raise SynthError(
            f"§target {text!r} has no unit; write for example 850ms, 1.2s, or 105% of the lower "
            f"bound"
        )
    time_us = round(parse_seconds(text) * 1e6)
    if time_us < 1:
        raise SynthError(f"§target {text!r} is no time; write for example 850ms or 1.2s")
    return TimeTarget(time_us=time_us)


def _percentage(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise SynthError(f"§target {text!r} is not understood; write for example 105% or 850ms")
    percentage = float(match[1])
    if percentage > _MOST_PERCENT:
        raise SynthError(
            f"§target {shown(text)} is so large that every schedule meets it; give at most "
            f"{_MOST_PERCENT}%"
        )
    return percentage / 100
