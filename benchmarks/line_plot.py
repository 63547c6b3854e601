"""A plot of curves as an SVG picture, with a grid and a legend to its right."""

from collections.abc import Callable, Sequence

from synth.report.picture.picture import XY, Picture
from synth.report.picture.scale import Scale


class LinePlot:
    """A picture with two axes, to which curves are added one after the other.

    Args:
        size: width and height of the picture in pixels.
        across: the horizontal scale, in pixels from the left.
        up: the vertical scale, in pixels from the top.
        colours: one for each curve.
        title: the title of the picture, for screen readers.
    """

    def __init__(
        self, size: tuple[int, int], across: Scale, up: Scale, colours: Sequence[str], title: str
    ) -> None:
        styles = {
            "grid": "fill:none;stroke:#dddddd",
            "tick": "font-size:12px;fill:#444444",
            "name": "font-size:13px;fill:#222222",
            **{f"curve{i}": f"fill:none;stroke:{c};stroke-width:2" for i, c in enumerate(colours)},
            **{f"dot{i}": f"fill:{c}" for i, c in enumerate(colours)},
        }
        self.picture = Picture(*size, styles, title)
        self._across, self._up, self._num_curves = across, up, 0

    def draw_axes(
        self, names: tuple[str, str], tick_x: Callable[[float], str], tick_y: Callable[[float], str]
    ) -> None:
        """Draw grid, ticks and the names of the horizontal and the vertical axis."""
        drawn, across, up = self.picture, self._across, self._up
        for x in across.ticks(6):
            drawn.line([(across.at(x), up.start), (across.at(x), up.end)], "grid")
            drawn.text((across.at(x), up.start + 18), tick_x(x), "tick", "middle")
        for y in up.ticks(6):
            drawn.line([(across.start, up.at(y)), (across.end, up.at(y))], "grid")
            drawn.text((across.start - 6, up.at(y) + 4), tick_y(y), "tick", "end")
        middle = (across.start + across.end) / 2, (up.start + up.end) / 2
        drawn.text((middle[0], up.start + 45), names[0], "name", "middle")
        drawn.text((16, middle[1]), names[1], "name", "middle", -90)

    def add(self, name: str, curve: Sequence[XY], tips: Sequence[str] = ()) -> None:
        """Add a curve; with tooltips it has a dot at each of its points."""
        drawn, place = self.picture, self._num_curves
        points = [(self._across.at(x), self._up.at(y)) for x, y in curve]
        drawn.line(points, f"curve{place}")
        for point, tip in zip(points, tips, strict=False):
            drawn.circle(point, 4, f"dot{place}", tip)
        left, top = self._across.end + 25, self._up.end + 20 + 24 * place
        drawn.circle((left, top), 4, f"dot{place}")
        drawn.text((left + 10, top + 4), name, "tick")
        self._num_curves += 1
