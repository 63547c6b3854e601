"""The picture of schedules: its shapes against the simulation and the memory model."""

import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from PIL import Image

from synth.errors import SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profiles import find
from synth.report.chart.chart import Chart
from synth.report.chart.excerpt import Excerpt
from synth.report.chart.palette import COLOURS, is_dark, lightened
from synth.report.picture.columns import busy_shares, highest_levels, outlines
from synth.report.picture.formats import PIXELS, png_bytes
from synth.report.picture.labels import text_width
from synth.report.picture.schedule import LEFT, RIGHT, WIDTH, schedule_picture
from synth.report.picture.svg import svg_text
from synth.schedule.files.plan_file import Plan
from synth.schedule.rank_memory import peak_bytes, static_bytes
from tests.synth.report.test_html import lab, linear, make_plan

SVG = "{http://www.w3.org/2000/svg}"


def chart_of(
    name: str, num_micro_batches: int = 8, caps_bytes: tuple[int, ...] | None = None
) -> Chart:
    plan = make_plan(name, num_micro_batches).replace(caps_bytes=caps_bytes)
    return Chart.planned(name, plan, plan.check()[1])


def drawn(*charts: Chart, excerpt: Excerpt | None = None, memory: bool = True) -> ET.Element:
    return ET.fromstring(svg_text(schedule_picture("a title", charts, excerpt, memory=memory)))


def ops_of(root: ET.Element) -> dict[str, tuple[float, float]]:
    """Left and right end of each op's rectangle, by its token."""
    found = {}
    for rectangle in root.iter(f"{SVG}rect"):
        tip = rectangle.find(f"{SVG}title")
        if tip is not None and re.match(r"(F|B|W|BW|R|STEP)\d", tip.text or ""):
            left, width = (float(rectangle.get(key) or 0) for key in ("x", "width"))
            found[(tip.text or "").split(":")[0]] = (left, left + width)
    return found


def texts_of(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "chimera", "pipeoffload:half"])
def test_every_op_is_a_rectangle_at_its_simulated_times(name: str) -> None:
    chart = chart_of(name)
    timed = chart.timed
    pixels_per_us = (WIDTH - RIGHT - LEFT) / max(timed.end_us[: timed.lowered.first_node[-1]])
    ops = ops_of(drawn(chart))
    every = [op for program in timed.lowered.ops for op in program]
    expected = {
        str(op): (start_us, end_us)
        for op, start_us, end_us in zip(every, timed.start_us, timed.end_us, strict=False)
        if end_us > start_us and op.kind in COLOURS
    }
    assert set(ops) == set(expected)
    for token, (start_us, end_us) in expected.items():
        assert ops[token] == pytest.approx(
            (LEFT + pixels_per_us * start_us, LEFT + pixels_per_us * end_us), abs=0.02
        )


def test_an_excerpt_has_its_ranks_and_cuts_ops_at_its_ends() -> None:
    chart = chart_of("1f1b")
    timed = chart.timed
    start_us, end_us = 100_000, 400_000
    ops = ops_of(drawn(chart, excerpt=Excerpt(start_us, end_us, (2,))))
    first = timed.lowered.first_node[2]
    pixels_per_us = (WIDTH - RIGHT - LEFT) / (end_us - start_us)
    for node, op in enumerate(timed.lowered.ops[2], first):
        ends = [min(max(t, start_us), end_us) for t in (timed.start_us[node], timed.end_us[node])]
        if ends[0] == ends[1]:
            assert str(op) not in ops
        else:
            places = tuple(LEFT + pixels_per_us * (at - start_us) for at in ends)
            assert ops.pop(str(op)) == pytest.approx(places, abs=0.02)
    assert ops == {}


@pytest.mark.parametrize(
    ("excerpt", "message"),
    [
        (Excerpt(10**9), "nothing lies between"),
        (Excerpt(500, 500), "nothing lies between"),
        (Excerpt(ranks=(4,)), "ranks 0 to 3"),
    ],
)
def test_an_empty_excerpt_is_refused(excerpt: Excerpt, message: str) -> None:
    with pytest.raises(SynthError, match=message):
        drawn(chart_of("1f1b"), excerpt=excerpt)


def test_memory_rises_to_the_peak_of_its_rank_and_stays_below_the_limit() -> None:
    caps = (40_000_000_000,) * 4
    chart = chart_of("zb-v", caps_bytes=caps)
    lowered = chart.timed.lowered
    root = drawn(chart)
    areas = [e for e in root.iter(f"{SVG}polygon") if e.get("class") == "alive"]
    limits = [e for e in root.iter(f"{SVG}polyline") if e.get("class") == "limit"][1:]
    static = [e for e in root.iter(f"{SVG}rect") if e.get("class") == "static"][1:]
    assert len(areas) == len(limits) == len(static) == 4
    for rank, (area, limit, base) in enumerate(zip(areas, limits, static, strict=True)):
        heights = [float(pair.split(",")[1]) for pair in (area.get("points") or "").split()]
        bottom = float(base.get("y") or 0) + float(base.get("height") or 0)
        cap_y = float((limit.get("points") or "").split()[0].split(",")[1])
        bytes_per_pixel = caps[rank] / (bottom - cap_y)
        peak = (bottom - min(heights)) * bytes_per_pixel
        assert peak == pytest.approx(peak_bytes(lowered)[rank], abs=0.02 * bytes_per_pixel)
        kept = float(base.get("height") or 0) * bytes_per_pixel
        assert kept == pytest.approx(static_bytes(lowered, rank), abs=0.02 * bytes_per_pixel)
    assert not [e for e in drawn(chart, memory=False).iter() if e.get("class") == "alive"]


