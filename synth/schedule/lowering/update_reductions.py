"""Gradient reductions of updates between ops: one for each update of a stage on several ranks.

Each rank of such a stage adds up the gradients of its own micro-batches of the update. Behind the
last of them the ranks reduce the sums in a ring, in place, and each STEP waits for that.
"""

from itertools import product

from synth.costs.costs import Costs
from synth.op_kinds import OpKind
from synth.schedule.arrays import OpArrays
from synth.schedule.lowering.collectives import Collective, PlacedCollective


def find_update_reductions(arrays: OpArrays, costs: Costs) -> list[list[PlacedCollective]]:
    """The reductions of a schedule whose weights have versions, by stage, in order of the updates.

    A rank without a micro-batch in an update takes part after its update before.
    """
    schedule = arrays.schedule
    shared = [stage for stage, ranks in enumerate(schedule.placement.holders) if len(ranks) > 1]
    if not shared:
        return []
    lasts = _last_gradients(arrays)
    step = arrays.of_step.nonzero()[0]
    keys = (arrays.stage[step], arrays.microbatch[step], arrays.rank[step])
    steps = dict(zip(zip(*(key.tolist() for key in keys), strict=True), step.tolist(), strict=True))
    groups = []
    for stage in shared:
        ranks = tuple(sorted(schedule.placement.holders[stage]))
        duration_us = costs.reduction_us(stage, ranks)
        num_bytes = costs.stages[stage].gradient_bytes
        group: list[PlacedCollective] = []
        for number in range(schedule.num_micro_batches // schedule.update_sizes[stage]):
            reduction = Collective(stage, ranks, num_bytes, duration_us, number=number)
            found = [lasts.get((stage, number, rank)) for rank in ranks]
            waits_for = [node for node in found if node is not None]
            awaited_by = [steps[key] for key in product([stage], [number], ranks) if key in steps]
            after = []
            for rank, node in zip(ranks, found, strict=True):
                node = steps.get((stage, number - 1, rank)) if node is None else node
                after.append(-1 if node is None else node - arrays.first_node[rank])
            group.append(PlacedCollective(reduction, tuple(after), waits_for, awaited_by))
        groups.append(group)
    return groups


def _last_gradients(arrays: OpArrays) -> dict[tuple[int, int, int], int]:
    """By stage, update and rank the last op whose gradient the update takes."""
    add = arrays.of_kinds(OpKind.W, OpKind.BW).nonzero()[0]
    batch = arrays.microbatch[add] // arrays.update_size[add]
    keys = zip(arrays.stage[add].tolist(), batch.tolist(), arrays.rank[add].tolist(), strict=True)
    # Of equal keys the last one counts, and nodes are in the order of the programs.
    return dict(zip(keys, add.tolist(), strict=True))
