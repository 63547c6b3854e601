"""SVG plot of schedules by time and memory, with the Pareto front and the limits."""

import math

from synth.report.picture.frame import HEIGHT, LEFT, RIGHT, STYLES, WIDTH, Frame, draw_legend
from synth.report.picture.labels import Box, boxes_of, text_width
from synth.report.picture.picture import XY, Picture
from synth.report.picture.plot_names import LEAD_FROM, NUMBER_SIZE, Label, placed_labels
from synth.report.text.pareto import Pareto
from synth.units import format_bytes, format_us

# The height of a line in the list of numbers.
_KEY_LINE = 17

# What dots are, by their style.
_MEANINGS = {
    "best": "published, on the front",
    "other": "published",
    "squeezed": "faster above the limit",
    "solved": "found by the solver",
}

_STYLES = STYLES | {
    "lead": "stroke:#c3cad0;stroke-width:1;fill:none",
    "front": "stroke:#2f6db5;stroke-width:2.2;fill:none;stroke-linejoin:round",
    "limit": "stroke:#b03a3a;stroke-width:1.6;fill:none;stroke-dasharray:6 4",
    "best": "fill:#2f6db5;stroke:#ffffff;stroke-width:1.2",
    "other": "fill:#a9b4be;stroke:#ffffff;stroke-width:1.2",
    "squeezed": "fill:#ffffff;stroke:#a9b4be;stroke-width:2",
    "solved": "fill:#3f9e5a;stroke:#ffffff;stroke-width:1.2",
    "name-best": "font-size:12px;font-weight:bold;fill:#1f4e86",
    "name-other": "font-size:12px;fill:#6b757e",
    "number": f"font-size:{NUMBER_SIZE:g}px;fill:#444c53",
    "key": "font-size:12px;fill:#444c53",
    "name-limit": "font-size:12px;fill:#b03a3a",
}


def pareto_picture(pareto: Pareto) -> Picture:
    """Draw every schedule as a dot with its name, the Pareto front as a staircase.

    Where a name has no place to which a line can be drawn without crossing others there is a number
    instead, which a list below the plot explains.
    """
    frame = Frame.of(pareto.ends_bytes, pareto.ends_us)
    stairs, limits = _stairs(pareto, frame), _limits(pareto, frame)
    labels = placed_labels(pareto, frame, [*limits, *boxes_of(stairs)])
    numbered = _wrapped([f"{label.text} {label.name}" for label in labels if label.is_number])
    picture = Picture(WIDTH, HEIGHT + _KEY_LINE * len(numbered) + 8, _STYLES, pareto.title)
    frame.draw(picture, pareto.title, "highest peak of a rank", pareto.objective)
    picture.line(stairs, "front")
    _draw_limits(picture, pareto, limits)
    _draw_labels(picture, labels)
    for place, line in enumerate(numbered):
        picture.text((LEFT, HEIGHT + 8 + _KEY_LINE * place), line, "key")
    entries = [("front", "line", "Pareto front")]
    drawn = {label.style for label in labels}
    entries += [(style, "dot", text) for style, text in _MEANINGS.items() if style in drawn]
    draw_legend(picture, entries + ([("limit", "line", "memory limit")] if limits else []))
    return picture


def _wrapped(entries: list[str]) -> list[str]:
    """Return the entries of a list in lines as wide as the plot."""
    lines: list[str] = []
    for entry in entries:
        longer = f"{lines[-1]}   {entry}" if lines else entry
        if lines and text_width(longer) <= WIDTH - LEFT - RIGHT:
            lines[-1] = longer
        else:
            lines.append(entry)
    return lines


def _stairs(pareto: Pareto, frame: Frame) -> list[XY]:
    """Return the staircase of the front, from above the plot to its right edge."""
    x, y = frame.x, frame.y
    line: list[XY] = [(x.at(pareto.front[0].peak_bytes), y.end)]
    for mark in pareto.front:
        place = (x.at(mark.peak_bytes), y.at(pareto.shown_us(mark)))
        line += [(place[0], line[-1][1]), place]
    return [*line, (x.end, line[-1][1])]


def _limits(pareto: Pareto, frame: Frame) -> list[Box]:
    """Return the box of each limit's line."""
    places = map(frame.x.at, pareto.limits_bytes)
    return [Box(place - 1, frame.y.end, place + 1, frame.y.start) for place in places]


def _draw_limits(picture: Picture, pareto: Pareto, limits: list[Box]) -> None:
    for num_bytes, box in zip(pareto.limits_bytes, limits, strict=True):
        place = (box.left + box.right) / 2
        picture.line([(place, box.bottom), (place, box.top)], "limit")
        picture.text((place, box.top - 4), format_bytes(num_bytes), "name-limit", "middle")


def _draw_labels(picture: Picture, labels: list[Label]) -> None:
    """Draw lines to names below dots, and those of the front above the others."""
    for label in labels:
        end = label.box.nearest(label.dot)
        if math.dist(end, label.dot) > LEAD_FROM:
            picture.line([label.dot, end], "lead")
    for label in reversed(labels):
        mark = label.mark
        tip = f"{mark.name}: {format_us(mark.value_us)}, {format_bytes(mark.peak_bytes)}"
        picture.circle(label.dot, 5, label.style, tip, mark.name)
    for label in labels:
        style, box = (
            "name-other" if label.style in ("other", "squeezed") else "name-best",
            label.box,
        )
        style = "number" if label.is_number else style
        if box.right < label.dot[0]:
            picture.text((box.right, box.bottom - 3), label.text, style, "end")
        else:
            picture.text((box.left, box.bottom - 3), label.text, style)
