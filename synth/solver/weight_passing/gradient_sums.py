"""The sums of gradients that a rank accumulates in an order, until they are reduce-scattered."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from synth.costs.stage_costs import StageCosts
from synth.op_kinds import ADDING
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Sharded
from synth.solver.weight_passing.free_bytes import FreeBytes, Span
from synth.solver.weight_passing.visit_options import VisitOptions


def take_sums(
    order: Sequence[Op], stages: Sequence[StageCosts], visit_options: VisitOptions, free: FreeBytes
) -> None:
    """Hold the gradients that a rank accumulates until their reduce-scatters are over.

    Args:
        free: the bytes left at each op, from which they are taken.
    """
    if visit_options.sharded == Sharded.OPTIMIZER:
        return
    rounds, behind = rounds_of(order), visit_options.buffering.send_behind
    opened: dict[int, int] = {}
    added: defaultdict[int, int] = defaultdict(int)
    for place, op in enumerate(order):
        if op.kind not in ADDING:
            continue
        begin = opened.setdefault(op.stage, place)
        added[op.stage] += 1
        if visit_options.is_reduced(added[op.stage], rounds[op.stage]):
            del opened[op.stage]
            num_bytes = stages[op.stage].gradient_bytes
            free.take(Span(begin, place), num_bytes)
            free.take(Span(place + 1, place + behind, is_sent=True), num_bytes)


def rounds_of(order: Sequence[Op]) -> Counter[int]:
    """The number of W's of each stage in a rank's order."""
    return Counter(op.stage for op in order if op.kind in ADDING)
