"""A picture as a list of shapes, each with the name of a style; `svg`, `pdf` and `png` write it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

XY = tuple[float, float]


@dataclass(frozen=True)
class Polyline:
    """A line through points."""

    points: Sequence[XY]
    style: str


@dataclass(frozen=True)
class Polygon:
    """A filled area; see `Disc` for the others."""

    points: Sequence[XY]
    style: str
    tip: str = ""
    name: str = ""


@dataclass(frozen=True)
class Rectangle:
    """A rectangle from its upper left corner; `tip` is its tooltip."""

    at: XY
    width: float
    height: float
    style: str
    tip: str = ""


@dataclass(frozen=True)
class Disc:
    """A dot; `tip` is its tooltip, `name` the schedule that a page shows on a click."""

    centre: XY
    radius: float
    style: str
    tip: str = ""
    name: str = ""


@dataclass(frozen=True)
class Caption:
    """A line of text; `anchor` (start, middle, end) is the part placed at the point."""

    at: XY
    text: str
    style: str
    anchor: str = "start"
    turn: int = 0


# The corners of dots that are not round, as multiples of their radius.
_CORNERS = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0.0, -1.2), (1.2, 0.0), (0.0, 1.2), (-1.2, 0.0)),
}

Shape = Polyline | Polygon | Rectangle | Disc | Caption


class Picture:
    """A picture of a size in pixels of CSS (1/96 inch); later shapes cover earlier ones.

    Every shape names one of `styles`, which are declarations of CSS that SVG understands: `fill`,
    `stroke`, `stroke-width`, `stroke-dasharray`, `stroke-linejoin`, `font-size`, `font-weight`.
    For example `{"grid": "stroke:#ddd"}`. Screen readers say `title`.
    """

    def __init__(self, width: int, height: int, styles: Mapping[str, str], title: str) -> None:
        self.width, self.height, self.styles, self.title = width, height, styles, title
        self.shapes: list[Shape] = []

    def line(self, points: Sequence[XY], style: str) -> None:
        """Add a line through points."""
        self.shapes.append(Polyline(points, style))

    def area(self, points: Sequence[XY], style: str) -> None:
        """Add a filled polygon."""
        self.shapes.append(Polygon(points, style))

    def rectangle(self, at: XY, width: float, height: float, style: str, tip: str = "") -> None:
        """Add a rectangle from its upper left corner."""
        self.shapes.append(Rectangle(at, width, height, style, tip))

    def circle(self, centre: XY, radius: float, style: str, tip: str = "", name: str = "") -> None:
        """Add a round dot."""
        self.shapes.append(Disc(centre, radius, style, tip, name))

    def dot(
        self, shape: str, centre: XY, radius: float, style: str, tip: str = "", name: str = ""
    ) -> None:
        """Add a dot that is round (`disc`), a `square` or a `diamond`."""
        if shape not in _CORNERS:
            self.circle(centre, radius, style, tip, name)
            return
        x, y = centre
        points = [(x + radius * across, y + radius * down) for across, down in _CORNERS[shape]]
        self.shapes.append(Polygon(points, style, tip, name))

    def text(self, at: XY, text: str, style: str, anchor: str = "start", turn: int = 0) -> None:
        """Add a line of text."""
        self.shapes.append(Caption(at, text, style, anchor, turn))
