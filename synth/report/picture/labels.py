"""Placement of labels in a plot, each beside its own dots and covering nothing.

A label has positions around each of its dots: the eight of Christensen, Marks and Shieber (1995),
"An empirical study of algorithms for point-feature label placement", and some between them. Of all
positions that one is taken first which excludes the fewest others, as by the rules of Wagner,
Wolff, Kapoor and Strijk (2001), "Three rules suffice for good label placement".
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from synth.report.picture.picture import XY

_Table = npt.NDArray[np.float64]
_Numbers = npt.NDArray[np.float64]
_Flags = npt.NDArray[np.bool_]

# Widths of signs as a share of the size of a wide sans-serif font (Bitstream Vera), and of others.
_SIGNS = {
    0.28: "ijl'|",
    0.32: " ,.IJ",
    0.37: "-f:;/",
    0.41: "()rt",
    0.53: "sz",
    0.56: "cL",
    0.6: "kvxyFTY",
    0.79: "DGHNOQU",
    0.84: "w+=<>~→↑",
    1.0: "mMW@%",
}
_WIDTHS = {sign: width for width, signs in _SIGNS.items() for sign in signs}
_OTHER, _OTHER_CAPITAL = 0.64, 0.7

_SIZE = 12.0

# Heights above and below the baseline, as a share of the size.
_ASCENT, _DESCENT = 0.76, 0.2

# The radius of dots, and distances of labels from them, in pixels.
RADIUS = 5.0
_GAPS = (2.0, 6.0, 11.0)

# Directions to the right and downwards, those that are read best first; also between the eight.
_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1))
_BETWEEN = ((0.5, -1), (0.5, 1), (-0.5, -1), (-0.5, 1), (1, -0.5), (1, 0.5), (-1, -0.5), (-1, 0.5))

# By how many excluded positions the last position of a label is worse than its first.
_WORST = 10.0

# How often labels are placed, with some noise from the second time on, if not all have a place.
_ATTEMPTS = 8

# Another dot is at least so much farther from a label than its own one: a factor, and pixels.
_FARTHER, _MORE = 1.25, 2.0


class Box(NamedTuple):
    """A rectangle that a text or a dot covers."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, place: XY, reach: float) -> "Box":
        """Return a square around a point."""
        return cls(place[0] - reach, place[1] - reach, place[0] + reach, place[1] + reach)

    def distance(self, place: XY) -> float:
        """Return the distance of a point; 0 if it is inside."""
        across = max(self.left - place[0], 0.0, place[0] - self.right)
        return math.hypot(across, max(self.top - place[1], 0.0, place[1] - self.bottom))


@dataclass(frozen=True)
class Label:
    """A text of a style that belongs to some dots, given by their places in the list of all."""

    text: str
    dots: tuple[int, ...]
    style: str
    size: float

    def positions(self, dots: Sequence[XY]) -> Iterator[Box]:
        """Yield the boxes beside each of its dots, best first."""
        width, height = text_width(self.text, self.size), (_ASCENT + _DESCENT) * self.size
        for gap in _GAPS:
            for across, down in (*_SIDES, *_BETWEEN):
                reach = (RADIUS + gap) * (0.7 if abs(across * down) == 1 else 1.0)
                for x, y in (dots[dot] for dot in self.dots):
                    left = x + across * reach - (1 - across) / 2 * width
                    top = y + down * reach - (1 - down) / 2 * height
                    yield Box(left, top, left + width, top + height)


def text_width(text: str, size: float = _SIZE) -> float:
    """Return the width in pixels that a label of a size needs at most in common fonts."""
    return size * sum(
        _WIDTHS.get(sign, _OTHER_CAPITAL if sign.isupper() else _OTHER) for sign in text
    )


def baseline(box: Box, size: float) -> float:
    """Return the height of the baseline of a label in its box."""
    return box.top + _ASCENT * size


def placed(
    labels: Sequence[Label], dots: Sequence[XY], taken: Sequence[Box], inside: Box
) -> list[Box | None]:
    """Return the box of each label; None: each of its positions covers or excludes another.

    Args:
        dots: all dots of the plot, also those of the labels.
        taken: what else cannot be covered.
        inside: the frame of the plot.
    """
    if not labels:
        return []
    boxes = [list(label.positions(dots)) for label in labels]
    owner = np.repeat(np.arange(len(labels)), list(map(len, boxes)))
    table = _table([box for those in boxes for box in those])
    worse = np.concatenate([np.linspace(0, _WORST, len(those)) for those in boxes])
    is_own = np.array([[dot in label.dots for dot in range(len(dots))] for label in labels])
    covered = _table([*taken, *(Box.around(dot, RADIUS) for dot in dots)])
    is_free = ~_meetings(table, covered).any(axis=1)
    is_free &= _is_inside(table, inside) & _is_clear(table, np.array(dots), is_own[owner])
    table, owner, worse = table[is_free], owner[is_free], worse[is_free]
    excluded = _meetings(table, table) | (owner[:, None] == owner)
    rng = np.random.default_rng(0)
    best: list[int] = []
    for attempt in range(_ATTEMPTS):
        chosen = list(_least_excluding(excluded, worse + attempt * rng.random(len(table))))
        best = max(best, chosen, key=len)
        if len(best) == len(labels):
            break
    found: list[Box | None] = [None] * len(labels)
    for place in best:
        found[owner[place]] = Box(*table[place].tolist())
    return found


def _is_inside(table: _Table, frame: Box) -> _Flags:
    left, top, right, bottom = table.T
    is_inside: _Flags = (top > frame.top) & (left > frame.left) & (right < frame.right)
    is_inside &= bottom < frame.bottom
    return is_inside


def _is_clear(table: _Table, dots: _Table, is_own: _Flags) -> _Flags:
    """Return which boxes are clearly nearer to one of their own dots than to any other."""
    left, top, right, bottom = table.T[:, :, None]
    x, y = dots.T
    across = np.maximum(0, np.maximum(left - x, x - right))
    apart = np.hypot(across, np.maximum(0, np.maximum(top - y, y - bottom)))
    own = np.where(is_own, apart, np.inf).min(axis=1)
    other = np.where(is_own, np.inf, apart).min(axis=1)
    is_clear: _Flags = other >= _FARTHER * own + _MORE
    return is_clear


def _table(boxes: Sequence[Box]) -> _Table:
    """Return boxes as rows of left, top, right and bottom."""
    return np.array(boxes, np.float64).reshape(-1, 4)


def _meetings(some: _Table, others: _Table) -> _Flags:
    """Return which of some boxes meet which of others, [box][other]."""
    left, top, right, bottom = some.T[:, :, None]
    lefts, tops, rights, bottoms = others.T
    met: _Flags = (right >= lefts) & (rights >= left)
    met &= (bottom >= tops) & (bottoms >= top)
    return met


def _least_excluding(excluded: _Flags, worse: _Numbers) -> Iterator[int]:
    """Yield positions of which none excludes another, first those that exclude the fewest."""
    is_open = np.ones(len(excluded), np.bool_)
    counts = excluded.sum(axis=1) + worse
    while is_open.any():
        best = int(np.where(is_open, counts, np.inf).argmin())
        yield best
        closed = is_open & excluded[best]
        counts -= excluded[:, closed].sum(axis=1)
        is_open &= ~closed


def boxes_of(line: Sequence[XY]) -> list[Box]:
    """Return thin boxes along a line of horizontal and vertical pieces."""
    boxes = []
    for (a, b), (c, d) in pairwise(line):
        if a == c or b == d:
            boxes.append(Box(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1))
    return boxes
