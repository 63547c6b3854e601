"""Time against memory as a scatter: the front, the terminal's picture, the SVG."""

import json
import math
import random
import time
import xml.etree.ElementTree as ET
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from synth.report.picture.labels import Box, text_width
from synth.report.picture.pareto import pareto_picture, pareto_picture_beside
from synth.report.picture.picture import XY
from synth.report.picture.svg import svg_text
from synth.report.text.canvas import letter
from synth.report.text.pareto import Mark, Pareto, plot
from tests.synth.report.svg_shapes import middle, points_of, shapes

# d is as fast as b in more memory, e as large as c and slower; far takes 9 times as long.
MARKS = (
    Mark("a", 100, 900),
    Mark("b", 110, 500, is_solved=True),
    Mark("d", 110, 600),
    Mark("c", 150, 300),
    Mark("e", 160, 300),
    Mark("far", 900, 200),
)


def pareto(marks: tuple[Mark, ...] = MARKS, caps: tuple[int, ...] = (700, 700)) -> Pareto:
    return Pareto("a & b", "makespan", marks, caps)


def test_the_front_is_who_nobody_beats_in_both() -> None:
    assert [mark.name for mark in pareto().front] == ["far", "c", "b", "a"]


def test_of_equals_the_first_is_on_the_front() -> None:
    marks = (Mark("x", 5, 5), Mark("y", 5, 5))
    assert [mark.name for mark in pareto(marks).front] == ["x"]


def test_the_front_is_of_the_schedules_with_the_least_delay() -> None:
    late = (Mark("late", 1, 1, delay=3), Mark("later", 1, 1, delay=4))
    assert pareto((*MARKS, *late)).front == pareto().front
    assert [mark.name for mark in pareto(late).front] == ["late"]


def test_the_terminal_shows_every_schedule_at_its_letter() -> None:
    drawn = plot(pareto(), 80, 14)
    body, legend = drawn.split("\n")[:14], drawn.split("\n")[-2:]
    assert all(len(line) <= 80 for line in body)
    column = {sign: line.index(sign) for line in body for sign in "abcdf" if sign in line}
    assert column["f"] < column["d"] < column["b"] < column["c"] < column["a"]
    assert "off the scale: f" in legend[1] and "┊ memory limit" in legend[0]
    assert "f" in body[0]


def test_the_terminal_tells_late_gradients_and_what_others_hide() -> None:
    marks = (*MARKS, Mark("late", 115, 800, delay=1), Mark("under", 150, 301))
    legend = " ".join(line.strip() for line in plot(pareto(marks), 80, 14).split("\n")[-3:])
    assert "late gradients: g" in legend
    assert "hidden: h by d" in legend
    assert "late gradients" not in plot(pareto(), 80, 14)


def test_letters_differ_and_after_all_of_them_there_are_two() -> None:
    assert [letter(n) for n in (0, 25, 26, 51, 52, 62, 85)] == ["a", "z", "A", "Z", "0", "α", "ω"]
    assert letter(86) == "aa"
    assert len({letter(n) for n in range(500)}) == 500
    marks = tuple(Mark(f"m{i}", 1000 + i, 9000 - 10 * i) for i in range(90))
    assert "ab" in plot(pareto(marks), 200, 120)


def test_late_gradients_are_diamonds_that_the_legend_explains() -> None:
    late = (Mark("late", 115, 800, delay=1), Mark("ours", 120, 850, is_solved=True, delay=2))
    picture = svg_text(pareto_picture(pareto((*MARKS, *late))))
    for style in ("late", "solved-late"):
        found, of_legend = shapes(picture, style)
        assert len(points_of(found)) == len(points_of(of_legend)) == 4
    labels = {t.text for t in shapes(picture, "label")}
    assert any("late gradients" in (text or "") for text in labels)
    front = points_of(shapes(picture, "front")[0])
    assert all(middle(shapes(picture, "late")[0]) != corner for corner in front)


