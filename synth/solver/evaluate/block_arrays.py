"""The ops of a building block as arrays, for `block_kernel`.

A building block (Qi et al. 2024, arXiv 2405.15362, section 3) has the ops of one interval: F, B and
W of all stage copies, of one micro-batch or several of each replica.
"""

from typing import NamedTuple

import numpy as np

from synth.op_kinds import OpKind
from synth.solver.evaluate.op_table import NONE
from synth.solver.evaluate.order_arrays import Ints
from synth.solver.instance.instance import B, F, Instance, Node, OpIndex, W

# Random numbers that a move takes.
NUMBERS_PER_MOVE = 4


class BlockArrays(NamedTuple):
    """The ops of a block, in the order in which they are placed at first. Times are in µs.

    Attributes:
        rank, duration: by op.
        source, lag: the op whose result an op reads, `NONE` for the first F's, and the time of that
            transfer.
        delta, peak: the lasting change of the rank's bytes, and the peak above those before it.
        headroom: by rank, `NONE` without a cap.
        held, first_held: the ops of all ranks joined, and where those of each rank begin.
        num_weights: the W's, which are the last ops.
    """

    rank: Ints
    duration: Ints
    source: Ints
    lag: Ints
    delta: Ints
    peak: Ints
    headroom: Ints
    held: Ints
    first_held: Ints
    num_weights: int


class PlacedBlock(NamedTuple):
    """A block: the order of placement, the time that each op waits, and the starts that follow."""

    order: Ints
    waits: Ints
    starts: Ints

    def copy(self) -> "PlacedBlock":
        """Return a copy of all arrays."""
        return PlacedBlock(*(array.copy() for array in self))


def block_arrays(instance: Instance, size: int) -> tuple[BlockArrays, list[Node]]:
    """Return the arrays of a block of `size` micro-batches of each replica, and its ops.

    F's and B's of a micro-batch come in the order in which it passes them, and W's after all.
    """
    passes = [(chain, k) for k in range(size) for chain in _chains(instance)]
    nodes: list[Node] = []
    for chain, k in passes:
        nodes += [(copy, OpIndex(F, k)) for copy in chain]
        nodes += [(copy, OpIndex(B, k)) for copy in reversed(chain)]
    weights = [(copy, OpIndex(W, k)) for chain, k in passes for copy in reversed(chain)]
    nodes += weights
    number = {node: i for i, node in enumerate(nodes)}
    sources = [_source(instance, node) for node in nodes]
    ranks = [instance[copy].rank for copy, _ in nodes]
    held = [i for rank in range(instance.num_ranks) for i, of in enumerate(ranks) if of == rank]
    counts = [ranks.count(rank) for rank in range(instance.num_ranks)]
    arrays = BlockArrays(
        _ints(ranks),
        _ints([instance[copy].duration_us[op.kind] for copy, op in nodes]),
        _ints([NONE if source is None else number[source[0]] for source in sources]),
        _ints([0 if source is None else source[1] for source in sources]),
        _ints([instance[copy].delta_bytes[op.kind] for copy, op in nodes]),
        _ints([instance[copy].peak_above_bytes[op.kind] for copy, op in nodes]),
        _ints([NONE if room is None else room for room in instance.headroom_bytes]),
        _ints(held),
        _ints([0, *np.cumsum(counts)]),
        len(weights),
    )
    return arrays, nodes


def _chains(instance: Instance) -> list[list[int]]:
    """Return the copies of each replica, in forward order."""
    replicas = sorted({copy.replica for copy in instance.copies})
    return [
        [i for i, copy in enumerate(instance.copies) if copy.replica == replica]
        for replica in replicas
    ]


def _source(instance: Instance, node: Node) -> tuple[Node, int] | None:
    """Return the op whose result an op reads, and the time of the transfer; None: a first F."""
    index, (kind, k) = node
    copy = instance[index]

    def from_op(other: int, made_by: OpKind, lag_us: int) -> tuple[Node, int]:
        return (other, OpIndex(made_by, k)), lag_us

    if kind == W:
        return from_op(index, B, 0)
    if kind == B:
        return from_op(index, F, 0) if copy.below is None else from_op(copy.below, B, copy.up_us)
    return None if copy.above is None else from_op(copy.above, F, instance[copy.above].down_us)


def _ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)
