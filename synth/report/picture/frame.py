"""The frame of a time-memory plot: size, scales and axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from synth.report.picture.labels import Box, text_width
from synth.report.picture.picture import Picture
from synth.report.picture.scale import Scale
from synth.report.text.tables import size_unit, time_unit


class Size(NamedTuple):
    """Width and height of a plot in pixels, and the height of its title."""

    width: int
    height: int
    title: float = 30.0


# Of pictures by themselves, and of one beside the charts of a page, which has the title.
SIZES = Size(860, 560), Size(1000, 700), Size(1160, 840)
WHOLE, BESIDE = SIZES[0], Size(524, 430, 0.0)
LEFT, RIGHT, _TOP, _BOTTOM = 84, 24, 46, 62

# Height of a line of the legend, and the space between its entries.
_LINE, _BETWEEN = 17.0, 16.0

Entry = tuple[str, str, str]

STYLES = {
    "grid": "stroke:#e4e7ea;stroke-width:1;fill:none",
    "frame": "stroke:#5b6670;stroke-width:1;fill:none",
    "number": "font-size:10px;fill:#444c53",
    "label": "font-size:12px;fill:#444c53",
    "axis": "font-size:13px;fill:#22282d",
}


_TITLE = 16.0


def styles_with_title(title: str, size: Size) -> dict[str, str]:
    """Return the styles of a plot, with a title that is as wide as the plot at most."""
    room = size.width - LEFT - RIGHT
    font = _TITLE * min(1.0, room / max(1.0, text_width(title, 1.1 * _TITLE)))
    return STYLES | {"title": f"font-size:{font:.4g}px;font-weight:bold;fill:#22282d"}


@dataclass(frozen=True)
class Frame:
    """A frame: memory to the right, time upwards, each logarithmic if its ends lie far apart."""

    size: Size
    x: Scale
    y: Scale

    @classmethod
    def of(
        cls,
        ends_bytes: tuple[float, float],
        ends_us: tuple[float, float],
        size: Size,
        legend: "Legend",
    ) -> Self:
        """Make the frame of a plot for both ranges, below a legend."""
        x = Scale.fitting(*ends_bytes, LEFT, size.width - RIGHT)
        bottom, top = size.height - _BOTTOM, _TOP + size.title + legend.height
        return cls(size, x, Scale.fitting(*ends_us, bottom, top))

    @property
    def inside(self) -> Box:
        """The area of the plot."""
        return Box(self.x.start, self.y.end, self.x.end, self.y.start)

    def draw(self, picture: Picture, title: str, memory: str, time: str) -> None:
        """Draw grid, ticks and axis titles with units."""
        x, y = self.x, self.y
        factor, unit = size_unit(x.high)
        for tick in x.ticks(self.size.width // 80):
            across = x.at(tick)
            picture.line([(across, y.start), (across, y.end)], "grid")
            picture.text((across, y.start + 18), f"{tick / factor:g}", "label", "middle")
        unit_us, name = time_unit(y.high)
        for tick in y.ticks(self.size.height // 60):
            picture.line([(x.start, y.at(tick)), (x.end, y.at(tick))], "grid")
            picture.text((x.start - 8, y.at(tick) + 4), f"{tick / unit_us:g}", "label", "end")
        corners = [(x.start, y.start), (x.start, y.end), (x.end, y.end), (x.end, y.start)]
        picture.line([*corners, corners[0]], "frame")
        kind = f"{memory}, {unit}{', logarithmic' if x.log else ''}"
        place = ((x.start + x.end) / 2, self.size.height - 16)
        picture.text(place, kind, "axis", "middle")
        kind = f"{time}, {name}{', logarithmic' if y.log else ''}"
        picture.text((18, (y.start + y.end) / 2), kind, "axis", "middle", turn=-90)
        if self.size.title:
            picture.text((LEFT, 28), title, "title")


@dataclass(frozen=True)
class Legend:
    """Entries between title and frame, in lines: style, shape, and text.

    A shape is a `line`, an `area` or that of a dot.
    """

    top: float
    lines: tuple[tuple[Entry, ...], ...]

    @classmethod
    def of(cls, entries: Sequence[Entry], size: Size) -> Self:
        """Break the entries into lines as wide as the frame of a plot."""
        lines: list[list[Entry]] = [[]]
        left = float(LEFT)
        for entry in entries:
            left += _entry_width(entry)
            if lines[-1] and left > size.width - RIGHT + _BETWEEN:
                lines.append([])
                left = LEFT + _entry_width(entry)
            lines[-1].append(entry)
        return cls(20.0 + size.title, tuple(map(tuple, lines)))

    @property
    def height(self) -> float:
        """The height of the lines after the first."""
        return _LINE * (len(self.lines) - 1)

    def draw(self, picture: Picture) -> None:
        """Draw the lines."""
        for place, line in enumerate(self.lines):
            top, at = self.top + _LINE * place, float(LEFT)
            for style, shape, text in line:
                if shape == "line":
                    picture.line([(at, top), (at + 24, top)], style)
                elif shape == "area":
                    picture.rectangle((at, top - 6), 24, 12, style)
                else:
                    picture.dot(shape, (at + 6, top), 4.5, style)
                end = at + _entry_width((style, shape, text))
                picture.text((end - _BETWEEN - text_width(text), top + 4), text, "label")
                at = end


def _entry_width(entry: Entry) -> float:
    _, shape, text = entry
    return (24 if shape in ("line", "area") else 12) + 6 + text_width(text) + _BETWEEN
