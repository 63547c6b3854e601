"""Schedules by time and memory: the Pareto front, and a plot for the terminal."""

from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple

from synth.report.picture.scale import widened
from synth.report.text.canvas import Canvas, letter

# Schedules beyond this multiple of the fastest are drawn at the upper edge, to keep the scale of
# the others.
_SHOWN = 2.2

# Between the names of schedules with the same time and memory.
EQUALS = " = "


class Mark(NamedTuple):
    """A schedule with the highest peak of its ranks; `is_solved`: found by the solver.

    `delay` counts the updates by which its gradients are late. `is_squeezed`: a faster partition
    exceeds the limit.
    """

    name: str
    value_us: int
    peak_bytes: int
    is_solved: bool = False
    delay: int = 0
    is_squeezed: bool = False


@dataclass(frozen=True)
class Pareto:
    """Schedules in the order of their letters; `caps_bytes` are the limits of the ranks, if any."""

    title: str
    objective: str
    marks: tuple[Mark, ...]
    caps_bytes: tuple[int, ...] = ()

    @property
    def front(self) -> list[Mark]:
        """The Pareto front of time and memory, fastest last; of equals the first.

        It is that of the schedules with the least delay, which is mostly none.
        """
        best: list[Mark] = []
        those = (mark for mark in self.marks if not self.is_late(mark))
        for mark in sorted(those, key=lambda mark: (mark.peak_bytes, mark.value_us)):
            if not best or mark.value_us < best[-1].value_us:
                best.append(mark)
        return best

    @property
    def places(self) -> list[Mark]:
        """Schedules by time and memory, those in the same place merged into one with all names."""
        groups: dict[tuple[int, int, bool], list[Mark]] = {}
        for mark in sorted(self.marks, key=lambda mark: (mark.value_us, mark.peak_bytes)):
            place = mark.value_us, mark.peak_bytes, self.is_late(mark)
            groups.setdefault(place, []).append(mark)
        return [
            group[0]._replace(
                name=EQUALS.join(mark.name for mark in group),
                is_solved=any(mark.is_solved for mark in group),
                is_squeezed=all(mark.is_squeezed for mark in group),
            )
            for group in groups.values()
        ]

    def is_late(self, mark: Mark) -> bool:
        """Return True if a schedule's gradients are later than those of the front."""
        return mark.delay > min(mark.delay for mark in self.marks)

    @property
    def limits_bytes(self) -> list[int]:
        """The least and the largest memory limit, which are mostly the same."""
        return sorted({min(self.caps_bytes), max(self.caps_bytes)}) if self.caps_bytes else []

    @property
    def ends_bytes(self) -> tuple[float, float]:
        """Range of memory of the plot, with margins: names of the front stand to the left of it."""
        sizes = [mark.peak_bytes for mark in self.marks] + self.limits_bytes
        return widened(min(sizes), max(max(sizes), min(sizes) + 1), 1 / 8, 1 / 20)

    def is_beyond(self, mark: Mark) -> bool:
        """Return True if a schedule is beyond the scale, so that it is drawn at the edge."""
        return mark.value_us > self.ends_us[1]

    @property
    def ends_us(self) -> tuple[float, float]:
        """Range of times of the plot, with a margin; much slower schedules are beyond it."""
        times = [mark.value_us for mark in self.marks]
        highest = max(time_us for time_us in times if time_us <= _SHOWN * min(times))
        air = (highest - min(times)) / 14 or 0.05 * highest
        return min(times) - air, highest + air * (1 if highest == max(times) else 2)

    def shown_us(self, mark: Mark) -> float:
        """Return the time at which a schedule is drawn."""
        return min(mark.value_us, self.ends_us[1])


def plot(pareto: Pareto, width: int = 80, height: int = 20) -> str:
    """Draw for a terminal: the front as a line, limits as dotted ones, schedules as letters."""
    canvas = Canvas(pareto.ends_bytes, pareto.ends_us, width, height)
    for limit in pareto.limits_bytes:
        column = round(canvas.x.at(limit))
        for row in canvas.cells:
            row[column] = "┊"
    canvas.draw_line(_best_us(pareto, canvas))
    shown: dict[tuple[int, int], str] = {}
    late, beyond, hidden = [], [], []
    for number, mark in enumerate(pareto.marks):
        sign, place = letter(number), (mark.peak_bytes, pareto.shown_us(mark))
        if shown.setdefault(canvas.cell(*place), sign) == sign:
            canvas.mark(*place, sign)
        else:
            hidden.append(f"{sign} by {shown[canvas.cell(*place)]}")
        if pareto.is_late(mark):
            late.append(sign)
        if pareto.is_beyond(mark):
            beyond.append(sign)
    notes = (("off the scale", beyond), ("late gradients", late), ("hidden", hidden))
    told = "   ".join(f"{name}: {', '.join(those)}" for name, those in notes if those)
    legend = "letters: see the table   ─ Pareto front"
    legend += "   ┊ memory limit" if pareto.caps_bytes else ""
    return "\n".join(canvas.lines([legend, *wrap(told, len(canvas.cells[0]))]))


def _best_us(pareto: Pareto, canvas: Canvas) -> list[float | None]:
    """Return for each column the least time of schedules that need no more memory."""
    sizes = [canvas.bytes_of(column) for column in range(len(canvas.cells[0]))]
    return [
        min((pareto.shown_us(m) for m in pareto.front if m.peak_bytes <= size), default=None)
        for size in sizes
    ]
