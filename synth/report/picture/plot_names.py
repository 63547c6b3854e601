"""Names of the dots in a plot: in words, or as numbers that a list below the plot explains."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from synth.report.picture.labels import RADIUS, Box, Label, baseline, placed
from synth.report.picture.picture import XY, Picture
from synth.report.text.tables import places

# Sizes of words, which may be bold and thus wider, and of numbers; the style of numbers.
_WORDS, _NUMBER_SIZE = 13.2, 10.0
_NUMBER = "number"

# The most dots whose words are in one label, and their largest distance in pixels.
_MOST_WORDS, _TOUCHING = 2, 3 * RADIUS

# The places of the spots of a label, and a label with the box that it covers.
_Group = tuple[int, ...]
_Placed = tuple[Label, Box]


class Spot(NamedTuple):
    """A dot in pixels, its name with the style of its words, and if these go before the others'."""

    at: XY
    name: str
    style: str
    is_main: bool = False


class PlacedNames(NamedTuple):
    """The labels of all spots, and the numbers of those that are not named in words."""

    labels: list[_Placed]
    numbers: dict[int, int]

    @property
    def in_words(self) -> "PlacedNames":
        """Those without numbers."""
        words = [placed for placed in self.labels if placed[0].style != _NUMBER]
        return PlacedNames(words, {})

    @property
    def most_dots(self) -> int:
        """The largest number of dots with one label."""
        return max((len(label.dots) for label, _ in self.labels), default=0)

    def draw(self, picture: Picture, spots: Sequence[Spot]) -> None:
        """Write each label, towards its dot."""
        for label, box in self.labels:
            x = min((spots[place].at for place in label.dots), key=box.distance)[0]
            at, anchor = (box.left + box.right) / 2, "middle"
            if box.right <= x:
                at, anchor = box.right, "end"
            elif box.left >= x:
                at, anchor = box.left, "start"
            picture.text((at, baseline(box, label.size)), label.text, label.style, anchor)


def placed_names(spots: Sequence[Spot], taken: Sequence[Box], inside: Box) -> PlacedNames:
    """Name all dots in words if there is room, else the main ones, and number the others in order.

    Where a text has no room beside its dot, it is in one label with those of the nearest dots: the
    words of two dots that touch each other, from the left, or any numbers.

    Args:
        taken: what cannot be covered; the dots need not be among it.
        inside: the frame of the plot.
    """
    plot = _Plot(spots, taken, inside)
    everyone = [(place,) for place in range(len(spots))]
    labels = plot.joined(everyone, plot.words_of, _MOST_WORDS, _TOUCHING)
    if labels is not None:
        return PlacedNames(labels, {})
    words, _ = plot.placed([group for group in everyone if plot.is_main(group)], plot.words_of)
    named = {place for label, _ in words for place in label.dots}
    rest = [group for group in everyone if group[0] not in named]
    numbers = {place: number for number, (place,) in enumerate(rest, 1)}

    def numbers_of(group: _Group) -> Label:
        text = places(sorted(numbers[place] for place in group))
        return Label(text, group, _NUMBER, _NUMBER_SIZE)

    plot = plot._replace(taken=[*taken, *(box for _, box in words)])
    labels = plot.joined(rest, numbers_of, len(rest), math.inf)
    return PlacedNames([*words, *(labels or [])], numbers)


class _Plot(NamedTuple):
    """The frame that labels stay in, and what they may not cover."""

    spots: Sequence[Spot]
    taken: Sequence[Box]
    inside: Box

    def is_main(self, group: _Group) -> bool:
        return any(self.spots[place].is_main for place in group)

    def words_of(self, group: _Group) -> Label:
        """Return the names of dots from the left, in the style of the main one."""
        from_left = sorted((self.spots[place] for place in group), key=lambda spot: spot.at)
        main = max(from_left, key=lambda spot: spot.is_main)
        return Label(", ".join(spot.name for spot in from_left), group, main.style, _WORDS)

    def placed(
        self, groups: Sequence[_Group], label_of: Callable[[_Group], Label]
    ) -> tuple[list[_Placed], list[_Group]]:
        """Return the labels of groups of dots, and the groups whose labels have no room."""
        labels = list(map(label_of, groups))
        boxes = placed(labels, [spot.at for spot in self.spots], self.taken, self.inside)
        found = [(label, box) for label, box in zip(labels, boxes, strict=True) if box is not None]
        return found, [group for group, box in zip(groups, boxes, strict=True) if box is None]

    def joined(
        self,
        groups: Sequence[_Group],
        label_of: Callable[[_Group], Label],
        most: int,
        farthest: float,
    ) -> list[_Placed] | None:
        """Return labels of all dots, joined where need be; None: that is not possible.

        Args:
            most: the largest number of dots with one label.
            farthest: the largest distance of dots whose labels are joined.
        """
        while True:
            found, crowded = self.placed(groups, label_of)
            if not crowded:
                return found
            pairs = []
            for group in crowded:
                others = [(group, b) for b in groups if b != group and len(group + b) <= most]
                nearest = min(others, key=self._distance, default=None)
                if nearest is None or self._distance(nearest) > farthest:
                    return None
                pairs.append(nearest)
            pair = min(pairs, key=self._distance)
            groups = [pair[0] + pair[1], *(group for group in groups if group not in pair)]

    def _distance(self, pair: tuple[_Group, _Group]) -> float:
        return min(math.dist(self.spots[a].at, self.spots[b].at) for a, b in product(*pair))
