"""Offloading of saved activations: the buffers that a schedule allocates, and the host's part.

    OFFLOAD   its rank      reads saved, makes out          the transfer of out starts
    HOST_FOR  another rank  a buffer for out is allocated   its receive is posted before it
    RETURN    that rank     reads out, makes back           the transfer of back starts
    RELOAD    its rank      a buffer for back is allocated  its receive is posted before it
    B or BW   its rank      reads back

With HOST_FOR and RETURN the transfers follow from the reads and writes, as others do; only the
places of their receives are those that the schedule says. Without them the host stands in for the
other rank: it stores out, and returns it once it has arrived and the buffer for back exists.
"""

from typing import NamedTuple, Self

import numpy as np

from synth.costs.costs import HOST, IntArray
from synth.op_kinds import OpKind
from synth.schedule.arrays import KIND_CODES, OpArrays
from synth.schedule.lowering import positions
from synth.schedule.lowering.def_use import DefUse
from synth.schedule.lowering.effect_table import EffectTable
from synth.schedule.lowering.effects import MOVED_BACK, MOVED_OUT, VALUE_CODES, WEIGHTS
from synth.schedule.lowering.required_transfers import RequiredTransfers


class MoveBuffers(NamedTuple):
    """The rank and place of HOST_FOR (row 0, for out), RELOAD (row 1, for back) and UNSHARD (row 2,
    for weights), by cell.

    −1 stands for none.
    """

    rank: IntArray
    place: IntArray

    @classmethod
    def of(cls, arrays: OpArrays) -> Self:
        """Find them in the programs."""
        rank = np.full((3, arrays.num_cells), -1)
        place = np.full((3, arrays.num_cells), -1)
        for row, kind in enumerate((OpKind.HOST_FOR, OpKind.RELOAD, OpKind.UNSHARD)):
            nodes = (arrays.kind == KIND_CODES[kind]).nonzero()[0]
            cells = arrays.cells[nodes]
            rank[row, cells] = arrays.rank[nodes]
            place[row, cells] = nodes - np.array(arrays.first_node)[arrays.rank[nodes]]
        return cls(rank, place)

    def places_of(self, table: EffectTable, required: RequiredTransfers) -> IntArray:
        """For each transfer, the place at its target at which its buffer is allocated, or −1."""
        kind, cell = np.divmod(required.value, table.num_cells)
        place = np.full(len(kind), -1)
        for row, value in enumerate((MOVED_OUT, MOVED_BACK, WEIGHTS)):
            here = (kind == VALUE_CODES[value]) & (self.rank[row, cell] == required.target)
            place[here] = self.place[row, cell[here]]
        return place


def host_transfers(arrays: OpArrays, def_use: DefUse, table: EffectTable) -> RequiredTransfers:
    """The transfers to and from the host's memory, in the order of OFFLOADs and of RELOADs."""
    given = arrays.listed(OpKind.RETURN)
    offloads = (arrays.kind == KIND_CODES[OpKind.OFFLOAD]).nonzero()[0]
    out_node = offloads[~given[arrays.cells[offloads]]]
    out_value = VALUE_CODES[MOVED_OUT] * table.num_cells + arrays.cells[out_node]
    out_rank = arrays.rank[out_node]
    back_node = np.full(arrays.num_cells, -1)
    reloads = (arrays.kind == KIND_CODES[OpKind.RELOAD]).nonzero()[0]
    back_node[arrays.cells[reloads]] = reloads
    remote_reads = def_use.remote_reads
    kind, cell = np.divmod(remote_reads.value, table.num_cells)
    is_back = (kind == VALUE_CODES[MOVED_BACK]) & (back_node[cell] >= 0) & ~given[cell]
    value, _, rank, read, *_ = (field[is_back] for field in remote_reads)
    nowhere, host = np.full(len(out_node), -1), np.full(len(out_node) + len(read), HOST)
    return RequiredTransfers(
        value=np.concatenate([out_value, value]),
        source=np.concatenate([out_rank, host[len(out_node) :]]),
        target=np.concatenate([host[: len(out_node)], rank]),
        made=np.concatenate([out_node, back_node[cell[is_back]]]),
        read=np.concatenate([nowhere, read]),
        seen=np.concatenate([2 * out_rank, 2 * rank + 1]),
    )


def left_with_host(arrays: OpArrays, required: RequiredTransfers) -> RequiredTransfers:
    """Replace each transfer from a forward to a backward by copies to the host and from it.

    Args:
        required: the transfers of values that one rank makes and another one reads.
    """
    is_forward = arrays.kind == KIND_CODES[OpKind.F]
    waits = is_forward[required.made] & ~is_forward[required.read]
    if arrays.schedule.placement.backward_ranks is None or not waits.any():
        return required
    direct, found = (
        RequiredTransfers(*(field[chosen] for field in required)) for chosen in (~waits, waits)
    )
    # Backwards of several ranks may read a value, which is copied to the host once.
    _, once = np.unique(found.value, return_index=True)
    source, host = found.source[once], np.full(len(waits), HOST)
    ahead = arrays.schedule.buffering.receive_ahead
    place = positions.ahead(arrays, found.read, found.target, ahead)
    asked = place + np.array(arrays.first_node)[found.target]
    copies = RequiredTransfers(
        value=np.concatenate([found.value[once], found.value]),
        source=np.concatenate([source, host[: len(found.value)]]),
        target=np.concatenate([host[: len(once)], found.target]),
        made=np.concatenate([found.made[once], asked]),
        read=np.concatenate([np.full(len(once), -1), found.read]),
        seen=np.concatenate([2 * source, 2 * found.target + 1]),
    )
    return direct.joined(copies)
