"""The critical path of a plan, summed up by stage and by kind of op, and as runs of ops."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from synth.records.record import Record
from synth.schedule.critical_path import critical_nodes
from synth.schedule.files.program_text import AT_ONCE, program_text
from synth.schedule.lowering.lower import Lowered
from synth.schedule.ops import Op
from synth.schedule.simulate import Timeline


class PathRun(Record):
    """Ops that follow each other on the path: those of one rank, or one op from rank to rank.

    F and BW that run at once are one op here.

    Attributes:
        first: the first op, such as `F0.3`, or `F0.3&BW1.1`.
        work_us: the time of the ops, without the transfers between them.
    """

    first: str
    last: str
    num_ops: int
    first_rank: int
    last_rank: int
    work_us: int


class CriticalPath(Record):
    """The ops, transfers and reductions that follow each other without a pause up to the makespan.

    Attributes:
        length_us: the sum of all of them, the makespan.
        stages_us: the time of the ops of each stage; that of F and BW at once is divided among
            both as their times one after the other.
        kinds_us: the time of ops by kind, `F&BW` for both at once.
        transfers_us: the time of transfers and collectives between ranks.
        reductions_us: the time of reductions of gradients among the devices of a rank.
        runs: the ops in order of time.
    """

    length_us: int
    stages_us: tuple[int, ...]
    kinds_us: dict[str, int]
    transfers_us: int
    reductions_us: int
    runs: tuple[PathRun, ...]


class _PathOp(NamedTuple):
    """An op of a rank, or F and BW that run at once, with the time of each in microseconds."""

    rank: int
    ops: tuple[Op, ...]
    times_us: tuple[int, ...]

    @property
    def us(self) -> int:
        return sum(self.times_us)

    @property
    def kind(self) -> str:
        return AT_ONCE.join(op.kind.value for op in self.ops)

    @property
    def passed_on(self) -> frozenset[tuple[object, ...]]:
        """The kinds and micro-batches of the ops, by which another rank may go on with them."""
        return frozenset((op.kind, op.microbatch, op.replica) for op in self.ops)

    def __str__(self) -> str:
        return program_text(self.ops, set(self.ops[:-1]))


def critical_path_of(timeline: Timeline) -> CriticalPath:
    """Sum up a critical path of a simulation."""
    lowered, nodes = timeline.lowered, critical_nodes(timeline)
    ops = list(_ops(lowered, nodes))
    stages_us, kinds_us = Counter[int](), Counter[str]()
    for each in ops:
        kinds_us[each.kind] += each.us
        for op, us in zip(each.ops, each.times_us, strict=True):
            stages_us[op.stage] += us
    length_us = sum(lowered.durations_us[node] for node in nodes)
    within = lowered.reductions_within_ranks.intersection(nodes)
    reductions_us = sum(lowered.durations_us[node] for node in within)
    return CriticalPath(
        length_us=length_us,
        stages_us=tuple(stages_us[s] for s in range(lowered.costs.num_stages)),
        kinds_us={kind: us for kind, us in kinds_us.most_common() if us},
        transfers_us=length_us - reductions_us - sum(each.us for each in ops),
        reductions_us=reductions_us,
        runs=tuple(map(_run, _grouped(ops))),
    )


def _ops(lowered: Lowered, nodes: list[int]) -> Iterator[_PathOp]:
    """Yield the ops of a path, which has both ops of a pair or none."""
    first, ranks = lowered.first_node, lowered.arrays.rank
    begins = {*lowered.arrays.overlapped.tolist()}
    for node in nodes:
        if node < first[-1] and node - 1 not in begins:
            rank = int(ranks[node])
            end, place = node + 1 + (node in begins), node - first[rank]
            ops = lowered.ops[rank][place : place + end - node]
            yield _PathOp(rank, ops, tuple(lowered.durations_us[node:end]))


def _grouped(ops: list[_PathOp]) -> Iterator[list[_PathOp]]:
    """Yield the ops of one rank together, and single ops of a kind that pass a micro-batch on."""
    group: list[_PathOp] = []
    passed_on = frozenset[tuple[object, ...]]()
    for _, staying in groupby(ops, key=lambda each: each.rank):
        first, *others = staying
        common = frozenset() if others else passed_on & first.passed_on
        if group and not common:
            yield group
            group = []
        passed_on = frozenset() if others else common or first.passed_on
        group += [first, *others]
    if group:
        yield group


def _run(ops: list[_PathOp]) -> PathRun:
    return PathRun(
        first=str(ops[0]),
        last=str(ops[-1]),
        num_ops=len(ops),
        first_rank=ops[0].rank,
        last_rank=ops[-1].rank,
        work_us=sum(each.us for each in ops),
    )
