"""TawPipe: weights stay on their rank, and cross once to each node that needs them (AAAI 2026).

Wu and Chen, "TawPipe: Topology-Aware Weight Pipeline Parallelism for Accelerating Long-Context
Large Models Training", arXiv 2511.09741. With P ranks in D nodes there are P stages. Each rank
keeps one of them (device-bound storage), so that neighbouring stages are at home in different
nodes:

    rank         0  1  2  3 | 4  5  6  7
    home of      0  2  4  6 | 1  3  5  7

Every rank runs whole micro-batches, one after another, so that all ranks of a node need the same
weights at a time. The home sends them to its own node and to a staging rank of each other node,
which hands them on there; gradients take the same way back after each backward (group-based weight
pipeline scheduler; `Route.TREE`).

Two ops of a stage in a row share a visit: the last stage's forward and backward, and the first
stage's backward and the next micro-batch's forward, as in the released program (wuhouming/TawPipe).
A rank that adds up gradients does so `ahead` ops after its own backward, and the home as many later
again, so that transfers overlap compute. A stage's gradients are added up before its next backward,
so `ahead` is less than P if there is one; a single rank waits for none. The program's idle turns at
the start of each node are not listed: a rank waits until its weights have come.

`nodes` is the number of nodes, D, and `ahead` the number of stages for which weights come before
the one that runs.
"""

from collections.abc import Iterator
from dataclasses import replace

from synth.errors import SynthError
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import Count
from synth.op_kinds import OpKind
from synth.schedule.insert_visits import with_visits
from synth.schedule.lowering.weight_tree import staging_rank
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Route, WeightFlow

F, BW, REDUCE = OpKind.F, OpKind.BW, OpKind.REDUCE_GRAD

_NODES = Count("nodes", 2)
_AHEAD = Count("ahead", 1, least=0)


def make(setting: Setting) -> Programs:
    """Micro-batches one after another on each rank, as many on each."""
    num_ranks, m, nodes = setting.num_ranks, setting.num_micro_batches, setting.count("nodes")
    if m % num_ranks:
        raise SynthError(f"tawpipe needs a multiple of {num_ranks} micro-batches, given {m}")
    if num_ranks % nodes:
        raise SynthError(
            f"tawpipe needs nodes of as many ranks each, given {num_ranks} ranks in {nodes} nodes"
        )
    flow, ahead = weight_flow(setting), setting.count("ahead")
    if m > num_ranks > 1 and ahead >= num_ranks:
        raise SynthError(
            f"tawpipe needs a prefetch distance below the number of ranks, given ahead={ahead} and "
            f"{num_ranks} ranks: a stage's gradients are added up before its next backward; give "
            f"a smaller one, or one micro-batch for each rank"
        )
    behind = ahead if num_ranks > 1 else 0
    return [
        with_visits(
            list(_reducing(_computing(setting, rank), flow, rank, behind)),
            ahead,
            is_away=lambda stage, rank=rank: not flow.is_home(stage, rank),  # type: ignore[misc]
        )
        for rank in range(num_ranks)
    ]


def _computing(setting: Setting, rank: int) -> Iterator[Op]:
    stages = range(setting.num_stages)
    for j in range(rank, setting.num_micro_batches, setting.num_ranks):
        yield from (Op(F, s, j, rank) for s in stages)
        yield from (Op(BW, s, j, rank) for s in reversed(stages))


def _reducing(ops: Iterator[Op], flow: WeightFlow, rank: int, ahead: int) -> Iterator[Op]:
    """Put a REDUCE_GRAD after each BW, later where it waits for those of other ranks."""
    waiting: list[tuple[int, Op]] = []
    counts: dict[int, int] = {}
    for place, op in enumerate(ops):
        yield op
        if op.kind == BW:
            number = counts.setdefault(op.stage, 0)
            counts[op.stage] += 1
            levels = flow.is_home(op.stage, rank) + (staging_rank(flow, op.stage, rank) == rank)
            waiting.append((place + levels * ahead, Op(REDUCE, op.stage, number, rank)))
        due = [one for at, one in sorted(waiting) if at <= place]
        waiting = [(at, one) for at, one in waiting if at > place]
        yield from due
    yield from (one for _, one in sorted(waiting))


def weight_flow(setting: Setting) -> WeightFlow:
    """Stage s is at home in node s mod D, and goes by a tree."""
    nodes = setting.count("nodes")
    size = max(1, setting.num_ranks // nodes)
    homes = tuple((s % nodes * size + s // nodes,) for s in range(setting.num_stages))
    return WeightFlow(homes, weights=Route.TREE, gradients=Route.TREE, ranks_per_node=size)


def buffering(setting: Setting, schedule: Schedule) -> Buffering:
    """Gradients wait until the ranks above add them up."""
    usual = schedule.buffering
    return replace(usual, send_behind=max(usual.send_behind, 2 * setting.count("ahead")))


FAMILY = Family(
    "tawpipe",
    "Wu and Chen, arXiv 2511.09741, AAAI 2026; the released program wuhouming/TawPipe",
    make,
    "all-stages",
    options=(_NODES, _AHEAD),
    buffering=buffering,
    weights=weight_flow,
)
