"""The curve of time against memory as steps, and its picture in a terminal.

What is found and what is proven are two staircases; the best possible curve lies between them. A
schedule serves from its peak on, a bound up to the cap under which it was proven.
"""

from dataclasses import dataclass
from typing import NamedTuple

from synth.report.scale import Scale
from synth.report.tables import size_unit


class Point(NamedTuple):
    """A cap with the best time found, the best bound, and the highest peak of the schedule."""

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

# Where all sizes are alike, this part of them is around them: ticks have six digits.
_LEAST_AIR = 1000


@dataclass(frozen=True)
class Curve:
    """Points by rising caps, published schedules, and a cap that nothing keeps less than."""

    title: str
    objective: str
    points: tuple[Point, ...]
    families: tuple[Dot, ...]
    never_below_bytes: int

    @property
    def found(self) -> list[Step]:
        """(bytes, microseconds): from so many bytes on, so fast; published schedules count."""
        known = [(point.peak_bytes, point.value_us) for point in self.points]
        known += [(dot.peak_bytes, dot.value_us) for dot in self.families]
        steps: list[Step] = []
        for step in sorted(known):
            if not steps or step[1] < steps[-1][1]:
                steps.append(step)
        return steps

    @property
    def proven(self) -> list[Step]:
        """(bytes, microseconds): up to so many bytes, not faster; a bound of 0 says nothing."""
        steps: list[Step] = []
        for point in sorted(self.points, reverse=True):
            if point.lower_bound_us > (steps[-1][1] if steps else 0):
                steps.append((point.cap_bytes, point.lower_bound_us))
        return steps[::-1]

    @property
    def dots(self) -> list[Dot]:
        """The published schedules, those in the same place together."""
        names: dict[tuple[int, int], list[str]] = {}
        for dot in self.families:
            names.setdefault((dot.value_us, dot.peak_bytes), []).append(dot.name)
        return [Dot(", ".join(listed), *place) for place, listed in names.items()]

    @property
    def ends_bytes(self) -> tuple[int, int]:
        """The range of memory of a picture, with some air: enough to tell its ticks apart."""
        sizes = [point.cap_bytes for point in self.points]
        sizes += [point.peak_bytes for point in self.points]
        sizes += [dot.peak_bytes for dot in self.families]
        low, high = min(self.never_below_bytes, *sizes), max(sizes)
        air = max((high - low) // 20, high // _LEAST_AIR, 1)
        return max(0, low - air), high + air

    @property
    def ends_us(self) -> tuple[float, float]:
        """The range of times of a picture, with some air."""
        times = [point.value_us for point in self.points]
        times += [point.lower_bound_us for point in self.points if point.lower_bound_us]
        times += [dot.value_us for dot in self.families]
        return 0.97 * min(times), 1.03 * max(times)

    @property
    def time_unit(self) -> tuple[float, str]:
        """The unit in which times read well: its microseconds and its name."""
        longest = self.ends_us[1]
        return next(u for u in ((1e6, "s"), (1e3, "ms"), (1.0, "µs")) if longest >= u[0])

    def found_at(self, num_bytes: float) -> int | None:
        """The best time found in so much memory, if any."""
        return min((us for least, us in self.found if least <= num_bytes), default=None)

    def proven_at(self, num_bytes: float) -> int | None:
        """The best bound for so much memory, if any."""
        if num_bytes < self.never_below_bytes:
            return None
        return max((us for most, us in self.proven if most >= num_bytes), default=None)


def plot(curve: Curve, width: int = 100, height: int = 18) -> str:
    """Draw for a terminal: found as a line, proven as dots, published schedules as letters."""
    margin = 10
    columns = max(20, width - margin - 1)
    x = Scale(*curve.ends_bytes, 0, columns - 1)
    y = Scale.fitting(*curve.ends_us, height - 1, 0)
    cells = [[" "] * columns for _ in range(height)]
    _draw_steps(cells, curve, x, y)
    letters = _draw_dots(cells, curve, x, y)
    unit_us, unit = curve.time_unit
    labels = {round(y.at(tick)): f"{tick / unit_us:g} {unit}" for tick in y.ticks(height // 3)}
    lines = []
    for row, line in enumerate(cells):
        edge = "┤" if row in labels else "│"
        lines.append(f"{labels.get(row, ''):>{margin - 1}} {edge}{''.join(line)}".rstrip())
    return "\n".join((*lines, *_memory_axis(x, margin, columns), *_legend(curve, letters, margin)))


def _draw_steps(cells: list[list[str]], curve: Curve, x: Scale, y: Scale) -> None:
    before: int | None = None
    for column in range(len(cells[0])):
        at = x.low + (column + 0.5) / len(cells[0]) * (x.high - x.low)
        proven, found = curve.proven_at(at), curve.found_at(at)
        if proven is not None:
            cells[round(y.at(proven))][column] = "·"
        if found is not None:
            row = round(y.at(found))
            for passed in range(before + 1, row) if before is not None else ():
                cells[passed][column] = "│"
            cells[row][column] = "─"
            before = row


def _draw_dots(cells: list[list[str]], curve: Curve, x: Scale, y: Scale) -> dict[str, str]:
    """Mark the published schedules; return the letter of each."""
    letters = {}
    for number, dot in enumerate(sorted(curve.dots, key=lambda dot: dot.peak_bytes)):
        letter = chr(ord("a") + number % 26)
        letters[letter] = dot.name
        cells[round(y.at(dot.value_us))][round(x.at(dot.peak_bytes))] = letter
    return letters


def _memory_axis(x: Scale, margin: int, columns: int) -> tuple[str, str]:
    factor, unit = size_unit(x.high)
    ruler, labels = ["─"] * columns, [" "] * (columns + margin)
    free = 0
    for tick in Scale(x.low / factor, x.high / factor, x.start, x.end).ticks(columns // 12):
        column = round(x.at(tick * factor))
        text = f"{tick:g} {unit}"
        if column >= free:
            ruler[column] = "┬"
            labels[column : column + len(text)] = text
            free = column + len(text) + 1
    return f"{'':>{margin}}└{''.join(ruler)}", f"{'':>{margin + 1}}{''.join(labels).rstrip()}"


def _legend(curve: Curve, letters: dict[str, str], margin: int) -> list[str]:
    entries = [f"─ best {curve.objective} known", "· lower bound"]
    entries += [f"{letter} {name}" for letter, name in letters.items()]
    return [" " * (margin + 1) + "   ".join(entries)]
