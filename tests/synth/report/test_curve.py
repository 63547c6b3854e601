"""The picture of time against memory: its staircases, its scales, in a terminal and as SVG."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from synth.report.picture.curve import curve_picture
from synth.report.picture.scale import Scale
from synth.report.picture.svg import svg_text
from synth.report.text.curve import Curve, Dot, Point, plot
from tests.synth.report.svg_shapes import middle, points_of, shapes

# Nothing fits below 10. Found: 90 from 10 on, 50 from 18, 40 from 32. Proven: 80 up to 10, 45 up
# to 20, 40 for ever.
POINTS = (Point(10, 90, 80, 10), Point(20, 50, 45, 18), Point(40, 40, 40, 32))
FAMILIES = (Dot("slow", 95, 35), Dot("twin", 40, 32), Dot("pair", 40, 32))


def curve(points: tuple[Point, ...] = POINTS, families: tuple[Dot, ...] = FAMILIES) -> Curve:
    return Curve("a curve", "makespan", points, families, 10)


def test_a_schedule_serves_from_its_peak_on_and_a_bound_up_to_its_cap() -> None:
    found = {9: None, 10: 90, 17: 90, 18: 50, 31: 50, 32: 40, 99: 40}
    proven = {9: None, 10: 80, 11: 45, 20: 45, 21: 40, 40: 40, 41: None}
    assert {cap: curve().found_at(cap) for cap in found} == found
    assert {cap: curve().proven_at(cap) for cap in proven} == proven


def test_a_published_schedule_that_is_better_than_the_points_is_part_of_the_line() -> None:
    better = curve(families=(Dot("better", 60, 12),))
    assert [better.found_at(cap) for cap in (11, 12, 18)] == [90, 60, 50]


def test_published_schedules_in_one_place_are_one_dot_with_both_names() -> None:
    assert [dot.name for dot in curve().dots] == ["slow", "twin = pair"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_plot_is_as_wide_as_asked_and_steps_down(width: int) -> None:
    lines = plot(curve(), width, 12).split("\n")
    body, legend = lines[:12], lines[-1]
    assert all(len(line) <= width for line in lines[:13])
    rows = [row for row, line in enumerate(body) if "─" in line.split("│", 1)[-1]]
    assert len(rows) >= 3
    first = [body[row].index("─") for row in rows]
    assert first == sorted(first)
    assert "a twin = pair" in legend and "b slow" in legend and "lower bound" in legend


def test_ticks_can_be_told_apart_where_everything_needs_the_same_memory() -> None:
    size = 57_230_585_856
    lonely = Curve("one", "makespan", (Point(size, 90, 90, size),), (), size)
    labels = plot(lonely, 100, 12).split("\n")[-2].split(" GB")[:-1]
    assert len(labels) > 2
    assert len(set(labels)) == len(labels)


def test_the_svg_has_every_point_on_the_line_and_every_name_once() -> None:
    picture = svg_text(curve_picture(curve()))
    line = points_of(shapes(picture, "found")[0])
    found = shapes(picture, "point")[:-1]  # without the legend's
    assert len(found) == len(POINTS)
    for point in found:
        assert min(math.dist(middle(point), corner) for corner in line) < 0.02
    assert [t.text for t in shapes(picture, "name")] == ["twin = pair", "slow"]
    assert "memory limit of every rank" in picture and "makespan" in picture


def test_the_svgs_lines_only_go_right_and_down_and_the_bound_is_never_above() -> None:
    picture = svg_text(curve_picture(curve()))
    found, proven = (points_of(shapes(picture, style)[0]) for style in ("found", "proven"))
    for line in (found, proven):
        assert line == sorted(line, key=lambda at: at[0])
        assert [y for _, y in line] == sorted(y for _, y in line)  # y grows downwards
    for x, y in found:
        below = [b for a, b in proven if a <= x]
        assert not below or max(below) >= y - 0.01


def test_everything_is_inside_the_picture_and_names_do_not_cover_each_other() -> None:
    families = tuple(Dot(f"family-{i}", 40 + i, 32) for i in range(5))
    picture = svg_text(curve_picture(curve(families=families)))
    root = ET.fromstring(picture)
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)
    for element in root.iter():
        for x, y in points_of(element):
            assert 0 <= x <= width and 0 <= y <= height
    boxes = []
    for text in shapes(picture, "name"):
        x, y, length = float(text.get("x") or 0), float(text.get("y") or 0), len(text.text or "")
        assert x >= 0 and x + 6.6 * length <= width
        boxes.append((x, y, 6.6 * length))
    for (x, y, extent), (u, v, other) in combinations(boxes, 2):
        assert x + extent < u or u + other < x or abs(y - v) >= 10


@pytest.mark.parametrize(
    "points",
    [
        (Point(10, 90, 0, 10),),
        (Point(10, 90, 90, 10),),
        (Point(10**10, 10**9, 10, 10**10), Point(3 * 10**10, 10**6, 10, 2 * 10**10)),
    ],
    ids=["no bound", "one point", "far apart"],
)
def test_any_curve_is_drawn(points: tuple[Point, ...]) -> None:
    assert len(ET.fromstring(svg_text(curve_picture(curve(points, ())))))
    assert plot(curve(points, ()), 60)


def test_markup_in_a_title_is_escaped() -> None:
    picture = svg_text(curve_picture(Curve("<b> & co", "period", POINTS, (), 10)))
    assert [t.text for t in shapes(picture, "title")] == ["<b> & co"]


def test_a_scale_is_logarithmic_where_its_ends_lie_far_apart() -> None:
    near, far = Scale.fitting(10, 30, 0, 100), Scale.fitting(1, 100, 0, 100)
    assert (near.log, far.log) == (False, True)
    assert [near.at(v) for v in (10, 20, 30)] == [0, 50, 100]
    assert math.isclose(far.at(10), 50)


def test_a_scale_finds_the_value_of_a_place() -> None:
    for scale in (Scale.fitting(10, 30, 5, 100), Scale.fitting(1, 100, 80, 0)):
        for value in (10, 17.5, 29):
            assert math.isclose(scale.value(scale.at(value)), value)


def test_two_points_far_away_leave_most_of_the_axis_to_the_others() -> None:
    near = tuple(Point(10 + i, 90 - i, 80, 10 + i) for i in range(11))
    far = curve((*near, Point(80, 60, 50, 80), Point(90, 50, 50, 90)), ())
    x = [middle(e)[0] for e in shapes(svg_text(curve_picture(far)), "point")[:-1]]
    assert (x[10] - x[0]) / (x[12] - x[0]) > 0.3  # 0.125 on a linear axis
    lines = plot(far, 80, 12).split("\n")
    assert len(re.findall(r"\d+ B", lines[-2])) >= 3


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0.13, 0.29, 5, [0.15, 0.2, 0.25]),
        (17, 66, 6, [20, 30, 40, 50, 60]),
        (0.9, 9.5, 6, [1, 2, 5]),
        (0.9, 950, 6, [1, 10, 100]),
    ],
)
def test_ticks_are_round(low: float, high: float, most: int, expected: list[float]) -> None:
    ticks = Scale.fitting(low, high, 0, 1).ticks(most)
    assert [round(tick, 9) for tick in ticks] == expected
