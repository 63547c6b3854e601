"""Moves of what a stage saved: the rooms that a schedule makes for them, and the host's part.

    OFFLOAD   its rank      reads saved, makes out        the transfer of out starts
    KEEP      another rank  room for out is made there    its receive is posted before it
    GIVE      that rank     reads out, makes back         the transfer of back starts
    RELOAD    its rank      room for back is made         its receive is posted before it
    B or BW   its rank      reads back

With KEEP and GIVE all transfers follow from what is read and made where, as others do; only the
receives stand where the schedule says. Without them the host takes their part: it keeps out and
gives it back when it came and the room for it is made.
"""

from typing import NamedTuple, Self

import numpy as np

from synth.costs import HOST, IntArray
from synth.kinds import OpKind
from synth.schedule.arrays import KIND_CODES, OpArrays
from synth.schedule.lowering.def_use import Uses
from synth.schedule.lowering.effects import BACK, OUT, VALUE_CODES, EffectTable
from synth.schedule.lowering.transfers import Ways


class Rooms(NamedTuple):
    """Where KEEP (row 0, for out) and RELOAD (row 1, for back) stand, by cell; −1: nowhere."""

    rank: IntArray
    place: IntArray

    @classmethod
    def of(cls, arrays: OpArrays) -> Self:
        """Find them in the programs."""
        rank = np.full((2, arrays.num_cells), -1)
        place = np.full((2, arrays.num_cells), -1)
        for row, kind in enumerate((OpKind.KEEP, OpKind.RELOAD)):
            nodes = (arrays.kind == KIND_CODES[kind]).nonzero()[0]
            cells = arrays.cells[nodes]
            rank[row, cells] = arrays.rank[nodes]
            place[row, cells] = nodes - np.array(arrays.first_node)[arrays.rank[nodes]]
        return cls(rank, place)

    def of_ways(self, table: EffectTable, ways: Ways) -> IntArray:
        """For each way the place at its target where its room is made, or −1."""
        kind, cell = np.divmod(ways.value, table.num_cells)
        place = np.full(len(kind), -1)
        for row, value in enumerate((OUT, BACK)):
            here = (kind == VALUE_CODES[value]) & (self.rank[row, cell] == ways.target)
            place[here] = self.place[row, cell[here]]
        return place


def host_ways(arrays: OpArrays, uses: Uses, table: EffectTable) -> Ways:
    """What goes to the host's memory and comes back, in the order of OFFLOADs and of RELOADs."""
    given = arrays.listed(OpKind.GIVE)
    offloads = (arrays.kind == KIND_CODES[OpKind.OFFLOAD]).nonzero()[0]
    out_node = offloads[~given[arrays.cells[offloads]]]
    out_value = VALUE_CODES[OUT] * table.num_cells + arrays.cells[out_node]
    out_rank = arrays.rank[out_node]
    back_node = np.full(arrays.num_cells, -1)
    reloads = (arrays.kind == KIND_CODES[OpKind.RELOAD]).nonzero()[0]
    back_node[arrays.cells[reloads]] = reloads
    away = uses.away
    kind, cell = np.divmod(away.value, table.num_cells)
    is_back = (kind == VALUE_CODES[BACK]) & (back_node[cell] >= 0) & ~given[cell]
    value, _, rank, read, *_ = (field[is_back] for field in away)
    nowhere, host = np.full(len(out_node), -1), np.full(len(out_node) + len(read), HOST)
    return Ways(
        value=np.concatenate([out_value, value]),
        source=np.concatenate([out_rank, host[len(out_node) :]]),
        target=np.concatenate([host[: len(out_node)], rank]),
        made=np.concatenate([out_node, back_node[cell[is_back]]]),
        read=np.concatenate([nowhere, read]),
        seen=np.concatenate([2 * out_rank, 2 * rank + 1]),
    )
