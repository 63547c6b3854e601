"""Weights and gradients by a tree of two levels: once to or from each node, the rest inside it.

    weights      the home → the other ranks of its node, and the staging rank of each other node →
                 the other ranks of that node
    gradients    the same way back: every rank hands its own to the staging rank, or in the home's
                 node to the home; a staging rank adds up those of its node and hands them on

The *staging rank* of a node stands in the place in its node that the home has in its own, as in
TawPipe (arXiv 2511.09741). REDUCE_GRAD(s, v) makes sum(s, v) of what its rank has accumulated. On a
staging rank, and on the home, it also reads the sums of the ranks below. The visits and
REDUCE_GRADs with one number belong together on all ranks.
"""

from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.schedule.arrays import KIND_CODES, OpArrays
from synth.schedule.weight_flow import WeightFlow


def staging_rank(flow: WeightFlow, stage: int, rank: int) -> int:
    """The rank of a rank's node from which the node gets a stage: the home, if it is there."""
    home, size = flow.homes[stage][0], flow.node_size
    return rank // size * size + home % size


def rank_above(flow: WeightFlow, stage: int, rank: int) -> int:
    """The rank from which a rank that is not the home gets a stage's weights."""
    staging = staging_rank(flow, stage, rank)
    return flow.homes[stage][0] if rank == staging else staging


class SumAccesses(NamedTuple):
    """The sums that REDUCE_GRADs pass on.

    Attributes:
        made: nodes that make the sum of their own number.
        read: pairs of a node and of the one whose sum it reads.
        unread: nodes whose sum no REDUCE_GRAD of the rank above reads.
    """

    made: list[int]
    read: list[tuple[int, int]]
    unread: list[int]


def find_tree_sums(arrays: OpArrays, flow: WeightFlow) -> SumAccesses:
    """Match the REDUCE_GRADs of all ranks with those of the ranks above them."""
    nodes: list[int] = (arrays.kind == KIND_CODES[OpKind.REDUCE_GRAD]).nonzero()[0].tolist()
    fields = (arrays.stage, arrays.microbatch, arrays.rank)
    places = {node: tuple(int(field[node]) for field in fields) for node in nodes}
    by_place = {place: node for node, place in places.items()}
    found = SumAccesses([], [], [])
    for node, (stage, number, rank) in places.items():
        if flow.is_home(stage, rank):
            continue
        found.made.append(node)
        above = by_place.get((stage, number, rank_above(flow, stage, rank)))
        if above is None:
            found.unread.append(node)
        else:
            found.read.append((above, node))
    return found
