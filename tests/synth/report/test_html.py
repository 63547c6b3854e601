"""The page of charts: its data against the simulation, a trace and the memory model."""

import base64
import json
import random
import re
import zlib
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.links import Link
from synth.profiles import find
from synth.records.overwrite_guard import PAGE
from synth.report.chart.chart import Chart
from synth.report.chart.palette import COLOURS, DARK_COLOURS, LIGHTEST, contrast
from synth.report.chart.timed import TimedSchedule
from synth.report.explain.overlay import overlay, save_simulation
from synth.report.html.page import STYLE, pack, page, part
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Action, Lowered, lower
from synth.schedule.measured.execution_trace import planned_execution
from synth.schedule.ops import Op
from synth.schedule.rank_memory import memory_usage, peak_bytes, slot_levels, static_bytes
from tests.synth.naive import random_schedule
from tests.synth.odd_problems import odd_costs

FAMILIES = ["1f1b", "zb-v", "chimera", "pipeoffload:half", "weipipe", "zero3"]
DTYPES = {"Uint8Array": "<u1", "Uint16Array": "<u2", "Int32Array": "<i4", "Float64Array": "<f8"}


class Shown(NamedTuple):
    """A chart as the page has it: facts, and arrays by name."""

    facts: dict[str, Any]
    arrays: dict[str, list[int]]


