"""SVG plot of a memory curve."""

from synth.report.picture.frame import HEIGHT, STYLES, WIDTH, Frame, draw_legend
from synth.report.picture.labels import Box, boxes_of, free_box
from synth.report.picture.picture import XY, Picture
from synth.report.picture.scale import Scale
from synth.report.text.curve import Curve
from synth.units import format_bytes, format_us

_STYLES = STYLES | {
    "between": "fill:#dbe8f6;stroke:none",
    "never": "fill:#f1f1f1;stroke:none",
    "found": "stroke:#2f6db5;stroke-width:2.4;fill:none;stroke-linejoin:round",
    "proven": "stroke:#2f6db5;stroke-width:1.4;fill:none;stroke-dasharray:5 4",
    "point": "fill:#2f6db5;stroke:#ffffff;stroke-width:1.2",
    "family": "fill:#e0873f;stroke:#ffffff;stroke-width:1.2",
    "name": "font-size:12px;fill:#a3561a",
}


def curve_picture(curve: Curve) -> Picture:
    """Draw values and bounds as two staircases, and published schedules as dots."""
    picture = Picture(WIDTH, HEIGHT, _STYLES, curve.title)
    frame = Frame.of(curve.ends_bytes, curve.ends_us)
    x, y = frame.x, frame.y
    found, proven = _found_line(curve, x, y), _proven_line(curve, x, y)
    _draw_ground(picture, curve, x, y)
    picture.area([*found, *reversed(proven)], "between")
    frame.draw(picture, curve.title, "memory limit of every rank", curve.objective)
    picture.line(proven, "proven")
    picture.line(found, "found")
    for point in curve.points:
        tip = (
            f"{format_bytes(point.cap_bytes)} cap, {format_bytes(point.peak_bytes)} peak: "
            f"{format_us(point.value_us)}, bound {format_us(point.lower_bound_us)}"
        )
        picture.circle(
            (x.at(point.peak_bytes), y.at(point.value_us)), 4, "point", tip, str(point.cap_bytes)
        )
    _draw_families(picture, curve, x, y, [*found, *proven])
    draw_legend(
        picture,
        [
            ("found", "line", f"best {curve.objective} known"),
            ("proven", "line", "proven lower bound"),
            ("between", "area", "the best possible lies here"),
            ("family", "dot", "published schedules"),
        ],
    )
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


def _draw_families(picture: Picture, curve: Curve, x: Scale, y: Scale, lines: list[XY]) -> None:
    """Draw dots first, then each name where it covers nothing, if possible."""
    dots = sorted(curve.dots, key=lambda dot: (dot.peak_bytes, dot.value_us))
    places = [(x.at(dot.peak_bytes), y.at(dot.value_us)) for dot in dots]
    taken = [Box.around(place, 5) for place in (*places, *lines)]
    taken += boxes_of(lines)
    for dot, place in zip(dots, places, strict=True):
        tip = f"{dot.name}: {format_us(dot.value_us)}, {format_bytes(dot.peak_bytes)}"
        picture.circle(place, 4.5, "family", tip)
        box = free_box(place, dot.name, taken, x, y)
        taken.append(box)
        picture.text((box.left, box.bottom - 3), dot.name, "name")