def test_numbers_are_in_their_ops_and_no_text_covers_another() -> None:
    long = replace(chart_of("zb-v"), reason="a reason of some length that is told; " * 8)
    root = drawn(long, chart_of("1f1b"))
    assert sum("a reason of some" in text for text in texts_of(root)) >= 2
    boxes = []
    for text in root.iter(f"{SVG}text"):
        style, words = text.get("class") or "", text.text or ""
        size = {"title": 16.0, "name": 13.0, "peak": 10.0}.get(style, 12.0)
        size = 11.0 if style.startswith("on-") else size
        width = text_width(words, size)
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor") or "start"]
        left = float(text.get("x") or 0) - share * width
        boxes.append((left, float(text.get("y") or 0), left + width, words))
        assert left >= 0 and left + width <= WIDTH
    for (a, y, b, one), (c, v, d, other) in combinations(boxes, 2):
        assert b <= c or d <= a or abs(y - v) >= 10, (one, other)


def test_too_many_ops_are_drawn_as_shares_that_add_up_to_their_work() -> None:
    chart = chart_of("1f1b", 400)
    timed = chart.timed
    root = drawn(chart, memory=False)
    assert ops_of(root) == {}
    assert "(heights: shares of time)" in texts_of(root)
    first, end = timed.lowered.first_node[:2]
    kinds = np.array([op.kind == "F" for op in timed.lowered.ops[0]])
    work_us = (timed.end_us[first:end] - timed.start_us[first:end])[kinds].sum()
    area = next(e for e in root.iter(f"{SVG}polygon") if e.get("class") == "F-0")
    x, y = np.array([p.split(",") for p in (area.get("points") or "").split()], dtype=float).T
    pixels = 0.5 * abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))
    whole = (WIDTH - RIGHT - LEFT) * 22.0
    assert pixels / whole == pytest.approx(work_us / timed.end_us.max(), rel=0.01)


def test_the_png_has_the_colours_of_its_ops() -> None:
    chart = chart_of("zb-h1")
    picture = schedule_picture("a title", [chart])
    image = Image.open(io.BytesIO(png_bytes(picture))).convert("RGB")
    assert image.size == (PIXELS * picture.width, PIXELS * picture.height)
    left, right = ops_of(ET.fromstring(svg_text(picture)))["F0.0"]
    seen = {image.getpixel((round(PIXELS * (left + 3)), y)) for y in range(image.height)}
    expected = tuple(int(COLOURS[OpKind.F][i : i + 2], 16) for i in (1, 3, 5))
    assert expected in seen and right > left


def test_a_lighter_shade_is_as_the_page_mixes_it_and_ink_is_read_on_it() -> None:
    for colour in COLOURS.values():
        mixed = linear(colour) * 0.7 + 0.3
        assert np.allclose(lab(linear(lightened(colour, 1.0))), lab(mixed), atol=0.6)
        assert lightened(colour, 0.0) == colour
    assert [kind for kind, colour in COLOURS.items() if is_dark(colour)] == [OpKind.BW]


def many_ranks(num_ranks: int, num_micro_batches: int) -> Chart:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    layers = tuple(profile.layers[5].replace(name=f"b{i}") for i in range(num_ranks))
    schedule = generate("zb-h1", num_ranks, num_micro_batches)
    plan = Plan.of(profile.replace(layers=layers), [1] * num_ranks, schedule)
    return Chart.planned("zb-h1", plan, plan.check()[1])


def test_a_picture_of_many_ops_is_one_page_and_a_small_file() -> None:
    picture = schedule_picture("a title", [many_ranks(64, 128)])
    assert picture.height <= 1200
    text = svg_text(picture)
    assert len(text) < 1_000_000
    names = [t for t in ET.fromstring(text).iter(f"{SVG}text") if t.get("class") == "rank"]
    tops = [float(name.get("y") or 0) for name in names]
    assert len(tops) > 20 and min(b - a for a, b in pairwise(tops)) >= 14


def test_few_ranks_have_rows_of_full_height_and_many_have_no_numbers() -> None:
    few, many = schedule_picture("a title", [chart_of("1f1b")]), many_ranks(48, 4)
    bars = [shape for shape in few.shapes if getattr(shape, "style", "") == "idle"]
    assert [getattr(bar, "height", 0) for bar in bars[1:]] == [22.0] * 4
    words = texts_of(drawn(chart_of("1f1b")))
    assert "(numbers: micro-batches)" in words and "3" in words
    words = texts_of(drawn(many))
    assert "(numbers: micro-batches)" not in words and "3" not in words


def test_ops_as_thin_as_columns_make_no_stripes() -> None:
    # Ops of F and B in turns, which last 0.51 columns each, so that columns beat with them.
    ends_us = (510 * np.arange(1, 4001)).astype(np.int64)
    starts_us = ends_us - 510
    edges_us = np.linspace(0, ends_us[-1], round(ends_us[-1] / 1000) + 1)
    shares = busy_shares(starts_us[::2], ends_us[::2], edges_us)
    assert abs(shares[4:-4] - 0.5).max() < 0.02
    runs = outlines(22 * shares[np.newaxis], edges_us, 0.0)[0]
    assert len(runs) < 200  # of 4,000 corners


def test_a_column_has_the_highest_level_within_it() -> None:
    rng = np.random.default_rng(5)
    ends_us = rng.integers(1, 40, 60).cumsum()
    levels = rng.integers(0, 1000, 60)
    edges_us = np.linspace(0, ends_us[-1], 23)
    by_us = np.repeat(levels, np.diff(np.concatenate([[0], ends_us])))
    expected = [
        by_us[int(np.floor(a)) : int(np.ceil(b))].max() for a, b in pairwise(edges_us.tolist())
    ]
    assert highest_levels(ends_us, levels, edges_us).tolist() == expected
