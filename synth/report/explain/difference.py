r"""Causes of the difference between a measured and the predicted iteration.

The measured critical path is followed from its end: each op or transfer leads to the one for which
it waited.

    F0.0 ──act──▶ F1.0 ── gap ── F1.1 ──…── last op           length of the path   = measured
    the same ops and transfers in the plan, and some slack    length + its slack   = predicted

An op or transfer on the path takes longer than planned either always (its median over all traced
iterations is longer) or in this iteration (jitter). Between them lie gaps, in which a rank was idle
although its inputs had arrived (executor overhead). The path need not be the critical path of the
plan: the difference of their planned lengths is slack that delays use up first (`room_us`). So the
pieces add up exactly:

    measured − predicted = ops + transfers + gaps + norm + jitter + outside − slack
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synth.records.record import Record
from synth.report.explain.critical_path import Measured, by_node, critical_path, number_nodes
from synth.report.text.tables import table
from synth.schedule.lowering.collectives import CollectiveKind
from synth.schedule.lowering.lower import Lowered
from synth.schedule.lowering.programs import end_name
from synth.schedule.measured.execution_trace import ExecutionTrace
from synth.schedule.ops import ValueKind
from synth.schedule.simulate import Timeline

_CARRIED = {
    ValueKind.ACT: "activations",
    ValueKind.GRAD: "gradients",
    ValueKind.SAVED: "saved activations",
    ValueKind.REPLAY_INPUT: "inputs of R",
    ValueKind.MOVED_OUT: "moves out",
    ValueKind.MOVED_BACK: "moves back",
    ValueKind.WEIGHTS: "weights",
    ValueKind.GRAD_SUM: "gradient sums",
    ValueKind.GRAD_ACC: "gradient sums",
}
_COLLECTED = {
    CollectiveKind.ALL_REDUCE: "gradient sum",
    CollectiveKind.GATHER: "all-gather of weights",
    CollectiveKind.SCATTER: "reduce-scatter of gradients",
}


class PathPart(Record):
    """All ops of a kind and stage, or transfers of a kind on a link, on the critical path."""

    name: str
    n: int
    planned_us: float
    measured_us: float


class Difference(Record):
    """The pieces of `measured_us − predicted_us`, in microseconds; positive ones cost time.

    `ops_us`, `transfers_us`: typical times beyond the planned ones. `gaps_us`: executor overhead,
    idle with inputs ready. `norm_us`: the global norm, before the first STEP of a rank.
    `jitter_us`: beyond typical times in this iteration. `outside_us`: before the first op and after
    the last. `room_us` (subtracted): slack of the path in the plan, relative to the plan's critical
    path.

    If iterations overlap (see `overlapping`), the pieces are of one `rank`: `transfers_us` is
    waiting for others beyond the plan, `norm_us` the validation of the step before.
    """

    rank: int | None = None
    predicted_us: float
    measured_us: float
    ops_us: float
    transfers_us: float
    gaps_us: float
    norm_us: float
    jitter_us: float
    outside_us: float
    room_us: float
    path: tuple[PathPart, ...]

    @property
    def total_us(self) -> float:
        """Sum of all pieces: measured − predicted."""
        slower = self.ops_us + self.transfers_us + self.gaps_us + self.norm_us
        return slower + self.jitter_us + self.outside_us - self.room_us


class NodeClass(NamedTuple):
    """Nodes that take the same time in the plan: ops of a kind and stage, transfers of a link."""

    name: str
    is_op: bool


def explain_difference(
    planned: Timeline, executions: Sequence[ExecutionTrace], index: int, measured_us: float
) -> Difference:
    """Decompose the difference between a measured iteration and its plan.

    Args:
        planned: the prediction; its lowered form has the dependences.
        executions: all traced iterations, from which typical times are taken.
        measured_us: the time of that iteration, including time outside of ops.
    """
    lowered = planned.lowered
    nodes = number_nodes(lowered)
    every = [by_node(nodes, execution) for execution in executions]
    classes = classes_of(lowered)
    typical = typical_us_of(classes, every)
    path = critical_path(lowered, every[index])
    found: defaultdict[str, float] = defaultdict(float)
    parts: defaultdict[NodeClass, list[tuple[float, float]]] = defaultdict(list)
    for node, taken_us, gap_us in path:
        piece = "ops_us" if classes[node].is_op else "transfers_us"
        planned_us = planned.end_us[node] - planned.start_us[node]
        usual_us = typical.get(classes[node], taken_us)
        found[piece] += usual_us - planned_us
        found["jitter_us"] += taken_us - usual_us
        found[_piece_of_gap(lowered, node, path[0].node)] += gap_us
        found["planned_us"] += planned_us
        parts[classes[node]].append((planned_us, taken_us))
    length_us = sum(link.taken_us + link.gap_us for link in path)
    predicted_us = max(planned.end_us, default=0)
    return Difference(
        predicted_us=predicted_us,
        measured_us=measured_us,
        ops_us=found["ops_us"],
        transfers_us=found["transfers_us"],
        gaps_us=found["gaps_us"],
        norm_us=found["norm_us"],
        jitter_us=found["jitter_us"],
        outside_us=found["outside_us"] + measured_us - length_us,
        room_us=predicted_us - found["planned_us"],
        path=path_parts(parts),
    )


def classes_of(lowered: Lowered) -> list[NodeClass]:
    found = [NodeClass(f"{op.kind}, stage {op.stage}", True) for ops in lowered.ops for op in ops]
    for transfer in lowered.transfers:
        ends = f"{end_name(transfer.source)} to {end_name(transfer.target).removeprefix('rank ')}"
        found.append(NodeClass(f"{_CARRIED[transfer.value.kind]}, {ends}", False))
    found += [
        NodeClass(f"{_COLLECTED[one.kind]}, stage {one.stage}", False)
        for one in lowered.collectives
    ]
    return found


def typical_us_of(
    classes: Sequence[NodeClass], every: Sequence[Measured]
) -> dict[NodeClass, float]:
    """Return the median time of each class, over all iterations and micro-batches."""
    times: defaultdict[NodeClass, list[int]] = defaultdict(list)
    for measured in every:
        for node, end in measured.end_us.items():
            if node not in measured.inexact:
                times[classes[node]].append(end - measured.start_us[node])
    return {each: statistics.median(found) for each, found in times.items()}


def _piece_of_gap(lowered: Lowered, node: int, first: int) -> str:
    """Return the piece of a gap: overhead, or before the first op, or waiting for the norm."""
    if node == first:
        return "outside_us"
    is_step = node < lowered.first_node[-1] and lowered.arrays.of_step[node]
    return "norm_us" if is_step else "gaps_us"


def path_parts(parts: Mapping[NodeClass, list[tuple[float, float]]]) -> tuple[PathPart, ...]:
    """Return the classes on the path, those with the largest deviations first."""
    made = [
        PathPart(
            name=each.name,
            n=len(times),
            planned_us=sum(planned for planned, _ in times),
            measured_us=sum(measured for _, measured in times),
        )
        for each, times in parts.items()
    ]
    return tuple(sorted(made, key=lambda part: -abs(part.measured_us - part.planned_us)))


_PIECES = (
    ("ops, against the profile", "ops_us", 1),
    ("transfers, against the link model", "transfers_us", 1),
    ("executor overhead (inputs ready)", "gaps_us", 1),
    ("global norm and clipping", "norm_us", 1),
    ("per-iteration jitter", "jitter_us", 1),
    ("before the first op and after the last", "outside_us", 1),
    ("slack of this path in the plan", "room_us", -1),
)

_OVERLAPPING = (
    ("ops, against the profile", "ops_us", 1),
    ("more waiting for other ranks than planned", "transfers_us", 1),
    ("executor overhead (inputs ready)", "gaps_us", 1),
    ("validating the step before, and making it final", "norm_us", 1),
    ("per-iteration jitter", "jitter_us", 1),
    ("between the iterations", "outside_us", 1),
)


def difference_text(found: Difference, most: int = 4) -> str:
    """Return tables of the causes of the difference, and of the largest deviations on the path."""
    said = _PIECES if found.rank is None else _OVERLAPPING
    rows = [(text, _signed_ms(sign * getattr(found, field))) for text, field, sign in said]
    rows.append(("measured − predicted", _signed_ms(found.total_us)))
    of = "" if found.rank is None else f", on rank {found.rank}"
    pieces = table((f"difference of the median iteration{of}", "\nms"), rows)
    longest = [
        (part.name, str(part.n), _ms(part.planned_us), _ms(part.measured_us))
        for part in found.path[:most]
    ]
    where = "the critical path" if found.rank is None else f"rank {found.rank}"
    head = (f"largest deviations on {where}", "n", "planned\nms", "measured\nms")
    return f"{pieces}\n\n{table(head, longest)}"


def _signed_ms(time_us: float) -> str:
    return f"{time_us / 1000:+.3f}"


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.3f}"
