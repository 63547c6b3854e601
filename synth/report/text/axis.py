"""A time axis of text: a ruler with ticks at round times, and their labels under it."""

import math

_UNITS = ((1.0, "µs"), (1e3, "ms"), (1e6, "s"))


def axis(start_us: float, end_us: float, width: int) -> tuple[str, str]:
    """Draw a ruler and its labels, `width` cells for the time from start to end.

    The first label carries the unit; ticks stand at 1, 2 or 5 times a power of ten.
    """
    length_us = max(end_us - start_us, 1e-9)
    unit_us, unit = max((u for u in _UNITS if u[0] <= max(length_us, 1.0)), key=lambda u: u[0])
    if length_us / unit_us < 5 and unit_us > 1:
        unit_us, unit = unit_us / 1000, {"ms": "µs", "s": "ms"}[unit]
    longest = len(f"{end_us / unit_us:,.0f}")
    step_us = _round_step(length_us * max(10, longest + 3) / width)
    ruler = ["─"] * width
    labels = [" "] * (width + longest + len(unit) + 1)
    tick = math.ceil(start_us / step_us) * step_us
    free = 0
    while tick <= end_us:
        cell = min(width - 1, int((tick - start_us) / length_us * width))
        text = _label(tick / unit_us, step_us / unit_us) + (f" {unit}" if free == 0 else "")
        ruler[cell] = "┬"
        if cell >= free and cell + len(text) <= len(labels):
            labels[cell : cell + len(text)] = text
            free = cell + len(text) + 1
        tick += step_us
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


def _label(value: float, step: float) -> str:
    """Format a tick with enough digits for the step."""
    decimals = 0 if step >= 1 else 1 if step >= 0.1 else 2 if step >= 0.01 else 3
    return f"{value:,.{decimals}f}"
