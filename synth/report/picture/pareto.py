"""Plot of schedules by time and memory, with the Pareto front and the limits."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from synth.report.picture.frame import BESIDE, SIZES, Frame, Size, legend_of, styles_with_title
from synth.report.picture.key import KEY_STYLES, Key, KeyRow
from synth.report.picture.labels import RADIUS, Box, boxes_of
from synth.report.picture.legend import Legend, LegendEntry
from synth.report.picture.picture import XY, Picture
from synth.report.picture.plot_names import PlacedNames, Spot, placed_names
from synth.report.text.pareto import Mark, Pareto
from synth.units import format_bytes, format_us


class _Dot(NamedTuple):
    """The shape of a dot, and its meaning in the legend."""

    shape: str
    meaning: str


# Dots by their style.
_DOTS = {
    "best": _Dot("disc", "published, on the front"),
    "other": _Dot("disc", "published"),
    "squeezed": _Dot("disc", "faster above the limit"),
    "solved": _Dot("square", "found by the solver"),
    "late": _Dot("diamond", "late gradients: another loss"),
    "solved-late": _Dot("diamond", "found by the solver, late gradients"),
}

# The most dots with one label for which no larger plot is tried.
_MOST_DOTS = 3

# Distance in pixels of dots beyond the scale from the upper edge.
_ARROW = 18.0

_STYLES = KEY_STYLES | {
    "front": "stroke:#22282d;stroke-width:1.6;fill:none;stroke-linejoin:round",
    "limit": "stroke:#b03a3a;stroke-width:1.6;fill:none;stroke-dasharray:6 4",
    "beyond": "stroke:#5b6670;stroke-width:1.2;fill:none",
    "best": "fill:#22282d;stroke:#ffffff;stroke-width:1.2",
    "other": "fill:#9aa6b1;stroke:#ffffff;stroke-width:1.2",
    "squeezed": "fill:#ffffff;stroke:#7c8894;stroke-width:1.8",
    "solved": "fill:#197cff;stroke:#ffffff;stroke-width:1.2",
    "late": "fill:#ffffff;stroke:#c2571a;stroke-width:1.6",
    "solved-late": "fill:#ffffff;stroke:#197cff;stroke-width:1.6",
    "name-best": "font-size:12px;font-weight:bold;fill:#22282d",
    "name-other": "font-size:12px;fill:#5b6670",
    "name-limit": "font-size:12px;fill:#b03a3a",
}


def pareto_picture(pareto: Pareto) -> Picture:
    """Draw every schedule as a dot with its name, and the Pareto front as a staircase.

    If there is no room for all names, only those of the front and of the solver are in words; the
    others are numbers, which a list below the plot explains. Where dots crowd, the plot is larger.
    """
    for size in SIZES:
        plot = _Plot.of(pareto, size)
        if plot.names.most_dots <= _MOST_DOTS:
            break
    return plot.picture()


def pareto_picture_beside(pareto: Pareto) -> Picture:
    """Draw the plot of a page whose table names the dots: without title, numbers and list."""
    plot = _Plot.of(pareto, BESIDE)
    return replace(plot, names=plot.names.in_words).picture()


@dataclass(frozen=True)
class _Plot:
    """Dots and names in a plot of a size, of the schedules of `pareto.places` in their order."""

    pareto: Pareto
    legend: Legend
    frame: Frame
    styles: list[str]
    spots: list[Spot]
    names: PlacedNames

    @classmethod
    def of(cls, pareto: Pareto, size: Size) -> Self:
        """Lay out a plot."""
        marks = pareto.places
        styles = [_style(pareto, mark) for mark in marks]
        entries = [LegendEntry(("front",), "line", "Pareto front")]
        entries += [LegendEntry((style,), *dot) for style, dot in _DOTS.items() if style in styles]
        entries += [LegendEntry(("limit",), "line", "memory limit")] if pareto.caps_bytes else []
        legend = legend_of(entries, size)
        frame = Frame.of(pareto.ends_bytes, pareto.ends_us, size, legend)
        spots = [_spot(pareto, frame, *each) for each in zip(marks, styles, strict=True)]
        arrows = [
            Box(x - 4, y - _ARROW, x + 4, y)
            for mark, ((x, y), *_) in zip(marks, spots, strict=True)
            if pareto.is_beyond(mark)
        ]
        taken = [*_limits(pareto, frame), *boxes_of(_stairs(pareto, frame)), *arrows]
        names = placed_names(spots, taken, frame.inside)
        return cls(pareto, legend, frame, styles, spots, names)

    def picture(self) -> Picture:
        """Draw the plot, with the list of its numbers if there are any."""
        pareto, frame, numbers = self.pareto, self.frame, self.names.numbers
        dots = list(zip(pareto.places, self.styles, self.spots, strict=True))
        rows = [
            KeyRow(
                _DOTS[style].shape,
                style,
                numbers.get(place),
                mark.name,
                mark.value_us,
                mark.peak_bytes,
            )
            for place, (mark, style, _) in enumerate(dots)
        ]
        size = frame.size
        key = Key.of(rows if numbers else [], size)
        styles = styles_with_title(pareto.title, size) | _STYLES
        picture = Picture(size.width, size.height + key.height, styles, pareto.title)
        frame.draw(picture, pareto.title, "highest peak of a rank", pareto.objective)
        picture.line(_stairs(pareto, frame), "front")
        _draw_limits(picture, pareto, frame)
        for mark, style, spot in reversed(dots):
            tip = f"{mark.name}: {format_us(mark.value_us)}, {format_bytes(mark.peak_bytes)}"
            picture.dot(_DOTS[style].shape, spot.at, RADIUS, style, tip, mark.name)
            if pareto.is_beyond(mark):
                _draw_arrow(picture, spot.at)
        self.names.draw(picture, self.spots)
        key.draw(picture)
        self.legend.draw(picture)
        return picture


def _style(pareto: Pareto, mark: Mark) -> str:
    """Return what a dot is: a key of `_DOTS`."""
    if pareto.is_late(mark):
        return "solved-late" if mark.is_solved else "late"
    if mark.is_solved:
        return "solved"
    if any((m.value_us, m.peak_bytes) == (mark.value_us, mark.peak_bytes) for m in pareto.front):
        return "best"
    return "squeezed" if mark.is_squeezed else "other"


def _spot(pareto: Pareto, frame: Frame, mark: Mark, style: str) -> Spot:
    name = mark.name + (f" ↑ {format_us(mark.value_us)}" if pareto.is_beyond(mark) else "")
    is_main = style in ("best", "solved")
    return Spot(
        _place(pareto, frame, mark), name, "name-best" if is_main else "name-other", is_main
    )


def _place(pareto: Pareto, frame: Frame, mark: Mark) -> XY:
    """Return where a dot is drawn; one beyond the scale has room for an arrow above it."""
    y = frame.y.end + _ARROW if pareto.is_beyond(mark) else frame.y.at(mark.value_us)
    return frame.x.at(mark.peak_bytes), y


def _stairs(pareto: Pareto, frame: Frame) -> list[XY]:
    """Return the staircase of the front, from above the plot to its right edge."""
    places = [_place(pareto, frame, mark) for mark in pareto.front]
    line: list[XY] = [(places[0][0], frame.y.end)]
    for place in places:
        line += [(place[0], line[-1][1]), place]
    return [*line, (frame.x.end, line[-1][1])]


def _limits(pareto: Pareto, frame: Frame) -> list[Box]:
    """Return the box of each limit's line."""
    places = map(frame.x.at, pareto.limits_bytes)
    return [Box(place - 1, frame.y.end, place + 1, frame.y.start) for place in places]


def _draw_limits(picture: Picture, pareto: Pareto, frame: Frame) -> None:
    for num_bytes, box in zip(pareto.limits_bytes, _limits(pareto, frame), strict=True):
        place = (box.left + box.right) / 2
        picture.line([(place, box.bottom), (place, box.top)], "limit")
        picture.text((place, box.top - 4), format_bytes(num_bytes), "name-limit", "middle")


def _draw_arrow(picture: Picture, dot: XY) -> None:
    """Point upwards from a dot that is higher than it is drawn."""
    x, y = dot
    tip = y - _ARROW + 3
    picture.line([(x, y - RADIUS), (x, tip)], "beyond")
    picture.line([(x - 3, tip + 4), (x, tip), (x + 3, tip + 4)], "beyond")
