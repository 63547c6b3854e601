"""The frame of a time-memory plot: size, scales and axes."""

from dataclasses import dataclass

from synth.report.picture.labels import text_width
from synth.report.picture.picture import Picture
from synth.report.picture.scale import Scale
from synth.report.text.tables import size_unit, time_unit

WIDTH, HEIGHT = 860, 500
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 76, 62

STYLES = {
    "grid": "stroke:#e4e7ea;stroke-width:1;fill:none",
    "frame": "stroke:#5b6670;stroke-width:1;fill:none",
    "title": "font-size:16px;font-weight:bold;fill:#22282d",
    "label": "font-size:12px;fill:#444c53",
    "axis": "font-size:13px;fill:#22282d",
}


@dataclass(frozen=True)
class Frame:
    """A frame with memory to the right and time upwards, logarithmic if times differ much."""

    x: Scale
    y: Scale

    @classmethod
    def of(cls, ends_bytes: tuple[float, float], ends_us: tuple[float, float]) -> "Frame":
        """Make the frame for both ranges."""
        x = Scale(*ends_bytes, LEFT, WIDTH - RIGHT)
        return cls(x, Scale.fitting(*ends_us, HEIGHT - BOTTOM, TOP))

    def draw(self, picture: Picture, title: str, memory: str, time: str) -> None:
        """Draw grid, ticks and axis titles with units."""
        x, y = self.x, self.y
        factor, unit = size_unit(x.high)
        for tick in Scale(x.low / factor, x.high / factor, 0, 1).ticks(10):
            place = x.at(tick * factor)
            picture.line([(place, y.start), (place, y.end)], "grid")
            picture.text((place, y.start + 18), f"{tick:g}", "label", "middle")
        unit_us, name = time_unit(y.high)
        for tick in y.ticks(8):
            picture.line([(x.start, y.at(tick)), (x.end, y.at(tick))], "grid")
            picture.text((x.start - 8, y.at(tick) + 4), f"{tick / unit_us:g}", "label", "end")
        corners = [(x.start, y.start), (x.start, y.end), (x.end, y.end), (x.end, y.start)]
        picture.line([*corners, corners[0]], "frame")
        picture.text(((x.start + x.end) / 2, HEIGHT - 16), f"{memory}, {unit}", "axis", "middle")
        kind = f"{time}, {name}{', logarithmic' if y.log else ''}"
        picture.text((18, (y.start + y.end) / 2), kind, "axis", "middle", turn=-90)
        picture.text((LEFT, 28), title, "title")


def draw_legend(picture: Picture, entries: list[tuple[str, str, str]]) -> None:
    """Draw the row between title and frame.

    Args:
        entries: style, shape (line, area or dot) and text of each.
    """
    top, at = 50.0, float(LEFT)
    for style, shape, text in entries:
        width = 12 if shape == "dot" else 24
        if shape == "dot":
            picture.circle((at + 6, top), 4.5, style)
        elif shape == "area":
            picture.rectangle((at, top - 6), 24, 12, style)
        else:
            picture.line([(at, top), (at + 24, top)], style)
        picture.text((at + width + 6, top + 4), text, "label")
        at += width + 6 + text_width(text) + 18
