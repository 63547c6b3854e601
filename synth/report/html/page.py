"""One HTML file with charts of schedules; it opens from disk and loads nothing."""

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from synth.op_kinds import OpKind
from synth.report.chart.chart import Chart
from synth.report.chart.palette import COLOURS, DARK_COLOURS, LIGHTEST, stage_shades
from synth.report.chart.timed import NOTHING, TimedSchedule
from synth.report.text.drawing import LOOKS
from synth.schedule.lowering.effects import VALUE_CODES
from synth.schedule.ops import ValueKind
from synth.schedule.rank_memory import peak_bytes, static_bytes
from synth.version import __version__

Numbers = npt.NDArray[np.int64]

# The beginning of each page; `synth.records.overwrite_guard` knows a page by it.
HEAD = '<!doctype html>\n<html lang="en" data-made-by="synth">\n'

# Parts of the page, as package data.
_SKELETON, _VIEWER, STYLE = "page.html", "viewer.html", "page.css"
VIEWER_SCRIPTS = (
    "data.js",
    "raster.js",
    "describe.js",
    "surroundings.js",
    "overlays.js",
    "viewer.js",
    "controls.js",
)
_SCRIPTS = (*VIEWER_SCRIPTS, "menu.js", "open.js")
_MENU = '<div id="plot"></div>\n<table id="choice"></table>'

# The names of transferred values in sentences, and what numbers those of a stage.
_VALUES = {
    ValueKind.ACT: ("activation", "micro-batch"),
    ValueKind.GRAD: ("output gradient", "micro-batch"),
    ValueKind.SAVED: ("saved activations", "micro-batch"),
    ValueKind.REPLAY_INPUT: ("input of R", "micro-batch"),
    ValueKind.MOVED_OUT: ("saved activations out", "micro-batch"),
    ValueKind.MOVED_BACK: ("saved activations back", "micro-batch"),
    ValueKind.WEIGHTS: ("weights", "visit"),
    ValueKind.GRAD_SUM: ("gradient sum", "micro-batches up to"),
    ValueKind.GRAD_ACC: ("accumulated gradient", "sum"),
}

# Arrays of which the differences are packed.
_DELTAS = frozenset({"start", "path", "waiting", "running"})


