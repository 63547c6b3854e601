"""Plot of a memory curve."""

from synth.report.picture.frame import WHOLE, Frame, Size, legend_of, styles_with_title
from synth.report.picture.key import KEY_STYLES, Key, KeyRow
from synth.report.picture.labels import RADIUS, Box, boxes_of
from synth.report.picture.legend import LegendEntry
from synth.report.picture.picture import XY, Picture
from synth.report.picture.plot_names import Spot, placed_names
from synth.report.picture.scale import Scale
from synth.report.text.curve import Curve
from synth.units import format_bytes, format_us

# The shape and style of published schedules.
_FAMILY = ("disc", "family")

_STYLES = KEY_STYLES | {
    "between": "fill:#dbe9ff;stroke:none",
    "never": "fill:#f1f1f1;stroke:none",
    "found": "stroke:#197cff;stroke-width:2.4;fill:none;stroke-linejoin:round",
    "proven": "stroke:#197cff;stroke-width:1.4;fill:none;stroke-dasharray:5 4",
    "point": "fill:#197cff;stroke:#ffffff;stroke-width:1.2",
    "family": "fill:#22282d;stroke:#ffffff;stroke-width:1.2",
    "name": "font-size:12px;fill:#22282d",
}


def curve_picture(curve: Curve, size: Size = WHOLE) -> Picture:
    """Draw values and bounds as two staircases, and published schedules as dots with names.

    If there is no room for all names, the dots have numbers, which a list below the plot explains.
    """
    entries = [
        LegendEntry(("found",), "line", f"best {curve.objective} known"),
        LegendEntry(("point",), "square", "found by the solver"),
        LegendEntry(("proven",), "line", "proven lower bound"),
        LegendEntry(("between",), "area", "the optimum lies here"),
    ]
    entries += [LegendEntry(("family",), "disc", "published")] if curve.families else []
    legend = legend_of(entries, size)
    frame = Frame.of(curve.ends_bytes, curve.ends_us, size, legend)
    x, y = frame.x, frame.y
    found, proven = _found_line(curve, x, y), _proven_line(curve, x, y)
    points = [(x.at(point.peak_bytes), y.at(point.value_us)) for point in curve.points]
    dots = sorted(curve.dots, key=lambda dot: (dot.value_us, dot.peak_bytes))
    spots = [
        Spot((x.at(peak), y.at(time_us)), name, "name", (peak, time_us) in curve.found)
        for name, time_us, peak in dots
    ]
    taken = [*boxes_of(found), *boxes_of(proven), *(Box.around(point, RADIUS) for point in points)]
    names = placed_names(spots, taken, frame.inside)
    rows = [
        KeyRow(*_FAMILY, names.numbers.get(place), dot.name, dot.value_us, dot.peak_bytes)
        for place, dot in enumerate(dots)
    ]
    key = Key.of(rows if names.numbers else [], size)
    styles = styles_with_title(curve.title, size) | _STYLES
    picture = Picture(size.width, size.height + key.height, styles, curve.title)
    _draw_ground(picture, curve, x, y)
    picture.area([*found, *reversed(proven)], "between")
    frame.draw(picture, curve.title, "memory limit of every rank", curve.objective)
    picture.line(proven, "proven")
    picture.line(found, "found")
    for point, place in zip(curve.points, points, strict=True):
        tip = (
            f"{format_bytes(point.cap_bytes)} cap, {format_bytes(point.peak_bytes)} peak: "
            f"{format_us(point.value_us)}, bound {format_us(point.lower_bound_us)}"
        )
        picture.dot("square", place, 4, "point", tip, str(point.cap_bytes))
    for dot, spot in zip(dots, spots, strict=True):
        tip = f"{dot.name}: {format_us(dot.value_us)}, {format_bytes(dot.peak_bytes)}"
        picture.dot(_FAMILY[0], spot.at, RADIUS, _FAMILY[1], tip)
    names.draw(picture, spots)
    key.draw(picture)
    legend.draw(picture)
    return picture


def _found_line(curve: Curve, x: Scale, y: Scale) -> list[XY]:
    """Return the staircase of values: it falls at each peak; nothing is known to its left."""
    line: list[XY] = [(x.at(curve.found[0][0]), y.end)]
    for num_bytes, time_us in curve.found:
        line += [(x.at(num_bytes), line[-1][1]), (x.at(num_bytes), y.at(time_us))]
    return [*line, (x.end, line[-1][1])]


def _proven_line(curve: Curve, x: Scale, y: Scale) -> list[XY]:
    """Return the staircase of bounds: it falls at each limit; no schedule fits to its left."""
    left = x.at(curve.never_below_bytes)
    line: list[XY] = [(left, y.end)]
    for num_bytes, time_us in curve.proven:
        line += [(line[-1][0], y.at(time_us)), (x.at(num_bytes), y.at(time_us))]
    if len(line) > 1:
        line[-1] = (x.end, line[-1][1])  # beyond the largest limit nothing improves
    return line


def _draw_ground(picture: Picture, curve: Curve, x: Scale, y: Scale) -> None:
    edge = x.at(curve.never_below_bytes)
    picture.area([(x.start, y.start), (x.start, y.end), (edge, y.end), (edge, y.start)], "never")
    picture.text((edge - 6, y.start - 10), "infeasible", "label", "start", turn=-90)
