"""Names of the dots in a plot: in words, or as numbers that a list below the plot explains."""

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from synth.report.picture.labels import Box, Label, baseline, placed
from synth.report.picture.picture import XY, Picture
from synth.report.text.tables import places

# Sizes of words, which may be bold and thus wider, and of numbers; the style of numbers.
_WORDS, NUMBER_SIZE = 13.0, 10.0
_NUMBER = "number"

# Numbers, or ranges of them, in a label.
_Group = tuple[int, ...]


class Spot(NamedTuple):
    """A dot in pixels, its name with the style of its words, and if these go before the others'."""

    at: XY
    name: str
    style: str
    is_main: bool = False


class PlacedLabel(NamedTuple):
    """A text, its style and the box that it covers, and the places of its spots."""

    text: str
    style: str
    box: Box
    spots: tuple[int, ...]


class PlacedNames(NamedTuple):
    """The labels of all spots, and the numbers of those that are not named in words."""

    labels: list[PlacedLabel]
    numbers: dict[int, int]

    def draw(self, picture: Picture, spots: Sequence[Spot]) -> None:
        """Write each label, towards its dot."""
        for text, style, box, owners in self.labels:
            size = NUMBER_SIZE if style == _NUMBER else _WORDS
            x = min((spots[place].at for place in owners), key=box.distance)[0]
            y = baseline(box, size)
            if box.right <= x:
                picture.text((box.right, y), text, style, "end")
            elif box.left >= x:
                picture.text((box.left, y), text, style)
            else:
                picture.text(((box.left + box.right) / 2, y), text, style, "middle")


def placed_names(spots: Sequence[Spot], taken: Sequence[Box], inside: Box) -> PlacedNames:
    """Name all dots in words if there is room, else the main ones, and number the others in order.

    Where a number has no room beside its dot, it is in one label with those of the nearest dots.

    Args:
        taken: what cannot be covered; the dots need not be among it.
        inside: the frame of the plot.
    """
    words = _in_words(range(len(spots)), spots, taken, inside)
    if len(words) < len(spots):
        mains = [place for place, spot in enumerate(spots) if spot.is_main]
        words = _in_words(mains, spots, taken, inside)
    named = {place for label in words for place in label.spots}
    rest = [place for place in range(len(spots)) if place not in named]
    covered = [*taken, *(label.box for label in words)]
    labels = _numbered([spot.at for spot in spots], rest, covered, inside)
    return PlacedNames(words + labels, {place: n for n, place in enumerate(rest, 1)})


def _in_words(
    among: Iterable[int], spots: Sequence[Spot], taken: Sequence[Box], inside: Box
) -> list[PlacedLabel]:
    """Return the names of those spots that have room."""
    labels = [Label(spots[place].name, (place,), _WORDS) for place in among]
    boxes = placed(labels, [spot.at for spot in spots], taken, inside)
    return [
        PlacedLabel(label.text, spots[label.dots[0]].style, box, label.dots)
        for label, box in zip(labels, boxes, strict=True)
        if box is not None
    ]


def _numbered(
    dots: Sequence[XY], rest: Sequence[int], taken: Sequence[Box], inside: Box
) -> list[PlacedLabel]:
    """Return labels with the numbers of the other spots, joined until all have room."""
    groups: list[_Group] = [(number,) for number in range(len(rest))]
    while True:
        labels = [
            Label(places(n + 1 for n in group), tuple(rest[n] for n in group), NUMBER_SIZE)
            for group in groups
        ]
        boxes = placed(labels, dots, taken, inside)
        crowded = [group for group, box in zip(groups, boxes, strict=True) if box is None]
        if not crowded or len(groups) == 1:
            break
        groups = _joined(crowded, groups, [dots[place] for place in rest])
    return [
        PlacedLabel(label.text, _NUMBER, box or next(label.positions(dots)), label.dots)
        for label, box in zip(labels, boxes, strict=True)
    ]


def _joined(
    crowded: Sequence[_Group], groups: Sequence[_Group], dots: Sequence[XY]
) -> list[_Group]:
    """Return the groups after a crowded one was joined with that whose dots are the nearest."""

    def distance(pair: tuple[_Group, _Group]) -> float:
        return min(math.dist(dots[a], dots[b]) for a, b in product(*pair))

    pair = min(((a, b) for a in crowded for b in groups if a != b), key=distance)
    return [tuple(sorted(sum(pair, ()))), *(group for group in groups if group not in pair)]
