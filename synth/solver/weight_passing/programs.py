"""The programs of all ranks from the order of one, or of each."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.solver.weight_passing.compute_order import ComputeOrder
from synth.solver.weight_passing.problem import WeightPassingProblem
from synth.solver.weight_passing.unshard_placement import OpNeeds, with_chosen_visits
from synth.solver.weight_passing.visit_options import VisitOptions

_COUNTED = (OpKind.UNSHARD, OpKind.REDUCE_GRAD)


def make_schedule(
    table: OpNeeds,
    orders: Sequence[ComputeOrder],
    visit_options: VisitOptions,
    headrooms: list[int] | None,
) -> Schedule:
    """Place the visits of each rank's order, and number micro-batches and visits.

    Args:
        orders: the order of each rank, or one for all.
        visit_options: the choices by which visits are placed.
        headrooms: the headroom of each rank. All ranks place visits like the one with the least,
            because on a ring they pass each visit on, and collectives need one common order.
    """
    passing = table.passing
    headroom = None if headrooms is None else min(headrooms)
    placed = {
        order: with_chosen_visits(table, order, visit_options, headroom) for order in set(orders)
    }
    programs = [
        tuple(of_rank(passing, rank, placed[orders[rank % len(orders)]]))
        for rank in range(passing.num_ranks)
    ]
    problem = passing.problem
    return Schedule(
        problem.placement,
        problem.num_micro_batches,
        tuple(programs),
        f"synth {passing.movement}",
        visit_options.buffering,
        weights=passing.flow(visit_options.sharded),
    )


def of_rank(passing: WeightPassingProblem, rank: int, ops: Iterable[Op]) -> Iterable[Op]:
    """Number ops, of which micro-batches are rounds, for a rank, and leave out visits at home."""
    flow, num_ranks = passing.flow(), passing.num_ranks
    numbers: defaultdict[tuple[OpKind, int], int] = defaultdict(int)
    for kind, stage, number, _ in ops:
        if kind == OpKind.STEP:
            yield Op(kind, stage, number, rank)
        elif kind not in _COUNTED:
            yield Op(kind, stage, number * num_ranks + rank, rank)
        elif not flow.keeps_all(stage, rank):
            yield Op(kind, stage, numbers[kind, stage], rank)
            numbers[kind, stage] += 1