def test_a_legend_is_inside_the_picture() -> None:
    marks = (
        *MARKS,
        Mark("late", 115, 800, delay=1),
        Mark("ours", 120, 850, is_solved=True, delay=2),
        Mark("squeezed", 140, 880, is_squeezed=True),
    )
    for picture in (pareto_picture(pareto(marks)), pareto_picture_beside(pareto(marks))):
        text = svg_text(picture)
        legend = [e for e in shapes(text, "label") if not (e.text or "").isdigit()]
        assert len(legend) == 8
        for entry in legend:
            assert float(entry.get("x") or 0) + text_width(entry.text or "") <= picture.width
        tops = {float(entry.get("y") or 0) for entry in legend}
        frame = points_of(shapes(text, "frame")[0])
        assert max(tops) + 12 < min(y for _, y in frame)  # a limit's words are between


def test_beside_charts_there_is_no_title_and_no_number() -> None:
    picture = svg_text(pareto_picture_beside(pareto(CROWD)))
    assert not shapes(picture, "title") and not shapes(picture, "number")
    assert dots_of(picture).keys() == {mark.name for mark in CROWD}


def test_a_long_title_is_as_wide_as_its_picture() -> None:
    title = "a profile of a long name on many ranks " * 4
    picture = pareto_picture(Pareto(title, "makespan", MARKS))
    size = float(picture.styles["title"].split("px")[0].removeprefix("font-size:"))
    assert size < 16
    assert 84 + text_width(title, 1.1 * size) <= picture.width


def test_without_a_limit_there_is_no_line_of_it() -> None:
    free = pareto(caps=())
    assert "┊" not in plot(free) and not shapes(svg_text(pareto_picture(free)), "limit")
    two = svg_text(pareto_picture(pareto(caps=(400, 700))))
    assert len(shapes(two, "limit")) == 3  # two, and the legend's


def test_the_svg_marks_the_front_and_names_all() -> None:
    picture = svg_text(pareto_picture(pareto()))
    names = [t.text for t in shapes(picture, "name-best")]
    assert set(names) == {"a", "b", "c", "far ↑ 900 µs"}
    assert {t.text for t in shapes(picture, "name-other")} == {"d", "e"}
    corners = points_of(shapes(picture, "front")[0])
    best = [*shapes(picture, "best")[:-1], shapes(picture, "solved")[0]]  # without the legend's
    for dot in best:
        assert min(math.dist(middle(dot), corner) for corner in corners) < 0.01
    assert corners == sorted(corners, key=lambda at: at[0])
    assert [y for _, y in corners] == sorted(y for _, y in corners)  # y grows downwards


CROWD = (
    *(Mark(f"schedule-{i}", 100 + i % 7, 500 + 3 * i) for i in range(14)),
    Mark("large", 180, 2000),
)


def scattered(count: int, seed: int) -> tuple[Mark, ...]:
    rng = random.Random(seed)
    return tuple(
        Mark(f"family-{i}", rng.randrange(100, 200), rng.randrange(300, 900)) for i in range(count)
    )


def recorded() -> dict[str, Pareto]:
    """Return what `synth compare` found for shipped profiles and models."""
    text = (Path(__file__).parent / "compared.json").read_text(encoding="utf-8")
    return {
        title: Pareto(title, "makespan", tuple(Mark(*row) for row in rows), tuple(caps))
        for title, (caps, rows) in json.loads(text).items()
    }


PLOTS = {
    "crowd": pareto(CROWD),
    **{f"{count} scattered": pareto(scattered(count, count)) for count in (12, 40, 70)},
    **recorded(),
}
every_plot = pytest.mark.parametrize(
    "plotted",
    [
        pytest.param(plotted, id=title, marks=[pytest.mark.slow] * (len(plotted.marks) > 60))
        for title, plotted in PLOTS.items()
    ],
)
drawn = cache(lambda plotted: svg_text(pareto_picture(plotted)))


class DrawnLabel(NamedTuple):
    """A label of a plot: its box and the names of its dots."""

    box: Box
    names: set[str]


def dots_of(picture: str) -> dict[str, XY]:
    """The middle of each dot by its name."""
    named = [(e.get("data-name"), e) for e in ET.fromstring(picture).iter()]
    return {name: middle(e) for name, e in named if name is not None}


