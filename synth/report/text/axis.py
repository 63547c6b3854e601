"""Time axes: round times in few digits, and a ruler of text with their labels under it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

_UNITS = ((1.0, "µs"), (1e3, "ms"), (1e6, "s"))

# Digits of a label from which ticks are counted from a time shortly before the range.
_MOST_DIGITS = 4


@dataclass(frozen=True)
class TickLabels:
    """The labels of ticks: times after a beginning, in a unit by which they have few digits.

    Attributes:
        after_us: the beginning; 0 if times from 0 on have few digits.
        unit_us: the unit in microseconds.
    """

    after_us: float
    unit_us: float
    unit: str

    @classmethod
    def of(cls, ticks_us: Sequence[float], length_us: float) -> Self:
        """Choose unit and beginning for ticks, equally far apart, in a range of some length."""
        return cls.in_unit(max(each for each in _UNITS if each[0] <= max(length_us, 1.0)), ticks_us)

    @classmethod
    def in_unit(cls, unit: tuple[float, str], ticks_us: Sequence[float]) -> Self:
        """Choose the beginning for ticks in a unit, which is given with its microseconds."""
        plain = cls(0.0, *unit)
        digits = (sum(map(str.isdigit, plain.label(tick_us))) for tick_us in ticks_us)
        if len(ticks_us) < 2 or max(digits) <= _MOST_DIGITS:
            return plain
        round_us = 10.0 ** math.ceil(math.log10(2 * (ticks_us[1] - ticks_us[0])))
        return cls(math.floor(ticks_us[0] / round_us + 1e-9) * round_us, *unit)

    def label(self, time_us: float) -> str:
        """Return a tick's label."""
        return _trimmed((time_us - self.after_us) / self.unit_us)

    @property
    def beginning(self) -> str:
        """The beginning with its unit: `4.953 s`."""
        unit_us, unit = max(each for each in _UNITS if each[0] <= max(self.after_us, 1.0))
        return f"{_trimmed(self.after_us / unit_us)} {unit}"

    @property
    def title(self) -> str:
        """The title of the axis: `time, ms`, or `time after 4.953 s, µs`."""
        return f"time{f' after {self.beginning}' if self.after_us else ''}, {self.unit}"


def _trimmed(value: float) -> str:
    """Format a number with as many decimals as it has, up to six."""
    text = f"{value:,.6f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def axis(start_us: float, end_us: float, width: int) -> tuple[str, str]:
    """Draw a ruler and its labels, `width` cells for the time from start to end.

    The first label carries the unit, and the time after which the others are if there is one; ticks
    stand at 1, 2 or 5 times a power of ten.
    """
    length_us = max(end_us - start_us, 1e-9)
    unit_us, unit = max((u for u in _UNITS if u[0] <= max(length_us, 1.0)), key=lambda u: u[0])
    if length_us / unit_us < 5 and unit_us > 1:
        unit_us, unit = unit_us / 1000, {"ms": "µs", "s": "ms"}[unit]
    longest = min(_MOST_DIGITS + 2, len(f"{end_us / unit_us:,.0f}"))
    step_us = _round_step(length_us * max(10, longest + 3) / width)
    first, last = math.ceil(start_us / step_us), math.floor(end_us / step_us)
    ticks_us = [place * step_us for place in range(first, last + 1)]
    shown = TickLabels.in_unit((unit_us, unit), ticks_us)
    ruler = ["─"] * width
    labels = [" "] * (width + longest + len(unit) + 1)
    free = 0
    for tick_us in ticks_us:
        cell = min(width - 1, int((tick_us - start_us) / length_us * width))
        text = f"{'+' if shown.after_us else ''}{shown.label(tick_us)}"
        if free == 0:
            text = f"{shown.beginning} {text} {unit}" if shown.after_us else f"{text} {unit}"
        ruler[cell] = "┬"
        if cell >= free and cell + len(text) <= len(labels):
            labels[cell : cell + len(text)] = text
            free = cell + len(text) + 1
    return "".join(ruler), "".join(labels).rstrip()


def _round_step(at_least_us: float) -> float:
    """Return the smallest of 1, 2, 5 · 10ᵏ that is large enough."""
    step = 1.0
    while step < at_least_us:
        for factor in (1, 2, 5):
            if factor * step >= at_least_us:
                return factor * step
        step *= 10
    return step
