"""The edges of the DAG of a lowered schedule: of ops, transfers, collectives and STEPs."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from synth.costs.costs import HOST, IntArray
from synth.schedule.arrays import OpArrays
from synth.schedule.lowering.collectives import PlacedCollective
from synth.schedule.lowering.def_use import DefUse
from synth.schedule.lowering.transfers import TransferTable


class Edges(NamedTuple):
    """Edges of the DAG: node `before[i]` must end before node `after[i]` starts."""

    before: IntArray
    after: IntArray

    @classmethod
    def of(cls, pairs: list[tuple[int, int]]) -> Self:
        """From (before, after) pairs."""
        return cls(*np.array(pairs, dtype=np.int64).reshape(-1, 2).T)


def op_edges(arrays: OpArrays, def_use: DefUse) -> Edges:
    """An op waits for its predecessor on its rank, and for makers of its reads that stand later.

    The latter make a cycle, which the verifier reports.
    """
    node = np.arange(1, arrays.num_nodes)
    inner = node[arrays.rank[1:] == arrays.rank[:-1]]
    return Edges(
        np.concatenate([inner - 1, def_use.late_maker]),
        np.concatenate([inner, def_use.late_reader]),
    )


def transfer_edges(arrays: OpArrays, transfer_table: TransferTable) -> Edges:
    """The edges of transfers: to reader and waiting op, from maker, posting op and predecessor."""
    first = np.array(arrays.first_node)
    at_source, at_target = first[transfer_table.source], first[transfer_table.target]
    node = np.arange(arrays.num_nodes, arrays.num_nodes + len(transfer_table))
    before = np.array(
        [node, node, transfer_table.made, at_target + transfer_table.post - 1, node - 1]
    )
    after = np.array([transfer_table.read, at_source + transfer_table.wait, node, node, node])
    exists = np.ones((5, len(transfer_table)), dtype=np.bool_)
    exists[0] = transfer_table.target != HOST
    exists[2] = transfer_table.made >= 0
    exists[1] = (after[1] < first[transfer_table.source + 1]) & (transfer_table.source != HOST)
    exists[3] = transfer_table.post > 0
    exists[4] = ~transfer_table.opens_link
    return Edges(before.T[exists.T], after.T[exists.T])


def collective_edges(groups: list[list[PlacedCollective]], node: int) -> Edges:
    """A collective waits for its ranks and the one before it; its readers or STEPs wait for it."""
    edges: list[tuple[int, int]] = []
    for each in groups:
        for k, placed in enumerate(each):
            edges += [(before, node) for before in placed.waits_for]
            edges += [(node - 1, node)] if k else []
            edges += [(node, after) for after in placed.awaited_by]
            node += 1
    return Edges.of(edges)


def barrier_edges(arrays: OpArrays, reductions: Sequence[int]) -> Edges:
    """Every STEP waits until all ranks have reached their first one, and for all reductions."""
    edges: list[tuple[int, int]] = []
    steps = arrays.of_step.nonzero()[0]
    ranks, index = np.unique(arrays.rank[steps], return_index=True)
    lasts = [
        int(steps[i]) - 1
        for rank, i in zip(ranks.tolist(), index.tolist(), strict=True)
        if steps[i] > arrays.first_node[rank]
    ]
    for step in steps.tolist():
        edges += [(last, step) for last in lasts if last != step - 1]
        edges += [(reduction, step) for reduction in reductions]
    return Edges.of(edges)