def labels_of(picture: str) -> list[DrawnLabel]:
    """The labels of a plot; the list below it says whose numbers they have."""
    key = [(e.get("y"), e.get("text-anchor"), e.text or "") for e in shapes(picture, "key")]
    listed = {
        number: name
        for (y, _, number), (of_name, anchor, name) in pairwise(key)
        if anchor == "start" and y == of_name
    }
    labels = []
    for style, size in (("name-best", 13.0), ("name-other", 12.0), ("number", 10.0)):
        for text in shapes(picture, style):
            words = text.text or ""
            parts = words.split(", ")
            names = {part.split(" ↑ ")[0] for part in parts}
            if style == "number":
                names = {listed[number] for part in parts for number in upto(part)}
            width = text_width(words, size)
            share = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor") or ""]
            left, base = float(text.get("x") or 0) - share * width, float(text.get("y") or 0)
            box = Box(left, base - 0.7 * size, left + width, base + 1)
            labels.append(DrawnLabel(box, names))
    return labels


def upto(part: str) -> list[str]:
    """The numbers of `7` or `7–9`."""
    first, _, last = part.partition("–")
    return [str(number) for number in range(int(first), int(last or first) + 1)]


def meets(one: Box, other: Box) -> bool:
    apart_x = one.right < other.left or other.right < one.left
    return not (apart_x or one.bottom < other.top or other.bottom < one.top)


@every_plot
def test_each_label_is_nearer_to_its_own_dot_than_to_any_other(plotted: Pareto) -> None:
    picture = drawn(plotted)
    dots = dots_of(picture)
    for box, names in labels_of(picture):
        apart = {name: box.distance(dot) for name, dot in dots.items()}
        own = min(apart[name] for name in names)
        assert own < 18 and own < min(
            (apart[name] for name in apart if name not in names), default=99
        )


@every_plot
def test_each_dot_has_one_label_and_nothing_covers_another(plotted: Pareto) -> None:
    picture = drawn(plotted)
    labels = labels_of(picture)
    names = [name for label in labels for name in label.names]
    assert sorted(names) == sorted(mark.name for mark in plotted.places)
    boxes = [label.box for label in labels]
    right = float(ET.fromstring(picture).get("width") or 0) - 24
    assert all(box.left >= 84 and box.right <= right for box in boxes)
    assert not any(meets(one, other) for one, other in combinations(boxes, 2))
    dots = [Box.around(dot, 4.5) for dot in dots_of(picture).values()]
    assert not any(meets(box, dot) for box in boxes for dot in dots)


def test_dots_that_touch_each_other_have_one_label_with_their_numbers() -> None:
    picture = svg_text(pareto_picture(pareto(CROWD)))
    assert any(len(label.names) > 3 for label in labels_of(picture))
    few = svg_text(pareto_picture(pareto(scattered(12, 12))))
    assert all(len(label.names) == 1 for label in labels_of(few))


def test_the_list_has_the_figures_of_every_schedule_if_there_are_numbers() -> None:
    texts = [e.text for e in shapes(svg_text(pareto_picture(pareto(CROWD))), "key")]
    large = texts.index("large")
    assert texts[large + 1 : large + 3] == ["180.0", "2.000"]
    assert {mark.name for mark in CROWD} <= set(texts)
    assert not shapes(svg_text(pareto_picture(pareto())), "key")


def test_the_legend_has_only_what_is_drawn() -> None:
    labels = {t.text for t in shapes(svg_text(pareto_picture(pareto())), "label")}
    assert {"published, on the front", "published", "found by the solver"} <= labels
    published = tuple(mark for mark in MARKS if not mark.is_solved)
    labels = {t.text for t in shapes(svg_text(pareto_picture(pareto(published))), "label")}
    assert "found by the solver" not in labels


def test_schedules_in_the_same_place_are_named_together() -> None:
    picture = svg_text(pareto_picture(pareto((Mark("x", 5, 5), Mark("y", 5, 5), Mark("z", 9, 2)))))
    assert "x = y" in {t.text for t in shapes(picture, "name-best")}


def test_a_plot_of_fifty_names_takes_little_time() -> None:
    rng = random.Random(5)
    marks = tuple(
        Mark(f"family-{i}", rng.randrange(100, 200), rng.randrange(300, 900)) for i in range(50)
    )
    began_s = time.thread_time()
    pareto_picture(pareto(marks))
    assert time.thread_time() - began_s < 8  # box by box it takes 20 to 50 s