def make_plan(name: str, num_micro_batches: int = 8, layer: str | None = None) -> Plan:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    host = Link(latency_us=20, bandwidth_bytes_per_s=25e9)
    profile = profile.replace(links=profile.links.replace(host=host))
    num_stages = family_placement(name, 4).num_stages
    sizes = [24 // num_stages] * num_stages
    schedule = generate(name, 4, num_micro_batches)
    plan = Plan.of(profile, sizes, schedule)
    return plan if layer is None else plan.replace(layers=(layer, *plan.layers[1:]))


def shown(text: str) -> list[Shown]:
    """Read a page as a browser does."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    charts = json.loads(found[1])["charts"]
    return [Shown(chart, unpacked(chart["layout"], chart["data"])) for chart in charts]


def unpacked(layout: dict[str, list[Any]], data: str) -> dict[str, list[int]]:
    raw = zlib.decompress(base64.b64decode(data))
    arrays = {}
    for name, (kind, begin, length, is_delta) in layout.items():
        dtype = np.dtype(DTYPES[kind])
        assert begin % 8 == 0
        values = np.frombuffer(raw, dtype, length, begin)
        arrays[name] = (values.cumsum() if is_delta else values).tolist()
    return arrays


def test_the_page_has_the_reason_of_a_chart_and_none_where_it_is_not_told() -> None:
    plan = make_plan("1f1b")
    timeline = plan.check()[1]
    charts = [
        Chart.planned("a", plan, timeline, "it </script> binds."),
        Chart.planned("b", plan, timeline),
    ]
    assert [facts["reason"] for facts, _ in shown(page("two", charts))] == [
        "it </script> binds.",
        "",
    ]


def page_of(plan: Plan) -> str:
    return page("a plan", [Chart.planned(plan.name, plan, plan.check()[1])])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_page_has_every_op_and_transfer_at_its_simulated_time(name: str) -> None:
    plan = make_plan(name)
    lowered, timeline = plan.check()
    [(facts, arrays)] = shown(page_of(plan))
    assert arrays["start"] == timeline.start_us
    assert arrays["duration"] == lowered.durations_us
    assert facts["firstNode"] == lowered.first_node
    ops = [op for program in lowered.ops for op in program]
    fields = (arrays[name] for name in ("kind", "stage", "microbatch", "replica"))
    found = [Op(list(OpKind)[kind], *rest) for kind, *rest in zip(*fields, strict=True)]
    assert found == ops
    moved = zip(
        *(arrays[f"moved{part}"] for part in ("Stage", "Microbatch", "From", "To", "Bytes")),
        strict=True,
    )
    assert list(moved) == [
        (t.value.stage, t.value.microbatch, t.source, t.target, t.num_bytes)
        for t in lowered.transfers
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_planned_node_starts_when_the_one_that_it_waited_for_ends(name: str) -> None:
    plan = make_plan(name)
    lowered, timeline = plan.check()
    [(_, arrays)] = shown(page_of(plan))
    for node, back in enumerate(arrays["back"]):
        if back:
            assert node - back in lowered.predecessors[node]
            assert timeline.end_us[node - back] == timeline.start_us[node]
        else:
            assert timeline.start_us[node] == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_the_critical_path_has_no_gap_and_takes_the_makespan(name: str) -> None:
    plan = make_plan(name)
    _, timeline = plan.check()
    [(_, arrays)] = shown(page_of(plan))
    path = arrays["path"]
    assert timeline.start_us[path[0]] == 0
    assert timeline.end_us[path[-1]] == timeline.makespan_us
    for before, node in pairwise(path):
        assert timeline.end_us[before] == timeline.start_us[node]


def levels_of(lowered: Lowered, rank: int) -> list[tuple[int, int | None]]:
    """The levels before and during each op, added up instruction by instruction."""
    usage = memory_usage(lowered, rank)
    found: list[tuple[int, int | None]] = []
    level = waiting = static_bytes(lowered, rank)
    for instruction, highest, after in zip(
        lowered.programs[rank], usage.highest, usage.after, strict=True
    ):
        if instruction.action == Action.COMPUTE:
            rise = lowered.effects.rise_bytes(instruction.compute)
            found.append((waiting, level + rise))
            waiting = after
        else:
            waiting = max(waiting, highest)
        level = after
    return [*found, (waiting, None)]


def test_memory_levels_are_those_of_the_instructions() -> None:
    rng = random.Random(5)
    for _ in range(40):
        schedule = random_schedule(rng)
        costs = odd_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
        lowered = lower(schedule, costs)
        waiting, running = slot_levels(lowered)
        for rank in range(lowered.num_ranks):
            slots = range(lowered.first_node[rank] + rank, lowered.first_node[rank + 1] + rank + 1)
            for slot, (before, during) in zip(slots, levels_of(lowered, rank), strict=True):
                assert waiting[slot] == before
                assert during is None or running[slot] == during


@pytest.mark.parametrize("name", FAMILIES)
def test_the_highest_level_of_a_rank_is_its_peak(name: str) -> None:
    plan = make_plan(name)
    lowered, _ = plan.check()
    [(facts, arrays)] = shown(page_of(plan))
    first = lowered.first_node
    peaks = [
        max(arrays["waiting"][a + rank : b + rank + 1] + arrays["running"][a + rank : b + rank])
        for rank, (a, b) in enumerate(pairwise(first))
    ]
    assert tuple(peaks) == peak_bytes(lowered) == tuple(facts["peakBytes"])


def test_a_measured_chart_has_the_times_of_the_trace(tmp_path: Path) -> None:
    plan = make_plan("1f1b")
    lowered, timeline = plan.check()
    save_simulation(plan, timeline, tmp_path / "trace.json")
    overlaid = overlay(plan, lowered, tmp_path / "trace.json")
    assert overlaid.measured is not None
    # The trace says of each op that it took 1 ms longer.
    later = [
        [span._replace(start_us=span.start_us + i, end_us=span.end_us + i) for span in spans]
        for i, spans in enumerate(overlaid.measured.ops)
    ]
    moved = overlaid.measured._replace(ops=later)
    timed = TimedSchedule.of_trace(lowered, moved)
    spans = [span for rank in later for span in rank]
    assert timed.start_us[: len(spans)].tolist() == [span.start_us for span in spans]
    assert timed.end_us[: len(spans)].tolist() == [span.end_us for span in spans]
    charts = shown(page("run", [Chart.measured("measured", plan, overlaid)]))
    assert charts[0].facts["isMeasured"]


def test_an_op_that_a_trace_lacks_takes_no_time() -> None:
    plan = make_plan("1f1b")
    lowered, timeline = plan.check()
    execution = planned_execution(timeline)
    lacking = execution._replace(ops=[spans[:3] + spans[4:] for spans in execution.ops])
    timed = TimedSchedule.of_trace(lowered, lacking)
    for first in lowered.first_node[:-1]:
        assert timed.start_us[first + 3] == timed.end_us[first + 3] == timed.end_us[first + 2]


def test_overlapping_iterations_have_no_critical_path() -> None:
    plan = make_plan("1f1b")
    lowered, timeline = plan.check()
    timed = TimedSchedule.of_trace(lowered, planned_execution(timeline), late=True)
    assert not len(timed.path)


def test_a_page_names_nothing_outside_of_it_and_no_text_ends_its_data() -> None:
    text = page_of(make_plan("1f1b", layer="</script><b>@style@"))
    assert len(shown(text)) == 1
    assert "</script><b>" not in text
    assert "</script><b>@style@" in shown(text)[0].facts["stages"][0]
    assert not re.search(r"https?:|\bsrc=|@import|url\(", text)


def test_a_stage_has_the_names_of_its_layers_and_those_that_are_recomputed() -> None:
    plan = make_plan("1f1b").replace(recomputed_layers=(0, 1, 7))
    [(facts, _)] = shown(page("x", [Chart.planned("x", plan, plan.check()[1])]))
    assert facts["stages"][0] == f"layers 0–5 ({plan.layers[0]} … {plan.layers[5]}; recomputed 0–1)"
    assert facts["stages"][1].endswith("; recomputed 7)")
    single = plan.replace(layers=plan.layers[:4], partition=(1, 1, 1, 1), recomputed_layers=None)
    [(facts, _)] = shown(page("x", [Chart.planned("x", single, single.check()[1])]))
    assert facts["stages"][2] == f"layer 2 ({plan.layers[2]})"


def test_a_page_is_known_as_one_made_by_synth(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(make_plan("1f1b")))
    assert PAGE.is_kind_of(path)
    path.write_text("<!doctype html>\n<html>")
    assert not PAGE.is_kind_of(path)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0, 255], "Uint8Array"),
        ([0, 256], "Uint16Array"),
        ([-1, 3], "Int32Array"),
        ([0, 2**31], "Float64Array"),
        ([2**31 - 1, -(2**31) + 1], "Int32Array"),
        ([], "Uint8Array"),
    ],
)
def test_arrays_take_the_narrowest_type_and_come_back(values: list[int], kind: str) -> None:
    arrays = {"a": np.array([7]), "b": np.array(values, dtype=np.int64)}
    layout, data = pack(arrays)
    assert layout["b"][0] == kind
    assert unpacked(layout, data) == {"a": [7], "b": values}
    deltas = pack(arrays, frozenset({"b"}))
    assert unpacked(*deltas)["b"] == values


def linear(colour: str) -> Any:
    x = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)


def lab(light: Any) -> Any:
    """CIE Lab 1976 of linear sRGB, D65."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ light / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Severity 1 of each, from Machado, Oliveira and Fernandes, 2009.
VISIONS = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
    "all colours": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
}


