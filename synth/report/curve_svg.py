"""The curve of time against memory as an SVG picture."""

from itertools import pairwise
from typing import NamedTuple

from synth.report.curve import Curve
from synth.report.scale import Scale
from synth.report.svg import XY, Svg
from synth.report.tables import size_unit
from synth.units import format_bytes, format_us

_WIDTH, _HEIGHT = 860, 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 76, 62

_STYLES = {
    "grid": "stroke:#e4e7ea;stroke-width:1;fill:none",
    "frame": "stroke:#5b6670;stroke-width:1;fill:none",
    "between": "fill:#dbe8f6;stroke:none",
    "never": "fill:#f1f1f1;stroke:none",
    "found": "stroke:#2f6db5;stroke-width:2.4;fill:none;stroke-linejoin:round",
    "proven": "stroke:#2f6db5;stroke-width:1.4;fill:none;stroke-dasharray:5 4",
    "point": "fill:#2f6db5;stroke:#ffffff;stroke-width:1.2",
    "family": "fill:#e0873f;stroke:#ffffff;stroke-width:1.2",
    "title": "font-size:16px;font-weight:bold;fill:#22282d",
    "label": "font-size:12px;fill:#444c53",
    "name": "font-size:12px;fill:#a3561a",
    "axis": "font-size:13px;fill:#22282d",
}


