"""Where names stand on a picture: beside their dot, covering nothing if there is such a place."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from synth.report.scale import Scale
from synth.report.svg import XY

_HEIGHT, _CHARACTER = 14.0, 6.6


class Box(NamedTuple):
    """A rectangle that a text or a dot covers."""

    left: float
    top: float
    right: float
    bottom: float

    def nearest(self, place: XY) -> XY:
        """The point of it that is nearest to another."""
        x = min(max(place[0], self.left), self.right)
        return x, min(max(place[1], self.top), self.bottom)

    @classmethod
    def around(cls, place: XY, reach: float) -> "Box":
        """A square around a point."""
        return cls(place[0] - reach, place[1] - reach, place[0] + reach, place[1] + reach)

    def meets(self, other: "Box") -> bool:
        """Whether they have a point in common."""
        apart_x = self.right < other.left or other.right < self.left
        return not (apart_x or self.bottom < other.top or other.bottom < self.top)


def text_width(text: str) -> float:
    """About how wide a text of the labels' size is."""
    return _CHARACTER * len(text)


def free_box(
    place: XY, name: str, taken: Sequence[Box], x: Scale, y: Scale, farthest: int = 42
) -> Box:
    """The nearest place for the name of a dot that covers nothing, else the first."""
    width = text_width(name)
    candidates = []
    for distance in range(0, farthest + 1, 14):
        aside = (9, 9 + distance, 9 + 2 * distance) if distance > 42 else (9,)
        lefts = [left for a in aside for left in (place[0] + a, place[0] - a - width)]
        for left in (*lefts, place[0] - width / 2):
            for top in (place[1] - _HEIGHT / 2 - distance, place[1] - _HEIGHT / 2 + distance):
                candidates.append(Box(left, top, left + width, top + _HEIGHT))
    inside = [
        box
        for box in candidates
        if box.left > x.start and box.right < x.end and box.top > y.end and box.bottom < y.start
    ]
    free = (box for box in inside if not any(box.meets(other) for other in taken))
    return next(free, (inside or candidates)[0])


def boxes_of(line: Sequence[XY]) -> list[Box]:
    """Thin boxes along a line of horizontal and vertical pieces."""
    boxes = []
    for (a, b), (c, d) in pairwise(line):
        if a == c or b == d:
            boxes.append(Box(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1))
    return boxes
