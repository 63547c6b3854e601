"""The legend of a picture: samples of styles with their meanings, in lines below the title."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from synth.report.picture.labels import text_width
from synth.report.picture.picture import Picture

# Height of a line; widths of a short sample and a long one, and the space behind sample and text.
LEGEND_LINE = 16.0
_SHORT, _LONG, _BESIDE, _BETWEEN = 12.0, 24.0, 6.0, 14.0

_HEIGHT = 10.0


class LegendEntry(NamedTuple):
    """Samples side by side and their meaning, which may begin a part of the legend.

    A shape is a `line`, an `area`, a `box` (a short area), or that of a dot.
    """

    styles: tuple[str, ...]
    shape: str
    text: str
    begins_part: bool = False

    @property
    def samples(self) -> float:
        """The width of the samples with the space behind them."""
        one = _LONG if self.shape in ("line", "area") else _SHORT
        return one * len(self.styles) + _BESIDE if self.styles else 0.0

    @property
    def width(self) -> float:
        """The width with the space behind the text."""
        return self.samples + text_width(self.text) + _BETWEEN


class Legend(NamedTuple):
    """Entries in lines, from the middle of the first line on."""

    lines: list[list[LegendEntry]]
    left: float
    top: float

    @classmethod
    def of(cls, entries: Sequence[LegendEntry], left: float, top: float, room: float) -> Self:
        """Break entries into lines of a width; parts have lines of their own if one does not do."""
        is_one_line = sum(entry.width for entry in entries) <= room + _BETWEEN
        lines: list[list[LegendEntry]] = [[]]
        used = 0.0
        for entry in entries:
            is_full = used + entry.width > room + _BETWEEN
            if lines[-1] and (is_full or (entry.begins_part and not is_one_line)):
                lines.append([])
                used = 0.0
            lines[-1].append(entry)
            used += entry.width
        return cls(lines, left, top)

    @property
    def height(self) -> float:
        """The height of the lines after the first."""
        return LEGEND_LINE * (len(self.lines) - 1)

    def draw(self, picture: Picture) -> None:
        """Draw the lines."""
        for number, line in enumerate(self.lines):
            left, y = self.left, self.top + LEGEND_LINE * number
            for entry in line:
                at = left
                for style in entry.styles:
                    at = _draw_sample(picture, style, entry.shape, (at, y))
                picture.text((left + entry.samples, y + 4), entry.text, "label")
                left += entry.width


def _draw_sample(picture: Picture, style: str, shape: str, at: tuple[float, float]) -> float:
    """Draw a sample from its left end, and return its right end."""
    x, y = at
    if shape == "line":
        picture.line([(x, y), (x + _LONG, y)], style)
        return x + _LONG
    if shape in ("area", "box"):
        width = _LONG if shape == "area" else _SHORT
        picture.rectangle((x, y - _HEIGHT / 2), width, _HEIGHT, style)
        return x + width
    picture.dot(shape, (x + _SHORT / 2, y), 4.5, style)
    return x + _SHORT
