"""Space for the longest paths of an order, which `path_kernel` keeps as the order changes.

A node is an op, by its number, or the transfer that an op sends, by the number of ops more.
"""

from typing import NamedTuple

import numpy as np

from synth.costs.costs import IntArray

# Of nodes: the least time from its end to the end of the iteration; 1 in the queue. Of a change:
# the head before, the place in the queue, and the numbers of the last changes that have given it
# such a place, and another head.
TAIL, IS_QUEUED, BEFORE, KEY, KEYED, CHANGED = range(6)

# Numbers: the nodes in the queue, those whose heads have changed, the senders whose links have; the
# number of the last change of order; 1 if tails are known.
NUM_QUEUED, NUM_CHANGED, NUM_RELINKED, CHANGE, HAS_TAILS = range(5)

# Changes of order: the op that moved comes first or last of those whose places changed, or is fused
# or split where it stands.
EARLIER, LATER, FUSION = range(3)

# Heads that change again, of more than which ops wait for each other. Without that hardly any do.
MOST_AGAIN = 16

# Bits of a node's number in the queue.
NODE_BITS = 21


class PathArrays(NamedTuple):
    """Heads are in `OrderArrays`; times are in µs.

    Attributes:
        nodes: a table.
        queue: a heap of (key, node), each as one number.
        changed: nodes whose heads have changed.
        relinked: senders that have other transfers before or behind them on their link, or whose
            receive is posted elsewhere.
        counts: numbers.
    """

    nodes: IntArray
    queue: IntArray
    changed: IntArray
    relinked: IntArray
    counts: IntArray


def path_arrays(num_ops: int) -> PathArrays:
    """Return the space for a number of ops."""
    sizes = (2 * num_ops, 6), 2 * num_ops + 1, 2 * num_ops, 8 * num_ops, 5
    return PathArrays(*(np.zeros(size, np.int64) for size in sizes))