@dataclass(frozen=True)
class ScheduleMenu:
    """The schedules of a page of which some are shown at a time, as table and plot.

    Attributes:
        rows: its cells, in the order of the charts; further rows have no chart.
        names: the names that the dots of the plot have for the charts.
        svg: the plot; see `Picture.circle`.
        shown: the places of the charts that are shown first.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    svg: str
    shown: tuple[int, ...]


def page(
    title: str, charts: Sequence[Chart], *, by_rank: bool = False, menu: ScheduleMenu | None = None
) -> str:
    """Render charts, one above the other, on one time axis.

    Args:
        charts: from the top.
        by_rank: the rows of a rank stand under each other, instead of those of a schedule.
        menu: to choose from the charts; None: all are shown.
    """
    data = {
        **viewer_data(by_rank=by_rank),
        "menu": None if menu is None else asdict(menu),
        "charts": [chart_data(chart) for chart in charts],
    }
    parts = {
        "title": escape(title),
        "version": escape(__version__),
        "style": part(STYLE),
        "viewer": viewer_html(title, _MENU),
        "data": json.dumps(data).replace("<", "\\u003c"),
        "scripts": "\n".join(map(part, _SCRIPTS)),
    }
    return HEAD + filled(part(_SKELETON), parts)


def part(name: str) -> str:
    """Return the text of a file of the page."""
    return files(__package__).joinpath(name).read_text("utf-8")


def filled(skeleton: str, parts: Mapping[str, str]) -> str:
    """Return a text with `@name@` replaced by the part of that name."""
    return re.sub("@([a-z]+)@", lambda match: parts[match[1]], skeleton)


def viewer_html(title: str, menu: str, below: str = "") -> str:
    """Return the elements that the viewer's scripts draw in.

    Args:
        title: the heading, as plain text.
        menu: the elements of the panel on the left, which is hidden at first.
        below: the elements under the charts.
    """
    return filled(part(_VIEWER), {"title": escape(title), "menu": menu, "below": below})


def viewer_data(*, by_rank: bool = False) -> dict[str, Any]:
    """Return what the viewer needs besides charts: kinds of ops and values, and shades, as JSON."""
    return {
        "byRank": by_rank,
        "lightest": LIGHTEST,
        "kinds": [_kind(kind) for kind in OpKind],
        "values": [_VALUES.get(kind, (str(kind), "")) for kind in VALUE_CODES],
    }


def _kind(kind: OpKind) -> dict[str, Any]:
    look = LOOKS.get(kind)
    meaning = kind.name.lower().replace("_", " ") if look is None else look.meaning
    return {
        "name": kind.value,
        "meaning": meaning.removeprefix(f"{kind.value}, "),
        "colour": COLOURS.get(kind),
        "darkColour": DARK_COLOURS.get(kind),
    }


def chart_data(chart: Chart) -> dict[str, Any]:
    """Return a chart as JSON; its arrays are by node, memory levels by slot."""
    timed, lowered = chart.timed, chart.timed.lowered
    packed = pack(_arrays(timed), _DELTAS)
    return {
        "title": chart.title,
        "note": chart.note,
        "reason": chart.reason,
        "explanation": chart.explanation,
        "isMeasured": timed.is_measured,
        "firstNode": lowered.first_node,
        "numMicroBatches": lowered.schedule.num_micro_batches,
        "numTransfers": len(lowered.transfer_table),
        "stages": chart.stages,
        "shades": stage_shades(lowered),
        "staticBytes": [static_bytes(lowered, rank) for rank in range(lowered.num_ranks)],
        "peakBytes": peak_bytes(lowered),
        "capBytes": chart.caps_bytes,
        "collectives": [[str(c), c.kind, c.ranks, c.num_bytes] for c in lowered.collectives],
        **packed._asdict(),
    }


def _arrays(timed: TimedSchedule) -> dict[str, Numbers]:
    """Return all arrays of a chart: of ops, of all nodes, of transfers, and of memory levels."""
    lowered = timed.lowered
    ops, moved = lowered.arrays, lowered.transfer_table
    node = np.arange(len(timed.start_us))
    # A value's number is the index of its kind times the number of cells, plus its cell.
    kind, cell = np.divmod(moved.value, lowered.table.num_cells)
    copy, microbatch = np.divmod(cell, lowered.schedule.num_micro_batches)
    replica, stage = np.divmod(copy, ops.num_stages)
    levels = timed.levels
    return {
        "kind": ops.kind,
        "stage": ops.stage,
        "microbatch": ops.microbatch,
        "replica": ops.replica,
        "start": timed.start_us,
        "duration": timed.end_us - timed.start_us,
        # The distance to the node that was awaited; 0: none.
        "back": np.where(timed.awaited == NOTHING, 0, node - timed.awaited),
        "path": timed.path,
        "inexact": timed.inexact.nonzero()[0],
        "movedKind": kind,
        "movedStage": stage,
        "movedMicrobatch": microbatch,
        "movedReplica": replica,
        "movedFrom": moved.source,
        "movedTo": moved.target,
        "movedBytes": moved.num_bytes,
        "waiting": levels.waiting,
        "running": levels.running,
    }


# Typed arrays of browsers, narrowest first, with numpy's names; little-endian as browsers are.
_TYPES = {"Uint8Array": "<u1", "Uint16Array": "<u2", "Int32Array": "<i4", "Float64Array": "<f8"}

# Typed arrays begin at multiples of their width.
_ALIGNED_BYTES = 8


class PackedArrays(NamedTuple):
    """Arrays as text: `layout` has [type, first byte, length, is delta] by name; `data` the bytes.

    `data` is base64 of a zlib stream. Of a delta array the file has the first value and the
    differences, which deflate better.
    """

    layout: dict[str, list[Any]]
    data: str


def pack(arrays: Mapping[str, Numbers], delta: frozenset[str] = frozenset()) -> PackedArrays:
    """Pack arrays of whole numbers below 2⁵³ in magnitude; those in `delta` as differences."""
    layout: dict[str, list[Any]] = {}
    parts: list[bytes] = []
    begin = 0
    for name, values in arrays.items():
        kept = np.diff(values, prepend=0) if name in delta else values
        type_name = _narrowest(values, kept)
        raw = kept.astype(_TYPES[type_name]).tobytes()
        layout[name] = [type_name, begin, len(values), name in delta]
        parts += [raw, bytes(-len(raw) % _ALIGNED_BYTES)]
        begin += len(raw) + len(parts[-1])
    deflated = zlib.compress(b"".join(parts), 6)
    return PackedArrays(layout, base64.b64encode(deflated).decode("ascii"))


def _narrowest(*arrays: Numbers) -> str:
    """Return the narrowest type that holds all values of some arrays."""
    low = min((int(a.min(initial=0)) for a in arrays), default=0)
    high = max((int(a.max(initial=0)) for a in arrays), default=0)
    if low >= 0 and high < 2**16:
        return "Uint8Array" if high < 2**8 else "Uint16Array"
    return "Int32Array" if max(-low, high) < 2**31 else "Float64Array"
