"""All-gathers of weights at UNSHARDs, and reduce-scatters of gradients at REDUCE_GRADs."""

from collections import defaultdict

import numpy as np

from synth.costs.costs import Costs
from synth.op_kinds import OpKind
from synth.schedule.arrays import KINDS, OpArrays
from synth.schedule.lowering import positions
from synth.schedule.lowering.collectives import Collective, CollectiveKind, PlacedCollective
from synth.schedule.lowering.weight_visits import ABSENT, WeightVisits
from synth.schedule.weight_flow import Route, WeightFlow


def find_collectives(
    arrays: OpArrays, costs: Costs, found: WeightVisits
) -> list[list[PlacedCollective]]:
    """The all-gathers and reduce-scatters of visits: one list for each set of ranks, in order.

    They are in the order of the first rank's program; `disordered` checks the other ranks'.
    """
    listed: defaultdict[tuple[CollectiveKind, int, int], list[int]] = defaultdict(list)
    readers = {visit.node: visit.first_read for visit in found.visits}
    for node in _calls(arrays, found.flow):
        key = _CALLS[KINDS[arrays.kind[node]]], int(arrays.stage[node])
        listed[*key, int(arrays.microbatch[node])].append(node)
    groups: defaultdict[tuple[int, ...], list[PlacedCollective]] = defaultdict(list)
    for (kind, stage, number), nodes in sorted(listed.items(), key=lambda item: item[1][0]):
        ranks = tuple(int(arrays.rank[node]) for node in nodes)
        after = tuple(
            node - arrays.first_node[rank] for node, rank in zip(nodes, ranks, strict=True)
        )
        is_gather = kind == CollectiveKind.GATHER
        if is_gather:
            num_bytes, us = costs.stages[stage].parameter_bytes, costs.gather_us(stage, ranks)
            awaited_by = [readers[node] for node in nodes if node in readers]
            waits = None
        else:
            num_bytes, us = costs.stages[stage].gradient_bytes, costs.scatter_us(stage, ranks)
            behind = arrays.schedule.buffering.send_behind
            waits = tuple(
                positions.behind(arrays, np.array(nodes), np.array(ranks), behind).tolist()
            )
            awaited_by = _awaiting(arrays, stage, ranks, waits)
        made = Collective(stage, ranks, num_bytes, us, kind, number)
        groups[ranks].append(PlacedCollective(made, after, nodes, awaited_by, waits))
    return list(groups.values())


_CALLS = {OpKind.UNSHARD: CollectiveKind.GATHER, OpKind.REDUCE_GRAD: CollectiveKind.SCATTER}


def _calls(arrays: OpArrays, flow: WeightFlow) -> list[int]:
    """The nodes that start collectives."""
    kinds = [
        kind
        for kind, route in ((OpKind.UNSHARD, flow.weights), (OpKind.REDUCE_GRAD, flow.gradients))
        if route == Route.GATHER
    ]
    nodes = arrays.of_kinds(*kinds).nonzero()[0]
    found: list[int] = nodes.tolist()
    return found


def _awaiting(
    arrays: OpArrays, stage: int, ranks: tuple[int, ...], waits: tuple[int, ...]
) -> list[int]:
    """The ops at the places where ranks wait for a reduce-scatter, and the stage's STEPs."""
    first = arrays.first_node
    ops = [first[rank] + place for rank, place in zip(ranks, waits, strict=True)]
    inside = [node for node, rank in zip(ops, ranks, strict=True) if node < first[rank + 1]]
    steps = (arrays.of_step & (arrays.stage == stage)).nonzero()[0].tolist()
    return sorted({*inside, *steps})


def disordered(arrays: OpArrays, flow: WeightFlow) -> tuple[int, int] | None:
    """Two nodes of different ranks that stand at the same place among the collectives of a stage's
    homes but are not the same collective; the second is −1 if a rank lists fewer. None: all match.
    """
    by_group: defaultdict[tuple[int, ...], dict[int, list[int]]] = defaultdict(dict)
    for node in _calls(arrays, flow):
        group = flow.homes[int(arrays.stage[node])]
        by_group[group].setdefault(int(arrays.rank[node]), []).append(node)
    for group, by_rank in by_group.items():
        rows = [by_rank.get(rank, []) for rank in group]
        for others in rows[1:]:
            for place in range(max(len(rows[0]), len(others))):
                pair = [row[place] if place < len(row) else ABSENT for row in (rows[0], others)]
                if ABSENT in pair or _call(arrays, pair[0]) != _call(arrays, pair[1]):
                    return max(pair), min(pair)
    return None


def _call(arrays: OpArrays, node: int) -> tuple[int, int, int]:
    return int(arrays.kind[node]), int(arrays.stage[node]), int(arrays.microbatch[node])
