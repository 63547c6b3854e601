"""Charts as a file for Perfetto (ui.perfetto.dev) and chrome://tracing: Chrome's trace events.

A rank is a process. It has, one under the other, the ops of each chart, the transfers that come in
over each link, and a counter of its memory. Arrows lead from the op that makes a value over its
transfer to the op that reads it. The critical path is a process of its own.

The format is that of the "Trace Event Format" document of the Chromium project. Of it are used
complete events ("ph": "X") in microseconds, which within a track must not overlap; flow events
("s", "t", "f"), each of which binds to the slice that encloses it ("bp": "e"); counters ("C"); and
metadata ("M"). Perfetto 52 and older order processes by their number of slices instead of by
`process_sort_index` (google/perfetto, pull request 3273).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from synth.costs.costs import HOST
from synth.report.chart.chart import Chart
from synth.schedule.lowering.collectives import CollectiveKind
from synth.schedule.lowering.programs import Transfer, end_name
from synth.schedule.measured.execution_trace import Communication
from synth.schedule.ops import Op
from synth.units import format_bytes

Event = dict[str, Any]

# The process of the critical path comes after those of the ranks, and is shown above them.
_CRITICAL = "critical path"

# Slices first, so that an arrow of the same moment finds the one that it binds to.
_ORDER = {"X": 0, "C": 1, "s": 2, "t": 3, "f": 4}


def perfetto_json(charts: Sequence[Chart]) -> str:
    """Render charts as trace events; their titles ("planned", "measured") name their tracks."""
    num_ranks = max((chart.timed.lowered.num_ranks for chart in charts), default=0)
    each = [_ChartEvents(chart, index, num_ranks) for index, chart in enumerate(charts)]
    slices = list(chain.from_iterable(one.slices() for one in each))
    numbers = _numbered({drawn.track for drawn, _ in slices})
    events = [_complete(drawn, about, numbers) for drawn, about in slices]
    for one in each:
        events += one.memory()
    arrows = chain.from_iterable(one.arrows() for one in each)
    for number, points in enumerate(arrows, 1):
        events += _arrow(number, points, numbers)
    events.sort(key=lambda event: (event["ts"], _ORDER[event["ph"]]))
    names = _named(numbers, num_ranks)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*names, *events]}) + "\n"


class _Track(NamedTuple):
    """A row of slices: its process, its group and its place among the rows of that, its name.

    Ops are the first group; links follow by name, each with a row for each chart.
    """

    pid: int
    group: str
    place: int
    name: str


class _Slice(NamedTuple):
    """A slice of a track, in microseconds."""

    track: _Track
    start_us: int
    end_us: int


# A slice, and the moment at which an arrow binds to it.
_Point = tuple[_Slice, int]


@dataclass(frozen=True)
class _ChartEvents:
    """The events of a chart, which is at a place among those of the file."""

    chart: Chart
    place: int
    num_ranks: int

    def slices(self) -> Iterator[tuple[_Slice, Event]]:
        """Yield the slices of ops, transfers and the critical path, with what they say."""
        for node, op, rank in self._ops():
            yield self._op_slices[node], self._about_op(node, op, rank)
        for slices in self._link_slices.values():
            for node, drawn in slices.items():
                yield drawn, self._about_transfer(node)
        track = _Track(self.num_ranks, "", self.place, self.chart.title)
        for node, drawn in self._one_after_the_other(track, self.chart.timed.path.tolist()).items():
            yield drawn, {"name": self._name(node), "cat": _CRITICAL, "args": {}}

    def memory(self) -> Iterator[Event]:
        """Yield the memory of each rank in bytes whenever it changes.

        Viewers show the name of a counter and then that of its series, which has the limit.
        """
        caps = self.chart.caps_bytes
        for rank in range(self.chart.timed.lowered.num_ranks):
            series = "bytes" if caps is None else f"of {format_bytes(caps[rank])}"
            about = {"name": f"memory, {self.chart.title}", "ph": "C", "pid": rank}
            before = None
            for start_us, end_us, level in self.chart.timed.memory_of(rank):
                if level != before:
                    yield {**about, "ts": min(start_us, end_us), "args": {series: level}}
                before = level

    def arrows(self) -> Iterator[list[_Point]]:
        """Yield for each transfer the slices from the op that makes the value to its reader."""
        lowered = self.chart.timed.lowered
        table, num_ops = lowered.transfer_table, lowered.first_node[-1]
        drawn = dict(self._op_slices)
        for slices in self._link_slices.values():
            drawn |= slices
        ends = zip(table.made.tolist(), table.read.tolist(), strict=True)
        for node, (made, read) in enumerate(ends, num_ops):
            points = _points([drawn[n] for n in (made, node, read) if n in drawn])
            if len(points) > 1:
                yield points

    @cached_property
    def _op_slices(self) -> dict[int, _Slice]:
        return {
            node: _Slice(
                _Track(rank, "", self.place, f"ops, {self.chart.title}"), *self._times_us(node)
            )
            for node, _, rank in self._ops()
        }

    @cached_property
    def _link_slices(self) -> dict[_Track, dict[int, _Slice]]:
        """The slices of transfers and sums by track and node."""
        found: defaultdict[_Track, list[int]] = defaultdict(list)
        for node, moved in self._communications.items():
            for pid, link in _links_of(moved):
                found[_Track(pid, link, self.place, f"{link}, {self.chart.title}")].append(node)
        return {
            track: self._one_after_the_other(
                track, sorted(nodes, key=lambda node: self._times_us(node)[::-1])
            )
            for track, nodes in found.items()
        }

    def _one_after_the_other(self, track: _Track, nodes: Iterable[int]) -> dict[int, _Slice]:
        """Return slices that begin after the one before has ended, as a link serves them."""
        slices: dict[int, _Slice] = {}
        free_us: int | None = None
        for node in nodes:
            start_us, end_us = self._times_us(node)
            begins_us = start_us if free_us is None else max(start_us, free_us)
            free_us = max(begins_us, end_us)
            slices[node] = _Slice(track, begins_us, free_us)
        return slices

    def _ops(self) -> Iterator[tuple[int, Op, int]]:
        """Yield node, op and rank of each op that has times."""
        timed = self.chart.timed
        for rank, ops in enumerate(timed.lowered.ops):
            for node, op in enumerate(ops, timed.lowered.first_node[rank]):
                if timed.known[node]:
                    yield node, op, rank

    @cached_property
    def _communications(self) -> dict[int, Communication]:
        """Transfers and sums by node, those that have times."""
        timed = self.chart.timed
        moved: list[Communication] = [*timed.lowered.transfers, *timed.lowered.collectives]
        each = enumerate(moved, timed.lowered.first_node[-1])
        return {node: one for node, one in each if timed.known[node]}

    @cached_property
    def _critical(self) -> set[int]:
        return set(self.chart.timed.path.tolist())

    def _times_us(self, node: int) -> tuple[int, int]:
        timed = self.chart.timed
        return int(timed.start_us[node]), int(timed.end_us[node])

    def _about_op(self, node: int, op: Op, rank: int) -> Event:
        timed = self.chart.timed
        found: Event = {"stage": op.stage, "layers": self.chart.stages[op.stage]}
        if op.replica:
            found["replica"] = op.replica
        found["micro-batch"] = op.microbatch
        found["memory while it runs, bytes"] = int(timed.levels.running[node + rank])
        if timed.is_measured:
            found["planned, us"] = timed.lowered.durations_us[node]
        if timed.awaited[node] >= 0:
            found["waited for"] = self._name(int(timed.awaited[node]))
        found[_CRITICAL] = node in self._critical
        category = f"{op.kind},{_CRITICAL}" if node in self._critical else str(op.kind)
        return {"name": str(op), "cat": category, "args": found}

    def _about_transfer(self, node: int) -> Event:
        moved = self._communications[node]
        is_exact = not self.chart.timed.inexact[node]
        found = {
            "bytes": moved.num_bytes,
            "planned, us": moved.duration_us,
            "both ends ready, us": self._times_us(node)[0],
            "end": "when its reader could continue"
            if is_exact
            else "over by then; nobody waited for it",
            _CRITICAL: node in self._critical,
        }
        return {"name": _value_name(moved), "cat": "transfer", "args": found}

    def _name(self, node: int) -> str:
        """Name an op with its rank, or a transfer with its ends."""
        lowered = self.chart.timed.lowered
        if node < lowered.first_node[-1]:
            rank = int(lowered.arrays.rank[node])
            return f"{lowered.ops[rank][node - lowered.first_node[rank]]}, rank {rank}"
        moved = self._communications[node]
        if not isinstance(moved, Transfer):
            return _value_name(moved)
        to = end_name(moved.target).removeprefix("rank ")
        return f"{moved.value}, {end_name(moved.source)} to {to}"


def _links_of(moved: Communication) -> Iterator[tuple[int, str]]:
    """Yield the ranks at which a transfer or sum is shown, and the names of its links there."""
    if not isinstance(moved, Transfer):
        for rank in moved.ranks:
            yield rank, f"sums with {', '.join(str(r) for r in moved.ranks if r != rank)}"
    elif moved.target == HOST:
        yield moved.source, "to the host"
    else:
        yield moved.target, f"from {end_name(moved.source)}"


def _value_name(moved: Communication) -> str:
    if isinstance(moved, Transfer):
        return str(moved.value)
    what = "weights" if moved.kind == CollectiveKind.GATHER else "gradients"
    return f"{what} of stage {moved.stage}"


def _points(slices: Sequence[_Slice]) -> list[_Point]:
    """Return moments, none before the one before it, at which an arrow binds to slices.

    It leaves at the end of the first one and arrives at the starts of the others. A slice that
    takes no time, or that ended before, encloses none.
    """
    points: list[_Point] = []
    for drawn in slices:
        at_us = max(points[-1][1], drawn.start_us) if points else drawn.end_us - 1
        if drawn.start_us <= at_us < drawn.end_us:
            points.append((drawn, at_us))
    return points


def _arrow(number: int, points: Sequence[_Point], numbers: dict[_Track, int]) -> Iterator[Event]:
    last = len(points) - 1
    for place, (drawn, at_us) in enumerate(points):
        phase = "s" if place == 0 else "f" if place == last else "t"
        yield {
            "name": "transfer",
            "cat": "transfer",
            "ph": phase,
            "id": number,
            "pid": drawn.track.pid,
            "tid": numbers[drawn.track],
            "ts": at_us,
            **({} if phase == "s" else {"bp": "e"}),
        }


def _complete(drawn: _Slice, about: Event, numbers: dict[_Track, int]) -> Event:
    return {
        **about,
        "ph": "X",
        "pid": drawn.track.pid,
        "tid": numbers[drawn.track],
        "ts": drawn.start_us,
        "dur": drawn.end_us - drawn.start_us,
    }


def _numbered(tracks: set[_Track]) -> dict[_Track, int]:
    """Number the tracks of each process from 1, in the order in which they are shown."""
    of_process: defaultdict[int, int] = defaultdict(int)
    numbers = {}
    for track in sorted(tracks):
        of_process[track.pid] += 1
        numbers[track] = of_process[track.pid]
    return numbers


def _named(numbers: dict[_Track, int], num_ranks: int) -> Iterator[Event]:
    """Yield the names and the order of processes and tracks."""
    for rank in range(num_ranks):
        yield _meta("process_name", rank, 0, name=f"rank {rank}")
        yield _meta("process_sort_index", rank, 0, sort_index=rank)
    if any(track.pid == num_ranks for track in numbers):
        yield _meta("process_name", num_ranks, 0, name=_CRITICAL)
        yield _meta("process_sort_index", num_ranks, 0, sort_index=-1)
    for track, number in numbers.items():
        yield _meta("thread_name", track.pid, number, name=track.name)
        yield _meta("thread_sort_index", track.pid, number, sort_index=number)


def _meta(what: str, pid: int, tid: int, **arguments: Any) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": arguments}
