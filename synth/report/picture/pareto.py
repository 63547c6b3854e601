"""SVG plot of schedules by time and memory, with the Pareto front and the limits."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from synth.report.picture.frame import HEIGHT, LEFT, RIGHT, STYLES, WIDTH, Frame, draw_legend
from synth.report.picture.labels import (
    Box,
    Table,
    as_table,
    boxes_of,
    crossings,
    free_boxes,
    is_free,
    lead,
    text_width,
)
from synth.report.picture.picture import XY, Picture
from synth.report.text.pareto import EQUALS, Mark, Pareto
from synth.units import format_bytes, format_us

# Distances of names and of numbers from their dots in pixels, and that from which lines join them.
_FARTHEST, _FARTHEST_NUMBER, _LEAD_FROM = 84, 196, 14

# Sizes of names and numbers for their widths; names on the front are bold.
_PLAIN, _BOLD, _NUMBER = 12.0, 13.5, 10.0

# As wide as the numbers that stand for names.
_WIDEST = "00"

# How often names are placed anew if a crowd has no place for all.
_ATTEMPTS = 6

# The height of a line in the list of numbers.
_KEY_LINE = 17

# What dots are, by their style.
_MEANINGS = {
    "best": "published, on the front",
    "other": "published",
    "solved": "found by the solver",
}

_STYLES = STYLES | {
    "lead": "stroke:#c3cad0;stroke-width:1;fill:none",
    "front": "stroke:#2f6db5;stroke-width:2.2;fill:none;stroke-linejoin:round",
    "limit": "stroke:#b03a3a;stroke-width:1.6;fill:none;stroke-dasharray:6 4",
    "best": "fill:#2f6db5;stroke:#ffffff;stroke-width:1.2",
    "other": "fill:#a9b4be;stroke:#ffffff;stroke-width:1.2",
    "solved": "fill:#3f9e5a;stroke:#ffffff;stroke-width:1.2",
    "name-best": "font-size:12px;font-weight:bold;fill:#1f4e86",
    "name-other": "font-size:12px;fill:#6b757e",
    "number": f"font-size:{_NUMBER:g}px;fill:#444c53",
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
    labels = _labels(pareto, frame, [*limits, *boxes_of(stairs)])
    numbered = _wrapped([f"{label.text} {label.name}" for label in labels if label.is_number])
    picture = Picture(WIDTH, HEIGHT + _KEY_LINE * len(numbered) + 8, _STYLES, pareto.title)
    frame.draw(picture, pareto.title, "highest peak of a rank", pareto.objective)
    picture.line(stairs, "front")
    _draw_limits(picture, pareto, limits)
    _draw_labels(picture, labels)
    for place, line in enumerate(numbered):
        picture.text((LEFT, HEIGHT + 8 + _KEY_LINE * place), line, "key")
    entries = [("front", "line", "Pareto front")]
    entries += [(style, "dot", _MEANINGS[style]) for style in _MEANINGS if _has(labels, style)]
    draw_legend(picture, entries + ([("limit", "line", "memory limit")] if limits else []))
    return picture


@dataclass(frozen=True)
class _Label:
    """A dot with its name, or a number instead, in a box."""

    mark: Mark
    dot: XY
    style: str
    name: str
    text: str
    box: Box

    @property
    def is_number(self) -> bool:
        """True if the name is listed below the plot."""
        return self.text != self.name


def _has(labels: list[_Label], style: str) -> bool:
    return any(label.style == style for label in labels)


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


def _labels(pareto: Pareto, frame: Frame, lines: list[Box]) -> list[_Label]:
    """Place names where they cover nothing, those on the front first.

    Dots for which nothing is free in the end get their numbers first in a further attempt.
    """
    front = pareto.front
    marks = sorted(_together(pareto), key=lambda mark: not _is_among(mark, front))
    crowded: list[Mark] = []
    best: tuple[int, list[_Label]] | None = None
    for _ in range(_ATTEMPTS):
        names = _Names(pareto, frame, lines)
        labels = [names.label(mark, as_number=True) for mark in crowded]
        labels += [names.label(mark) for mark in marks if mark not in crowded]
        if best is None or len(names.crowded) < best[0]:
            best = len(names.crowded), labels
        if not names.crowded:
            break
        crowded = [*names.crowded, *(mark for mark in crowded if mark not in names.crowded)]
    assert best is not None
    return _renumbered(best[1])


def _renumbered(labels: list[_Label]) -> list[_Label]:
    """Number labels in the order of their times."""
    fastest_first = sorted(labels, key=lambda label: label.mark.value_us)
    numbered = [label for label in fastest_first if label.is_number]
    texts = {label.text: str(n) for n, label in enumerate(numbered, 1)}
    return [
        replace(label, text=texts[label.text]) if label.is_number else label
        for label in fastest_first
    ]


def _draw_labels(picture: Picture, labels: list[_Label]) -> None:
    """Draw lines to names below dots, and those of the front above the others."""
    for label in labels:
        end = label.box.nearest(label.dot)
        if math.dist(end, label.dot) > _LEAD_FROM:
            picture.line([label.dot, end], "lead")
    for label in reversed(labels):
        mark = label.mark
        tip = f"{mark.name}: {format_us(mark.value_us)}, {format_bytes(mark.peak_bytes)}"
        picture.circle(label.dot, 5, label.style, tip, mark.name)
    for label in labels:
        style, box = "name-other" if label.style == "other" else "name-best", label.box
        style = "number" if label.is_number else style
        if box.right < label.dot[0]:
            picture.text((box.right, box.bottom - 3), label.text, style, "end")
        else:
            picture.text((box.left, box.bottom - 3), label.text, style)


class _Names:
    """Placement of labels without overlap, to which lines cross neither labels nor each other."""

    def __init__(self, pareto: Pareto, frame: Frame, lines: list[Box]) -> None:
        """Begin with the lines of the plot, which may be crossed, and all dots."""
        self._pareto, self._frame, self._lines = pareto, frame, lines
        self._dots = [Box.around(self._dot(mark), 5) for mark in _together(pareto)]
        self._names: list[Box] = []
        self._leads = as_table([])
        self._count = 0
        self.crowded: list[Mark] = []

    def label(self, mark: Mark, *, as_number: bool = False) -> _Label:
        """Place the name of a schedule, or else a number; `crowded` has those without a place."""
        pareto, dot = self._pareto, self._dot(mark)
        name = mark.name + (f" ↑ {format_us(mark.value_us)}" if pareto.is_beyond(mark) else "")
        is_best = _is_among(mark, pareto.front)
        style = "solved" if mark.is_solved else "best" if is_best else "other"
        size = _PLAIN if style == "other" else _BOLD
        text, box = name, None if as_number else self._free(dot, name, size)
        if box is None:
            self._count += 1
            text = str(self._count)
            box = self._free(dot, _WIDEST, _NUMBER, _FARTHEST_NUMBER)
        if box is None:
            self.crowded.append(mark)
            box = self._least_harmful(dot)
        self._names.append(box)
        self._leads = np.concatenate([self._leads, lead(dot, box, _LEAD_FROM)])
        return _Label(mark, dot, style, name, text, box)

    def _dot(self, mark: Mark) -> XY:
        at_us = self._pareto.shown_us(mark)
        return self._frame.x.at(mark.peak_bytes), self._frame.y.at(at_us)

    def _free(self, dot: XY, text: str, size: float, farthest: int = _FARTHEST) -> Box | None:
        """Return the nearest place that is free; None: there is none."""
        others = [box for box in self._dots if box != Box.around(dot, 5)]
        taken = np.concatenate([as_table([*self._lines, *self._dots, *self._names]), self._leads])
        solid = np.concatenate([as_table([*others, *self._names]), self._leads])
        for box in self._boxes(dot, text, taken, size, farthest):
            if is_free(box, taken) and not crossings(lead(dot, box, _LEAD_FROM), solid):
                return box
        return None

    def _least_harmful(self, dot: XY) -> Box:
        """Return a place whose line crosses dots, and as few names and other lines as possible."""
        taken = np.concatenate([as_table([*self._dots, *self._names]), self._leads])
        solid = np.concatenate([as_table(self._names), self._leads])
        boxes = self._boxes(dot, _WIDEST, taken, _NUMBER, _FARTHEST_NUMBER)
        return min(boxes, key=lambda box: crossings(lead(dot, box, _LEAD_FROM), solid))

    def _boxes(self, dot: XY, text: str, taken: Table, size: float, farthest: int) -> Iterator[Box]:
        return free_boxes(dot, text, taken, self._frame.x, self._frame.y, farthest, size)


def _is_among(mark: Mark, front: list[Mark]) -> bool:
    """Return True if a schedule of the Pareto front is at the same place."""
    return any((m.value_us, m.peak_bytes) == (mark.value_us, mark.peak_bytes) for m in front)


def _together(pareto: Pareto) -> list[Mark]:
    """Merge schedules at the same place into one with all their names."""
    groups: dict[tuple[int, int], list[Mark]] = {}
    for mark in pareto.marks:
        groups.setdefault((mark.value_us, mark.peak_bytes), []).append(mark)
    return [
        Mark(EQUALS.join(mark.name for mark in group), *place, any(m.is_solved for m in group))
        for place, group in groups.items()
    ]
