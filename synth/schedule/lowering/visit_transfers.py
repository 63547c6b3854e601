"""Transfers of weights: the visit, or the home, from which the weights of each visit come.

A *chain* of a stage connects its visits in the order of micro-batches, visits for forwards apart
from those for backwards. A rank hands weights on as soon as they have arrived, before it uses them.
Of two visits of a chain on one rank in a row, the second gets its weights from the home.
"""

import numpy as np

from synth.costs.costs import HOST, IntArray
from synth.op_kinds import OpKind
from synth.schedule.arrays import KIND_CODES, OpArrays
from synth.schedule.lowering.effects import GRAD_ACC, VALUE_CODES
from synth.schedule.lowering.required_transfers import RequiredTransfers
from synth.schedule.lowering.weight_tree import rank_above
from synth.schedule.lowering.weight_visits import ABSENT, Visit, WeightVisits
from synth.schedule.weight_flow import Route


def weight_transfers(arrays: OpArrays, found: WeightVisits) -> tuple[RequiredTransfers, IntArray]:
    """The transfers of visits that come from a rank or its host, and by transfer the value at its
    source.

    That value are the weights of the visit before; −1 stands for those that the home keeps.
    """
    if found.flow.weights == Route.HOST:
        return host_copies(arrays, found)
    rows, held = [], []
    pairs = [] if found.flow.weights == Route.GATHER else sources_of_visits(arrays, found)
    for visit, before in pairs:
        rows.append((visit.value, before.rank, visit.rank, before.first_read, visit.first_read))
        held.append(before.value)
    value, ranks, targets, sent, read = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    seen = np.arange(len(rows))
    required = RequiredTransfers(value, ranks, targets, sent, read, seen)
    return required, np.array(held, dtype=np.int64)


def sources_of_visits(arrays: OpArrays, found: WeightVisits) -> list[tuple[Visit, Visit]]:
    """Each visit with the one from which its weights come, in the order of the UNSHARDs."""
    flow, pairs = found.flow, []
    before: Visit | None = None
    staged = _visits_by_place(arrays, found) if flow.weights == Route.TREE else {}
    for visit in found.visits:
        home = flow.homes[visit.stage][0]
        source = Visit(visit.stage, visit.is_forward, ABSENT, ABSENT, home, arrays.first_node[home])
        if flow.weights == Route.CHAIN and before is not None and before[:2] == visit[:2]:
            source = source if before.rank == visit.rank else before
        elif visit.value != ABSENT and flow.weights == Route.TREE:
            above = rank_above(flow, visit.stage, visit.rank) if visit.rank != home else home
            source = staged.get((visit.stage, int(arrays.microbatch[visit.node]), above), source)
        if visit.value != ABSENT:
            pairs.append((visit, source))
        before = visit
    return sorted(pairs, key=lambda pair: pair[0].node)


def _visits_by_place(arrays: OpArrays, found: WeightVisits) -> dict[tuple[int, int, int], Visit]:
    """The visits by stage, number and rank."""
    return {
        (visit.stage, int(arrays.microbatch[visit.node]), visit.rank): visit
        for visit in found.visits
        if visit.value != ABSENT
    }


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
