"""Placement of names in a plot of time and memory, with numbers where there is no room for them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from synth.report.picture.frame import Frame
from synth.report.picture.labels import Box, Table, as_table, crossings, free_boxes, is_free, lead
from synth.report.picture.picture import XY
from synth.report.text.pareto import EQUALS, Mark, Pareto
from synth.units import format_us

# Distances of names and of numbers from their dots in pixels, and that from which lines join them.
_FARTHEST, _FARTHEST_NUMBER, LEAD_FROM = 84, 196, 14

# Sizes of names and numbers for their widths; names on the front are bold.
_PLAIN, _BOLD, NUMBER_SIZE = 12.0, 13.5, 10.0

# As wide as the numbers that stand for names.
_WIDEST = "00"

# How often names are placed anew if a crowd has no place for all.
_ATTEMPTS = 6


@dataclass(frozen=True)
class Label:
    """A dot with its name, or a number instead.

    Attributes:
        mark: the schedules of the dot.
        dot: its place in pixels.
        text: the name, or the number that stands for it.
        box: what the text covers.
    """

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


def placed_labels(pareto: Pareto, frame: Frame, lines: list[Box]) -> list[Label]:
    """Place names where they cover nothing, those on the front first.

    Dots for which nothing is free in the end get their numbers first in a further attempt.
    """
    front = pareto.front
    marks = sorted(_together(pareto), key=lambda mark: not _is_among(mark, front))
    crowded: list[Mark] = []
    best: tuple[int, list[Label]] | None = None
    for _ in range(_ATTEMPTS):
        names = _Placement(pareto, frame, lines)
        labels = [names.label(mark, as_number=True) for mark in crowded]
        labels += [names.label(mark) for mark in marks if mark not in crowded]
        if best is None or len(names.crowded) < best[0]:
            best = len(names.crowded), labels
        if not names.crowded:
            break
        crowded = [*names.crowded, *(mark for mark in crowded if mark not in names.crowded)]
    assert best is not None
    return _renumbered(best[1])


def _renumbered(labels: list[Label]) -> list[Label]:
    """Number labels in the order of their times."""
    fastest_first = sorted(labels, key=lambda label: label.mark.value_us)
    numbered = [label for label in fastest_first if label.is_number]
    texts = {label.text: str(n) for n, label in enumerate(numbered, 1)}
    return [
        replace(label, text=texts[label.text]) if label.is_number else label
        for label in fastest_first
    ]


class _Placement:
    """Places labels without overlap, to which lines cross neither labels nor each other."""

    def __init__(self, pareto: Pareto, frame: Frame, lines: list[Box]) -> None:
        """Begin with the lines of the plot, which may be crossed, and all dots."""
        self._pareto, self._frame, self._lines = pareto, frame, lines
        self._dots = [Box.around(self._dot(mark), 5) for mark in _together(pareto)]
        self._names: list[Box] = []
        self._leads = as_table([])
        self._count = 0
        self.crowded: list[Mark] = []

    def label(self, mark: Mark, *, as_number: bool = False) -> Label:
        """Place the name of a schedule, or else a number; `crowded` has those without a place."""
        pareto, dot = self._pareto, self._dot(mark)
        name = mark.name + (f" ↑ {format_us(mark.value_us)}" if pareto.is_beyond(mark) else "")
        is_best = _is_among(mark, pareto.front)
        rest = "squeezed" if mark.is_squeezed else "other"
        style = "solved" if mark.is_solved else "best" if is_best else rest
        size = _PLAIN if style == rest else _BOLD
        text, box = name, None if as_number else self._free(dot, name, size)
        if box is None:
            self._count += 1
            text = str(self._count)
            box = self._free(dot, _WIDEST, NUMBER_SIZE, _FARTHEST_NUMBER)
        if box is None:
            self.crowded.append(mark)
            box = self._least_harmful(dot)
        self._names.append(box)
        self._leads = np.concatenate([self._leads, lead(dot, box, LEAD_FROM)])
        return Label(mark, dot, style, name, text, box)

    def _dot(self, mark: Mark) -> XY:
        at_us = self._pareto.shown_us(mark)
        return self._frame.x.at(mark.peak_bytes), self._frame.y.at(at_us)

    def _free(self, dot: XY, text: str, size: float, farthest: int = _FARTHEST) -> Box | None:
        """Return the nearest place that is free; None: there is none."""
        others = [box for box in self._dots if box != Box.around(dot, 5)]
        taken = np.concatenate([as_table([*self._lines, *self._dots, *self._names]), self._leads])
        solid = np.concatenate([as_table([*others, *self._names]), self._leads])
        for box in self._boxes(dot, text, taken, size, farthest):
            if is_free(box, taken) and not crossings(lead(dot, box, LEAD_FROM), solid):
                return box
        return None

    def _least_harmful(self, dot: XY) -> Box:
        """Return a place whose line crosses dots, and as few names and other lines as possible."""
        taken = np.concatenate([as_table([*self._dots, *self._names]), self._leads])
        solid = np.concatenate([as_table(self._names), self._leads])
        boxes = self._boxes(dot, _WIDEST, taken, NUMBER_SIZE, _FARTHEST_NUMBER)
        return min(boxes, key=lambda box: crossings(lead(dot, box, LEAD_FROM), solid))

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
        Mark(
            EQUALS.join(mark.name for mark in group),
            *place,
            any(mark.is_solved for mark in group),
            is_squeezed=all(mark.is_squeezed for mark in group),
        )
        for place, group in groups.items()
    ]
