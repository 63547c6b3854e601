"""Places a number of ops ahead of or behind another op.

Moves take no time and do not count; F and BW that run at once count as one op, at the place of F.
"""

import numpy as np

from synth.costs.costs import IntArray
from synth.op_kinds import OpKind
from synth.schedule.arrays import KIND_CODES, OpArrays


def ahead(arrays: OpArrays, node: IntArray, rank: IntArray, count: int) -> IntArray:
    """The place of the op `count` ops before each node on its rank, or of the rank's first op."""
    first = np.array(arrays.first_node)
    at: IntArray = np.maximum(node - count, first[rank])
    if not _all_count(arrays):
        counted, begins = _counted(arrays)
        index = np.maximum(np.searchsorted(counted, node) - count, begins[rank])
        at = np.minimum(np.append(counted, len(arrays.kind))[index], node)
    place: IntArray = at - first[rank]
    return place


def behind(arrays: OpArrays, node: IntArray, rank: IntArray, count: int) -> IntArray:
    """The place of the op with `count` ops between each node and itself, or the program's end."""
    first = np.array(arrays.first_node)
    ends = first[rank + 1]
    at: IntArray = np.minimum(node + 1 + count, ends)
    if not _all_count(arrays):
        counted, begins = _counted(arrays)
        index = np.searchsorted(counted, node, side="right") + count
        found = np.append(counted, len(arrays.kind))[np.minimum(index, len(counted))]
        at = np.where(index < begins[rank + 1], found, ends)
    place: IntArray = at - first[rank]
    return place


def _all_count(arrays: OpArrays) -> bool:
    return arrays.is_plain and not len(arrays.overlapped)


def _counted(arrays: OpArrays) -> tuple[IntArray, IntArray]:
    """The nodes that count, and for each rank the index of its first one among them."""
    counts = arrays.kind < KIND_CODES[OpKind.OFFLOAD]
    counts[arrays.overlapped + 1] = False
    counted = counts.nonzero()[0]
    return counted, np.searchsorted(counted, np.array(arrays.first_node))
