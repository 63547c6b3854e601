"""BPipe: 1F1B whose first ranks lend memory from the last ones (Kim et al. 2023, ICML).

In 1F1B rank r holds up to D − r micro-batches: the first rank D, the last one 1. BPipe pairs rank r
with rank D − 1 − r. The first of a pair, the evictor, sends the saved activations of its newest
micro-batch to the other, the acceptor, whenever it would hold more than K = ⌈(D + 2) / 2⌉, and gets
them back before the backward. Activations in transit count on both ranks here. K holds for all
ranks if F and BW take equally long; else an acceptor may hold one more while two transfers overlap.

    evictor    … F3 O3 BW0 L1 F4 O4 BW1 L2 …      O: it leaves     L: buffer for its return
    acceptor         K3    G1       K4   G2        K: buffer for it  G: it returns
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from synth.families import one_f_one_b
from synth.families._lib.family import Family, Programs, Setting
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import lower
from synth.schedule.measured.execution_trace import OpSpan, planned_spans
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.simulate import simulate


def make(setting: Setting) -> Programs:
    """Evict the newest micro-batch right after its F, and load the oldest evicted one first.

    The paper leaves open when transfers begin. Here a micro-batch is called back as soon as a
    backward has freed memory for it, so its transfer has the time of several ops. The acceptor
    allocates and returns at the same times of 1F1B's clock.
    """
    base = one_f_one_b.in_order(setting)
    num_ranks = setting.num_ranks
    bound = most_held(num_ranks)
    evicted = {
        rank: _evicting(program, bound)
        for rank, program in enumerate(base)
        if min(num_ranks - rank, setting.num_micro_batches) > bound
    }
    listed = tuple(map(tuple, base))
    made = Schedule(setting.placement, setting.num_micro_batches, listed)
    times = planned_spans(simulate(lower(made, setting.costs)))
    programs = []
    for rank, program in enumerate(base):
        partner = num_ranks - 1 - rank
        if rank in evicted:
            programs.append(evicted[rank])
        elif partner in evicted:
            guests = _guests(evicted[partner], times[partner])
            programs.append(_accepting(program, times[rank], guests))
        else:
            programs.append(list(program))
    return programs


def most_held(num_ranks: int) -> int:
    """K, the number of micro-batches that the paper lets a rank hold."""
    return (num_ranks + 3) // 2


def _evicting(program: Sequence[Op], bound: int) -> list[Op]:
    """Keep at most `bound` micro-batches; one on its way out counts until one op later."""
    ops: list[Op] = []
    here: list[int] = []
    away: list[int] = []
    for op, following in zip_longest(program, program[1:]):
        ops.append(op)
        if op.kind == OpKind.F:
            here.append(op.microbatch)
            # One that leaves is still there during the next op: of two, if that is an F.
            if len(here) > bound - (2 if following.kind == OpKind.F else 1):
                away.append(here.pop())
                ops.append(op._replace(kind=OpKind.OFFLOAD))
        else:
            here.remove(op.microbatch)
            if away and len(here) < bound - 1:
                here.append(away.pop(0))
                ops.append(Op(OpKind.RELOAD, op.stage, here[-1]))
    return ops


class _Guest(NamedTuple):
    """An op for the acceptor, and the time at which the evictor needs it."""

    at_us: int
    op: Op


def _guests(evicting: list[Op], spans: Sequence[OpSpan]) -> list[_Guest]:
    """Place HOST_FOR when the micro-batch was made, RETURN when there is memory for it again."""
    guests, place = [], -1
    for op in evicting:
        if op.kind == OpKind.OFFLOAD:
            guests.append(_Guest(spans[place].end_us, op._replace(kind=OpKind.HOST_FOR)))
        elif op.kind == OpKind.RELOAD:
            guests.append(_Guest(spans[place].end_us, op._replace(kind=OpKind.RETURN)))
        else:
            place += 1
    return guests


def _accepting(program: Iterable[Op], spans: Sequence[OpSpan], guests: list[_Guest]) -> list[Op]:
    """Insert HOST_FOR before the op that runs at its time, RETURN before the next op."""
    before: dict[int, list[Op]] = {}
    for at_us, op in guests:
        if op.kind == OpKind.HOST_FOR:
            place = bisect_right(spans, at_us, key=lambda span: span.end_us)
        else:
            place = bisect_left(spans, at_us, key=lambda span: span.start_us)
        before.setdefault(place, []).append(op)
    ops: list[Op] = []
    for place, op in enumerate(program):
        ops += [*before.pop(place, []), op]
    return ops + [op for rest in before.values() for op in rest]


def buffering(setting: Setting, schedule: Schedule) -> Buffering:
    """One op's time for what leaves, as the paper's bound assumes."""
    del setting, schedule
    return Buffering(1, 1)


FAMILY = Family(
    "bpipe",
    "Kim et al. 2023, ICML (PMLR 202:16639); see arXiv 2401.02088",
    make,
    timed=True,
    offloads=True,
    buffering=buffering,
)
