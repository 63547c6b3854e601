"""The critical path of a plan, summed up by stage and by kind of op, and as runs of ops."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from synth.records.record import Record
from synth.schedule.critical_path import critical_nodes
from synth.schedule.lowering.lower import Lowered
from synth.schedule.ops import Op
from synth.schedule.simulate import Timeline


class PathRun(Record):
    """Ops that follow each other on the path: those of one rank, or one op from rank to rank.

    Attributes:
        first: the first op, such as `F0.3`.
        last: the last op.
        num_ops: the number of ops.
        first_rank: the rank of the first op.
        last_rank: the rank of the last op.
        work_us: the time of the ops, without the transfers between them.
    """

    first: str
    last: str
    num_ops: int
    first_rank: int
    last_rank: int
    work_us: int


class CriticalPath(Record):
    """The ops and transfers that follow each other without a pause up to the makespan.

    Attributes:
        length_us: the sum of all of them, the makespan.
        stages_us: the time of the ops of each stage.
        kinds_us: the time of ops by kind.
        transfers_us: the time of transfers and collectives.
        runs: the ops in order of time.
    """

    length_us: int
    stages_us: tuple[int, ...]
    kinds_us: dict[str, int]
    transfers_us: int
    runs: tuple[PathRun, ...]


class _PathOp(NamedTuple):
    rank: int
    op: Op
    us: int


def critical_path_of(timeline: Timeline) -> CriticalPath:
    """Sum up a critical path of a simulation."""
    lowered, nodes = timeline.lowered, critical_nodes(timeline)
    ops = list(_ops(lowered, nodes))
    stages_us, kinds_us = Counter[int](), Counter[str]()
    for each in ops:
        stages_us[each.op.stage] += each.us
        kinds_us[each.op.kind.value] += each.us
    length_us = sum(lowered.durations_us[node] for node in nodes)
    return CriticalPath(
        length_us=length_us,
        stages_us=tuple(stages_us[s] for s in range(lowered.costs.num_stages)),
        kinds_us={kind: us for kind, us in kinds_us.most_common() if us},
        transfers_us=length_us - sum(each.us for each in ops),
        runs=tuple(map(_run, _grouped(ops))),
    )


def _ops(lowered: Lowered, nodes: list[int]) -> Iterator[_PathOp]:
    first, ranks = lowered.first_node, lowered.arrays.rank
    for node in nodes:
        if node < first[-1]:
            rank = int(ranks[node])
            yield _PathOp(rank, lowered.ops[rank][node - first[rank]], lowered.durations_us[node])


def _grouped(ops: list[_PathOp]) -> Iterator[list[_PathOp]]:
    """Yield the ops of one rank together, and single ops of a kind that pass a micro-batch on."""
    stays = [list(group) for _, group in groupby(ops, key=lambda each: each.rank)]

    def passes(group: list[_PathOp]) -> tuple[object, ...]:
        if len(group) > 1:
            return (id(group),)
        return group[0].op.kind, group[0].op.microbatch, group[0].op.replica

    for _, groups in groupby(stays, key=passes):
        yield [each for group in groups for each in group]


def _run(ops: list[_PathOp]) -> PathRun:
    return PathRun(
        first=str(ops[0].op),
        last=str(ops[-1].op),
        num_ops=len(ops),
        first_rank=ops[0].rank,
        last_rank=ops[-1].rank,
        work_us=sum(each.us for each in ops),
    )