class _Box(NamedTuple):
    """A rectangle that a text or a dot covers."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "_Box") -> bool:
        apart_x = self.right < other.left or other.right < self.left
        return not (apart_x or self.bottom < other.top or other.bottom < self.top)


def curve_svg(curve: Curve) -> str:
    """Draw what is found and proven as two staircases, published schedules as dots."""
    svg = Svg(_WIDTH, _HEIGHT, _STYLES)
    x = Scale(*curve.ends_bytes, _LEFT, _WIDTH - _RIGHT)
    y = Scale.fitting(*curve.ends_us, _HEIGHT - _BOTTOM, _TOP)
    found, proven = _found_line(curve, x, y), _proven_line(curve, x, y)
    _draw_ground(svg, curve, x, y)
    svg.area([*found, *reversed(proven)], "between")
    _draw_axes(svg, curve, x, y)
    svg.line(proven, "proven")
    svg.line(found, "found")
    for point in curve.points:
        tip = (
            f"{format_bytes(point.cap_bytes)} cap, {format_bytes(point.peak_bytes)} peak: "
            f"{format_us(point.value_us)}, bound {format_us(point.lower_bound_us)}"
        )
        svg.circle((x.at(point.peak_bytes), y.at(point.value_us)), 4, "point", tip)
    _draw_families(svg, curve, x, y, [*found, *proven])
    _draw_legend(svg, curve)
    return str(svg)


def _found_line(curve: Curve, x: Scale, y: Scale) -> list[XY]:
    """Down at each peak, from above the picture on: to its left nothing is found."""
    line: list[XY] = [(x.at(curve.found[0][0]), y.end)]
    for num_bytes, time_us in curve.found:
        line += [(x.at(num_bytes), line[-1][1]), (x.at(num_bytes), y.at(time_us))]
    return [*line, (x.end, line[-1][1])]


def _proven_line(curve: Curve, x: Scale, y: Scale) -> list[XY]:
    """Down right of each cap, from above the picture on: to the left nothing fits at all."""
    left = x.at(curve.never_below_bytes)
    line: list[XY] = [(left, y.end)]
    for num_bytes, time_us in curve.proven:
        line += [(line[-1][0], y.at(time_us)), (x.at(num_bytes), y.at(time_us))]
    if len(line) > 1:
        line[-1] = (x.end, line[-1][1])  # beyond the largest cap nothing gets better
    return line


def _draw_ground(svg: Svg, curve: Curve, x: Scale, y: Scale) -> None:
    edge = x.at(curve.never_below_bytes)
    svg.area([(x.start, y.start), (x.start, y.end), (edge, y.end), (edge, y.start)], "never")
    svg.text((edge - 6, y.start - 10), "nothing fits", "label", "start", turn=-90)


def _draw_axes(svg: Svg, curve: Curve, x: Scale, y: Scale) -> None:
    factor, unit = size_unit(x.high)
    for tick in Scale(x.low / factor, x.high / factor, 0, 1).ticks(10):
        place = x.at(tick * factor)
        svg.line([(place, y.start), (place, y.end)], "grid")
        svg.text((place, y.start + 18), f"{tick:g}", "label", "middle")
    unit_us, time_unit = curve.time_unit
    for tick in y.ticks(8):
        svg.line([(x.start, y.at(tick)), (x.end, y.at(tick))], "grid")
        svg.text((x.start - 8, y.at(tick) + 4), f"{tick / unit_us:g}", "label", "end")
    corners = [(x.start, y.start), (x.start, y.end), (x.end, y.end), (x.end, y.start)]
    svg.line([*corners, corners[0]], "frame")
    middle = (x.start + x.end) / 2
    svg.text((middle, _HEIGHT - 16), f"memory limit of every rank, {unit}", "axis", "middle")
    kind = f"{curve.objective}, {time_unit}{', logarithmic' if y.log else ''}"
    svg.text((18, (y.start + y.end) / 2), kind, "axis", "middle", turn=-90)
    svg.text((_LEFT, 28), curve.title, "title")


def _draw_families(svg: Svg, curve: Curve, x: Scale, y: Scale, lines: list[XY]) -> None:
    """Dots first, then each name where it covers nothing else, if there is such a place."""
    dots = sorted(curve.dots, key=lambda dot: (dot.peak_bytes, dot.value_us))
    places = [(x.at(dot.peak_bytes), y.at(dot.value_us)) for dot in dots]
    taken = [_Box(a - 5, b - 5, a + 5, b + 5) for a, b in (*places, *lines)]
    taken += _boxes_of(lines)
    for dot, place in zip(dots, places, strict=True):
        tip = f"{dot.name}: {format_us(dot.value_us)}, {format_bytes(dot.peak_bytes)}"
        svg.circle(place, 4.5, "family", tip)
        box = _free_box(place, dot.name, taken, x, y)
        taken.append(box)
        svg.text((box.left, box.bottom - 3), dot.name, "name")


def _free_box(place: XY, name: str, taken: list[_Box], x: Scale, y: Scale) -> _Box:
    """The nearest place for a name that covers nothing, else the first."""
    width, height = 6.6 * len(name), 14
    candidates = []
    for distance in (0, 14, 28, 42):
        for left in (place[0] + 9, place[0] - 9 - width, place[0] - width / 2):
            for top in (place[1] - height / 2 - distance, place[1] - height / 2 + distance):
                candidates.append(_Box(left, top, left + width, top + height))
    inside = [
        box
        for box in candidates
        if box.left > x.start and box.right < x.end and box.top > y.end and box.bottom < y.start
    ]
    free = (box for box in inside if not any(box.meets(other) for other in taken))
    return next(free, (inside or candidates)[0])


def _boxes_of(line: list[XY]) -> list[_Box]:
    """Thin boxes along a line of horizontal and vertical pieces."""
    boxes = []
    for (a, b), (c, d) in pairwise(line):
        if a == c or b == d:
            boxes.append(_Box(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1))
    return boxes


def _draw_legend(svg: Svg, curve: Curve) -> None:
    top, at = 50, float(_LEFT)
    entries = (
        ("found", f"best {curve.objective} known"),
        ("proven", "proven lower bound"),
        ("between", "the best possible lies here"),
        ("family", "published schedules"),
    )
    for style, text in entries:
        if style == "family":
            svg.circle((at + 12, top), 4.5, style)
        elif style == "between":
            svg.area([(at, top - 6), (at + 24, top - 6), (at + 24, top + 6), (at, top + 6)], style)
        else:
            svg.line([(at, top), (at + 24, top)], style)
        svg.text((at + 30, top + 4), text, "label")
        at += 30 + 6.6 * len(text) + 22
