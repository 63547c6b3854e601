"""Weights whose home is the host's memory: copies in at UNSHARDs, gradients out at REDUCE_GRADs.

    UNSHARD      its rank      the buffer is allocated        the copy of the weights may start
    REDUCE_GRAD  its rank      reads acc(s, v)                the copy of the sum starts
    STEP         its rank      waits for the stage's sums     the rank's process updates on the host

Both directions have a link of their own for every rank, which moves of activations use too.
"""

import numpy as np

from synth.costs.costs import HOST, IntArray
from synth.op_kinds import OpKind
from synth.schedule.arrays import KIND_CODES, OpArrays
from synth.schedule.lowering.effects import GRAD_ACC, VALUE_CODES
from synth.schedule.lowering.required_transfers import RequiredTransfers
from synth.schedule.lowering.weight_visits import ABSENT, WeightVisits


def host_copies(arrays: OpArrays, found: WeightVisits) -> tuple[RequiredTransfers, IntArray]:
    """The copies of weights and of sums, and by copy the value that its source holds until then.

    −1 stands for weights, which the host keeps.
    """
    rows, held = [], []
    for visit in found.visits:
        if visit.value != ABSENT:
            row = visit.value, HOST, visit.rank, visit.node, visit.first_read, 2 * visit.rank + 1
            rows.append(row)
            held.append(ABSENT)
    for node in (arrays.kind == KIND_CODES[OpKind.REDUCE_GRAD]).nonzero()[0].tolist():
        value = VALUE_CODES[GRAD_ACC] * arrays.num_cells + int(arrays.cells[node])
        rank = int(arrays.rank[node])
        rows.append((value, rank, HOST, node, ABSENT, 2 * rank))
        held.append(value)
    required = RequiredTransfers(*np.array(rows, dtype=np.int64).reshape(-1, 6).T)
    return required, np.array(held, dtype=np.int64)


def updates_after_sums(
    arrays: OpArrays, value: IntArray, target: IntArray
) -> list[tuple[int, int]]:
    """Pairs of the node of each copy of a sum, and the STEP of its stage, which waits for it.

    Args:
        value: by transfer what it moves.
        target: by transfer its end.
    """
    kind, cell = np.divmod(value, arrays.num_cells)
    sums = ((target == HOST) & (kind == VALUE_CODES[GRAD_ACC])).nonzero()[0]
    stage = cell[sums] // arrays.schedule.num_micro_batches % arrays.num_stages
    steps = arrays.of_step.nonzero()[0]
    step_of = {int(arrays.stage[node]): int(node) for node in steps}
    return [
        (arrays.num_nodes + int(transfer), step_of[number])
        for transfer, number in zip(sums, stage.tolist(), strict=True)
        if number in step_of
    ]