def nearest(colours: dict[OpKind, str], vision: str) -> float:
    """The smallest distance between two kinds, further stages included."""
    seen = []
    for kind, colour in colours.items():
        light = linear(colour)
        for shade in (light, light * (1 - LIGHTEST) + LIGHTEST):
            seen.append((kind, lab(np.clip(np.array(VISIONS[vision]) @ shade, 0, 1))))
    return min(float(np.linalg.norm(a - b)) for (k, a), (o, b) in combinations(seen, 2) if k != o)


@pytest.mark.parametrize("vision", VISIONS)
def test_kinds_are_told_apart_by_every_vision(vision: str) -> None:
    assert nearest(COLOURS, vision) > 15
    assert nearest(DARK_COLOURS, vision) > 12


@pytest.mark.parametrize("paper", ["paper", "idle"])
@pytest.mark.parametrize("kind", list(DARK_COLOURS))
def test_on_dark_paper_every_kind_has_the_contrast_of_graphics(kind: OpKind, paper: str) -> None:
    dark = part(STYLE).split(':root[data-theme="dark"] {')[1].split("}")[0]
    behind = re.search(rf"--{paper}: (#[0-9a-f]{{6}})", dark)
    assert behind is not None
    assert contrast(DARK_COLOURS[kind], behind[1]) >= 3  # WCAG 2, 1.4.11
