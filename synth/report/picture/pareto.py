"""SVG plot of schedules by time and memory, with the Pareto front and the limits."""

import math
from dataclasses import dataclass, field

from synth.report.picture.frame import HEIGHT, STYLES, WIDTH, Frame, draw_legend
from synth.report.picture.labels import Box, as_table, boxes_of, crossings, free_boxes, lead
from synth.report.picture.picture import XY, Picture
from synth.report.text.pareto import Mark, Pareto
from synth.units import format_bytes, format_us

# Distances of names from their dots in pixels; from the second on with a line between.
_FARTHEST, _LEAD_FROM = 196, 14

# A crossing of lines to names costs as much as this many pixels of length.
_CROSSED = 60.0

_STYLES = STYLES | {
    "lead": "stroke:#c3cad0;stroke-width:1;fill:none",
    "front": "stroke:#2f6db5;stroke-width:2.2;fill:none;stroke-linejoin:round",
    "limit": "stroke:#b03a3a;stroke-width:1.6;fill:none;stroke-dasharray:6 4",
    "best": "fill:#2f6db5;stroke:#ffffff;stroke-width:1.2",
    "other": "fill:#a9b4be;stroke:#ffffff;stroke-width:1.2",
    "solved": "fill:#3f9e5a;stroke:#ffffff;stroke-width:1.2",
    "name-best": "font-size:12px;font-weight:bold;fill:#1f4e86",
    "name-other": "font-size:12px;fill:#6b757e",
    "name-limit": "font-size:12px;fill:#b03a3a",
}


def pareto_picture(pareto: Pareto) -> Picture:
    """Draw every schedule as a dot with its name, the Pareto front as a staircase."""
    picture = Picture(WIDTH, HEIGHT, _STYLES, pareto.title)
    frame = Frame.of(pareto.ends_bytes, pareto.ends_us)
    frame.draw(picture, pareto.title, "highest peak of a rank", pareto.objective)
    stairs = _stairs(pareto, frame)
    picture.line(stairs, "front")
    limits = _draw_limits(picture, pareto, frame)
    _draw_marks(picture, pareto, frame, [*limits, *boxes_of(stairs)])
    entries = [("front", "line", "Pareto front"), ("best", "dot", "on it")]
    entries += [("other", "dot", "published"), ("solved", "dot", "solved")]
    draw_legend(picture, entries + ([("limit", "line", "memory limit")] if limits else []))
    return picture


def _stairs(pareto: Pareto, frame: Frame) -> list[XY]:
    """Return the staircase of the front, from above the plot to its right edge."""
    x, y = frame.x, frame.y
    line: list[XY] = [(x.at(pareto.front[0].peak_bytes), y.end)]
    for mark in pareto.front:
        place = (x.at(mark.peak_bytes), y.at(pareto.shown_us(mark)))
        line += [(place[0], line[-1][1]), place]
    return [*line, (x.end, line[-1][1])]


def _draw_limits(picture: Picture, pareto: Pareto, frame: Frame) -> list[Box]:
    """Draw a line for each limit; return the boxes covered."""
    boxes = []
    for limit in pareto.limits_bytes:
        place = frame.x.at(limit)
        picture.line([(place, frame.y.start), (place, frame.y.end)], "limit")
        picture.text((place, frame.y.end - 4), format_bytes(limit), "name-limit", "middle")
        boxes.append(Box(place - 1, frame.y.end, place + 1, frame.y.start))
    return boxes


def _draw_marks(picture: Picture, pareto: Pareto, frame: Frame, lines: list[Box]) -> None:
    """Draw dots first, then names where they cover nothing, those on the front first."""
    front = pareto.front
    marks = sorted(_together(pareto), key=lambda mark: not _is_among(mark, front))
    places = [(frame.x.at(m.peak_bytes), frame.y.at(pareto.shown_us(m))) for m in marks]
    for mark, place in reversed(list(zip(marks, places, strict=True))):
        is_best = _is_among(mark, front)
        tip = f"{mark.name}: {format_us(mark.value_us)}, {format_bytes(mark.peak_bytes)}"
        style = "solved" if mark.is_solved else "best" if is_best else "other"
        picture.circle(place, 5, style, tip, mark.name)
    names = _Names(frame, lines, [Box.around(place, 5) for place in places])
    for mark, place in zip(marks, places, strict=True):
        name = mark.name + (f" ↑ {format_us(mark.value_us)}" if pareto.is_beyond(mark) else "")
        box = names.place(place, name)
        if math.dist(box.nearest(place), place) > _LEAD_FROM:
            picture.line([place, box.nearest(place)], "lead")
        style = "name-best" if _is_among(mark, front) else "name-other"
        if box.right < place[0]:
            picture.text((box.right, box.bottom - 3), name, style, "end")
        else:
            picture.text((box.left, box.bottom - 3), name, style)


@dataclass
class _Names:
    """Placement of labels without overlap and with few crossings of their lines.

    `lines` may be crossed, `solid` are dots and names.
    """

    frame: Frame
    lines: list[Box]
    solid: list[Box]
    leads: list[Box] = field(default_factory=list)

    def place(self, dot: XY, name: str) -> Box:
        """Choose a place; it is taken from then on."""
        taken, own = [*self.lines, *self.solid, *self.leads], Box.around(dot, 5)
        x, y = self.frame.x, self.frame.y
        others = as_table([box for box in self.solid if box != own])
        leads = as_table(self.leads)

        def harm(box: Box) -> tuple[bool, float]:
            line = lead(dot, box, _LEAD_FROM)
            crossed = crossings(line, others), crossings(line, leads)
            length = math.dist(dot, box.nearest(dot))
            return crossed[0] > 0, _CROSSED * sum(map(bool, crossed)) + length

        box = min(free_boxes(dot, name, taken, x, y, _FARTHEST), key=harm)
        self.solid.append(box)
        self.leads += lead(dot, box, _LEAD_FROM)
        return box


def _is_among(mark: Mark, front: list[Mark]) -> bool:
    """Return True if a schedule of the Pareto front is at the same place."""
    return any((m.value_us, m.peak_bytes) == (mark.value_us, mark.peak_bytes) for m in front)


def _together(pareto: Pareto) -> list[Mark]:
    """Merge schedules at the same place into one with all their names."""
    groups: dict[tuple[int, int], list[Mark]] = {}
    for mark in pareto.marks:
        groups.setdefault((mark.value_us, mark.peak_bytes), []).append(mark)
    return [
        Mark(", ".join(mark.name for mark in group), *place, any(m.is_solved for m in group))
        for place, group in groups.items()
    ]
