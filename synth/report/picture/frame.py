"""The frame of a time-memory plot: size, scales and axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from synth.report.picture.labels import Box, text_width
from synth.report.picture.legend import Legend, LegendEntry
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


def legend_of(entries: Sequence[LegendEntry], size: Size) -> Legend:
    """Return the legend between title and frame of a plot."""
    return Legend.of(entries, LEFT, 20.0 + size.title, size.width - LEFT - RIGHT)


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
        legend: Legend,
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
