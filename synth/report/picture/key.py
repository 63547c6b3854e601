"""The list below a plot: the number, name, time and memory of its dots, in columns."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

from synth.report.picture.frame import LEFT, Size
from synth.report.picture.labels import text_width
from synth.report.picture.picture import Picture
from synth.report.text.tables import size_unit, time_unit

# Height of a line, and widths: of sample and number, of figures, and between columns.
_LINE = 16.0
_NUMBER, _FIGURES, _BETWEEN = 40.0, 58.0, 26.0

# Room below the last line.
_BELOW = 12.0

_SIZE = 11.0

# Digits of the largest time and of the largest memory.
_DIGITS = 4

KEY_STYLES = {
    "key": f"font-size:{_SIZE:g}px;fill:#22282d",
    "key-head": f"font-size:{_SIZE:g}px;fill:#5b6670",
}


class KeyRow(NamedTuple):
    """A dot: its shape and style, its number if it has one, its name and its figures."""

    shape: str
    style: str
    number: int | None
    name: str
    time_us: float
    peak_bytes: float


class Key(NamedTuple):
    """Rows in columns of equal length, from the left, with the units in their heads."""

    rows: tuple[KeyRow, ...]
    size: Size
    name_width: float
    num_columns: int

    @classmethod
    def of(cls, rows: Sequence[KeyRow], size: Size) -> Self:
        """Make as many columns as there is room for below a plot of some size."""
        name_width = max((text_width(row.name, _SIZE) for row in rows), default=0.0)
        width = _NUMBER + name_width + 2 * _FIGURES + _BETWEEN
        most = max(1, int((size.width - LEFT / 2 + _BETWEEN) // width))
        return cls(tuple(rows), size, name_width, min(most, 1 + len(rows) // 8))

    @property
    def num_lines(self) -> int:
        return -(-len(self.rows) // self.num_columns)

    @property
    def height(self) -> int:
        """The height in pixels that the list adds to a plot."""
        return round((self.num_lines + 1) * _LINE + _BELOW) if self.rows else 0

    def draw(self, picture: Picture) -> None:
        """Draw the list below the plot, if it has rows."""
        if not self.rows:
            return
        time_us, time = time_unit(max(row.time_us for row in self.rows))
        num_bytes, memory = size_unit(max(row.peak_bytes for row in self.rows))
        times = _figures([row.time_us / time_us for row in self.rows])
        sizes = _figures([row.peak_bytes / num_bytes for row in self.rows])
        width = _NUMBER + self.name_width + 2 * _FIGURES
        for column in range(self.num_columns):
            left = LEFT / 2 + column * (width + _BETWEEN)
            ends = left + width - _FIGURES, left + width
            first = column * self.num_lines
            shown = range(first, min(first + self.num_lines, len(self.rows)))
            for place, text in zip(ends, (f"time, {time}", f"peak, {memory}"), strict=True):
                picture.text((place, self.size.height + 8), text, "key-head", "end")
            for line, at in enumerate(shown, 1):
                row, y = self.rows[at], self.size.height + 8 + line * _LINE
                picture.dot(row.shape, (left + 6, y - 4), 4.5, row.style)
                if row.number is not None:
                    picture.text((left + _NUMBER - 10, y), str(row.number), "key", "end")
                picture.text((left + _NUMBER, y), row.name, "key")
                for place, text in zip(ends, (times[at], sizes[at]), strict=True):
                    picture.text((place, y), text, "key", "end")


def _figures(values: Sequence[float]) -> list[str]:
    """Format values with equally many decimals."""
    whole = max(1, math.floor(math.log10(max(values) or 1)) + 1)
    return [f"{value:,.{max(0, _DIGITS - whole)}f}" for value in values]
