"""A memory curve as steps, and its plot for the terminal.

Values and bounds are two staircases, and the optimal curve lies between them. A schedule serves
from its peak on, a bound up to the limit under which it was proven.
"""

from dataclasses import dataclass
from typing import NamedTuple

from synth.report.picture.scale import widened
from synth.report.text.canvas import Canvas, letter
from synth.report.text.pareto import EQUALS


class Point(NamedTuple):
    """A memory limit with the best time, the best bound, and the highest peak of the schedule."""

    cap_bytes: int
    value_us: int
    lower_bound_us: int
    peak_bytes: int


class Dot(NamedTuple):
    """A published schedule."""

    name: str
    value_us: int
    peak_bytes: int


Step = tuple[int, int]

# Margin around equal sizes, as a fraction of them: ticks have six digits.
_LEAST_AIR = 1000


@dataclass(frozen=True)
class Curve:
    """Points by rising limits, published schedules, and a limit below which nothing fits."""

    title: str
    objective: str
    points: tuple[Point, ...]
    families: tuple[Dot, ...]
    never_below_bytes: int

    @property
    def found(self) -> list[Step]:
        """Steps (bytes, µs) of the best time from a size on, including published schedules."""
        known = [(point.peak_bytes, point.value_us) for point in self.points]
        known += [(dot.peak_bytes, dot.value_us) for dot in self.families]
        steps: list[Step] = []
        for step in sorted(known):
            if not steps or step[1] < steps[-1][1]:
                steps.append(step)
        return steps

    @property
    def proven(self) -> list[Step]:
        """Steps (bytes, µs) of the lower bound up to a size; bounds of 0 are left out."""
        steps: list[Step] = []
        for point in sorted(self.points, reverse=True):
            if point.lower_bound_us > (steps[-1][1] if steps else 0):
                steps.append((point.cap_bytes, point.lower_bound_us))
        return steps[::-1]

    @property
    def dots(self) -> list[Dot]:
        """Published schedules, merged if they are at the same place."""
        names: dict[tuple[int, int], list[str]] = {}
        for dot in self.families:
            names.setdefault((dot.value_us, dot.peak_bytes), []).append(dot.name)
        return [Dot(EQUALS.join(listed), *place) for place, listed in names.items()]

    @property
    def ends_bytes(self) -> tuple[float, float]:
        """Range of memory of the plot, with a margin that keeps ticks distinct."""
        sizes = [point.cap_bytes for point in self.points]
        sizes += [point.peak_bytes for point in self.points]
        sizes += [dot.peak_bytes for dot in self.families]
        low, high = min(self.never_below_bytes, *sizes), max(sizes)
        least = high / _LEAST_AIR
        return widened(low - least, high + least, 1 / 20, 1 / 20)

    @property
    def ends_us(self) -> tuple[float, float]:
        """Range of times of the plot, with a margin."""
        times = [point.value_us for point in self.points]
        times += [point.lower_bound_us for point in self.points if point.lower_bound_us]
        times += [dot.value_us for dot in self.families]
        return widened(min(times), max(times), 1 / 16, 1 / 16)

    def found_at(self, num_bytes: float) -> int | None:
        """Return the best time in a given memory; None if there is none."""
        return min((us for least, us in self.found if least <= num_bytes), default=None)

    def proven_at(self, num_bytes: float) -> int | None:
        """Return the best lower bound for a given memory; None if there is none."""
        if num_bytes < self.never_below_bytes:
            return None
        return max((us for most, us in self.proven if most >= num_bytes), default=None)


def plot(curve: Curve, width: int = 100, height: int = 18) -> str:
    """Draw for a terminal: values as a line, bounds as dots, published schedules as letters."""
    canvas = Canvas(curve.ends_bytes, curve.ends_us, width, height)
    sizes = [canvas.bytes_of(column) for column in range(len(canvas.cells[0]))]
    for column, size in enumerate(sizes):
        proven_us = curve.proven_at(size)
        if proven_us is not None:
            canvas.cells[round(canvas.y.at(proven_us))][column] = "·"
    canvas.draw_line([curve.found_at(size) for size in sizes])
    legend = [f"─ best {curve.objective} known", "· lower bound"]
    for number, dot in enumerate(sorted(curve.dots, key=lambda dot: dot.peak_bytes)):
        canvas.mark(dot.peak_bytes, dot.value_us, letter(number))
        legend.append(f"{letter(number)} {dot.name}")
    return "\n".join(canvas.lines(["   ".join(legend)]))
