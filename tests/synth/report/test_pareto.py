"""Time against memory as a scatter: the front, the terminal's picture, the SVG."""

import random
import re
import time
import xml.etree.ElementTree as ET
from itertools import combinations

import numpy as np

from synth.report.picture.labels import Box, as_table, crossings, text_width
from synth.report.picture.pareto import pareto_picture
from synth.report.picture.picture import XY
from synth.report.picture.svg import svg_text
from synth.report.text.pareto import Mark, Pareto, plot

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


def shapes(picture: str, style: str) -> list[ET.Element]:
    return [e for e in ET.fromstring(picture).iter() if e.get("class") == style]


def points_of(element: ET.Element) -> list[tuple[float, float]]:
    pairs = (element.get("points") or "").split()
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in pairs)]


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
    for circle in best:
        assert (float(circle.get("cx") or 0), float(circle.get("cy") or 0)) in corners
    assert corners == sorted(corners, key=lambda at: at[0])
    assert [y for _, y in corners] == sorted(y for _, y in corners)  # y grows downwards


def test_names_of_a_crowd_do_not_cover_each_other() -> None:
    crowd = tuple(Mark(f"schedule-{i}", 100 + i % 7, 500 + 3 * i) for i in range(14))
    picture = svg_text(pareto_picture(pareto((*crowd, Mark("large", 180, 2000)))))
    boxes = label_boxes(picture)
    assert len(boxes) == 15
    assert all(box.left >= 84 and box.right <= 836 for box in boxes)
    assert not any(one.meets(other) for one, other in combinations(boxes, 2))


def label_boxes(picture: str) -> list[Box]:
    """The boxes of the names and numbers in a plot."""
    boxes = []
    for style, size in (("name-best", 13.0), ("name-other", 12.0), ("number", 10.0)):
        for text in shapes(picture, style):
            width = text_width(text.text or "", size)
            right = float(text.get("x") or 0)
            right += width * (text.get("text-anchor") != "end")
            bottom = float(text.get("y") or 0)
            boxes.append(Box(right - width, bottom - 9, right, bottom + 1))
    return boxes


def test_no_line_to_a_name_crosses_another_name_or_line() -> None:
    rng = random.Random(7)
    marks = tuple(
        Mark(f"family-{i}", rng.randrange(100, 200), rng.randrange(300, 900)) for i in range(40)
    )
    picture = svg_text(pareto_picture(pareto(marks)))
    boxes, lines = label_boxes(picture), [points_of(line) for line in shapes(picture, "lead")]
    assert lines
    for start, end in lines:
        (a, b), (c, d) = start, end
        shares = np.linspace(0.1, 0.9, 40)
        pieces = [Box.around((a + share * (c - a), b + share * (d - b)), 0.5) for share in shares]
        met = [box for box in boxes if any(piece.meets(box) for piece in pieces)]
        assert all(abs(box.nearest(end)[0] - end[0]) < 2 for box in met)  # its own at most
    for (p, q), (r, s) in combinations(lines, 2):
        assert not (_turns(p, q, r) != _turns(p, q, s) and _turns(r, s, p) != _turns(r, s, q))


def _turns(a: XY, b: XY, c: XY) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) > (b[1] - a[1]) * (c[0] - a[0])


def test_names_without_a_place_are_numbers_that_a_list_explains() -> None:
    crowd = tuple(Mark(f"schedule-{i}", 100 + i % 7, 500 + 3 * i) for i in range(14))
    picture = svg_text(pareto_picture(pareto((*crowd, Mark("large", 180, 2000)))))
    texts = [t.text or "" for style in ("name-best", "name-other") for t in shapes(picture, style)]
    numbers = [t.text or "" for t in shapes(picture, "number")]
    listed = re.findall(r"(\d+) (\S+)", "   ".join(t.text or "" for t in shapes(picture, "key")))
    assert sorted(numbers) == sorted(number for number, _ in listed)
    named = {*texts, *(name for _, name in listed)}
    assert numbers
    assert named == {mark.name for mark in crowd} | {"large"}


def test_the_legend_has_only_what_is_drawn() -> None:
    labels = {t.text for t in shapes(svg_text(pareto_picture(pareto())), "label")}
    assert {"published, on the front", "published", "found by the solver"} <= labels
    published = tuple(mark for mark in MARKS if not mark.is_solved)
    labels = {t.text for t in shapes(svg_text(pareto_picture(pareto(published))), "label")}
    assert "found by the solver" not in labels


def test_schedules_in_the_same_place_are_named_together() -> None:
    picture = svg_text(pareto_picture(pareto((Mark("x", 5, 5), Mark("y", 5, 5), Mark("z", 9, 2)))))
    assert "x = y" in {t.text for t in shapes(picture, "name-best")}


def test_crossings_are_the_boxes_that_a_line_meets() -> None:
    rng = random.Random(3)
    for count in (0, 1, 7, 40):
        boxes = []
        for _ in range(count):
            left, top = rng.uniform(0, 90), rng.uniform(0, 90)
            boxes.append(Box(left, top, left + rng.uniform(0, 20), top + rng.uniform(0, 20)))
        line = [Box.around((step, step), 1.5) for step in range(0, 60, 4)]
        one_by_one = sum(any(piece.meets(box) for piece in line) for box in boxes)
        assert crossings(as_table(line), as_table(boxes)) == one_by_one
        assert crossings(as_table([]), as_table(boxes)) == 0


def test_a_plot_of_fifty_names_takes_little_time() -> None:
    rng = random.Random(5)
    marks = tuple(
        Mark(f"family-{i}", rng.randrange(100, 200), rng.randrange(300, 900)) for i in range(50)
    )
    began_s = time.thread_time()
    pareto_picture(pareto(marks))
    assert time.thread_time() - began_s < 8  # box by box it takes 20 to 50 s
