"""Placement of labels in a plot: beside their dot, without overlap if possible."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from synth.report.picture.picture import XY
from synth.report.picture.scale import Scale

Table = npt.NDArray[np.float64]

_HEIGHT = 13.0

# Widths of signs as a share of the size of a wide sans-serif font (Bitstream Vera), and of others.
_WIDTHS = dict.fromkeys("ijl'|", 0.28) | dict.fromkeys(" ,.:;ft()-", 0.38)
_WIDTHS |= dict.fromkeys("mMW@%", 0.99) | dict.fromkeys("wGOQ+=<>→", 0.83)
_OTHER = 0.62

_SIZE = 12.0

# Lines between dots and names are covered by boxes of this size at this distance, in pixels.
_LINE_REACH, _LINE_STEP = 1.5, 4.0


class Box(NamedTuple):
    """A rectangle that a text or a dot covers."""

    left: float
    top: float
    right: float
    bottom: float

    def nearest(self, place: XY) -> XY:
        """Return the point of the box nearest to another point."""
        x = min(max(place[0], self.left), self.right)
        return x, min(max(place[1], self.top), self.bottom)

    @classmethod
    def around(cls, place: XY, reach: float) -> "Box":
        """Return a square around a point."""
        return cls(place[0] - reach, place[1] - reach, place[0] + reach, place[1] + reach)

    def meets(self, other: "Box") -> bool:
        """Return True if both have a point in common."""
        apart_x = self.right < other.left or other.right < self.left
        return not (apart_x or self.bottom < other.top or other.bottom < self.top)


def text_width(text: str, size: float = _SIZE) -> float:
    """Return the width in pixels that a label of a size needs at most in common fonts."""
    return size * sum(_WIDTHS.get(sign, _OTHER) for sign in text)


def free_box(
    place: XY, name: str, taken: Sequence[Box], x: Scale, y: Scale, farthest: int = 42
) -> Box:
    """Return the nearest box for the name of a dot that covers nothing, else the first one."""
    return next(free_boxes(place, name, as_table(taken), x, y, farthest))


def free_boxes(
    place: XY, name: str, taken: Table, x: Scale, y: Scale, farthest: int, size: float = _SIZE
) -> Iterator[Box]:
    """Yield the boxes for the name of a dot that cover nothing, nearest first; else any one."""
    width = text_width(name, size)
    candidates = []
    for distance in range(0, farthest + 1, 14):
        aside = [9 + share * distance for share in (0, 0.5, 1, 1.5, 2)] if distance > 14 else [9]
        lefts = [left for a in aside for left in (place[0] + a, place[0] - a - width)]
        for left in (*lefts, place[0] - width / 2):
            for top in (place[1] - _HEIGHT / 2 - distance, place[1] - _HEIGHT / 2 + distance):
                candidates.append(Box(left, top, left + width, top + _HEIGHT))
    inside = [
        box
        for box in candidates
        if box.left > x.start and box.right < x.end and box.top > y.end and box.bottom < y.start
    ]
    is_any_free = False
    for box in inside:
        if is_free(box, taken):
            is_any_free = True
            yield box
    if not is_any_free:
        yield from (inside or candidates)[:1]


def is_free(box: Box, taken: Table) -> bool:
    """Return True if a box meets none of others."""
    lefts, tops, rights, bottoms = taken.T
    is_beside = (box.right < lefts) | (rights < box.left)
    return bool((is_beside | (box.bottom < tops) | (bottoms < box.top)).all())


def lead(place: XY, box: Box, lead_from: float) -> Table:
    """Return boxes along the line from a dot to its label, outside of both; none if it is near."""
    end = box.nearest(place)
    length = math.dist(place, end)
    if length <= lead_from:
        return as_table([])
    shares = np.arange(2, int(length / _LINE_STEP) + 1)[:, None] * _LINE_STEP / length
    points = np.array(place) + shares * (np.array(end) - place)
    return np.concatenate([points - _LINE_REACH, points + _LINE_REACH], axis=1)


def as_table(boxes: Sequence[Box]) -> Table:
    """Return boxes as rows of left, top, right and bottom."""
    return np.array(boxes, np.float64).reshape(-1, 4)


def crossings(line: Table, others: Table) -> int:
    """Count the boxes that a line meets."""
    left, top, right, bottom = line.T[:, :, None]
    lefts, tops, rights, bottoms = others.T
    is_apart = (right < lefts) | (rights < left) | (bottom < tops) | (bottoms < top)
    return int((~is_apart).any(axis=0).sum())


def boxes_of(line: Sequence[XY]) -> list[Box]:
    """Return thin boxes along a line of horizontal and vertical pieces."""
    boxes = []
    for (a, b), (c, d) in pairwise(line):
        if a == c or b == d:
            boxes.append(Box(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1))
    return boxes
