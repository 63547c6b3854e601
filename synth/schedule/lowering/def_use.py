"""Def-use: the node that makes and the nodes that read each value, for all ops at once."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from synth.costs.costs import IntArray
from synth.schedule.arrays import Flags, OpArrays
from synth.schedule.lowering.effect_table import EffectTable, Pairs
from synth.schedule.lowering.version_accesses import VersionAccesses
from synth.schedule.lowering.weight_visits import WeightVisits


class RemoteReads(NamedTuple):
    """Values that are read on a rank that did not make them, once per value and rank.

    `first_read` and `last_read` are nodes; of F and BW that run at once, F reads first and BW last.
    `seen` orders the entries by their first read, program after program. A value that no op
    makes has the source −1.
    """

    value: IntArray
    source: IntArray
    target: IntArray
    first_read: IntArray
    last_read: IntArray
    seen: IntArray


@dataclass(frozen=True, eq=False)
class DefUse:
    """The makers and readers of all values.

    `maker[v]` is the node that makes value v, or −1. `last_use[v]` is the last node on the maker's
    rank that reads v, or the maker itself; of F and BW that run at once, it is BW.
    `late_reader[i]` reads a value that `late_maker[i]` makes on the same rank and not before
    it.
    """

    maker: IntArray
    last_use: IntArray
    late_reader: IntArray
    late_maker: IntArray
    remote_reads: RemoteReads


def find_def_use(
    arrays: OpArrays, table: EffectTable, accesses: WeightVisits | VersionAccesses | None = None
) -> DefUse:
    """Match the reads of all ops with their makers; of several makers the last one counts."""
    cells, classes = arrays.cells, arrays.classes
    makes = table.makes.pairs(classes, cells)
    node, value = table.reads.pairs(classes, cells)
    if accesses is not None:
        # Their values are read by no op of the table, so both parts may follow each other.
        makes = makes.joined(accesses.makes)
        node, value = Pairs(node, value).joined(accesses.reads)
    maker = np.full(table.num_values, -1)
    maker[makes.value] = makes.node
    made = maker[value]
    target = arrays.rank[node]
    source = np.append(arrays.rank, -1)[made]
    home = source == target
    late = (home & (made >= node)).nonzero()[0]
    last_use = maker.copy()
    last_use[value[home]] = node[home]
    if len(late):
        np.maximum(last_use, maker, out=last_use)
    elsewhere = (~home).nonzero()[0]
    remote_reads = _first_and_last(
        len(arrays.ops), value[elsewhere], source[elsewhere], target[elsewhere], node[elsewhere]
    )
    if len(arrays.overlapped):
        last_use = arrays.ends_of_pairs(last_use)
        remote_reads = remote_reads._replace(
            first_read=arrays.begins_of_pairs(remote_reads.first_read),
            last_read=arrays.ends_of_pairs(remote_reads.last_read),
        )
    return DefUse(maker, last_use, node[late], made[late], remote_reads)


def _first_and_last(
    num_ranks: int, value: IntArray, source: IntArray, target: IntArray, node: IntArray
) -> RemoteReads:
    """The first and the last read of each value on each rank, from reads in program order."""
    key = value * num_ranks + target
    order = key.argsort(kind="stable")
    first = group_starts(key[order]).nonzero()[0]
    last = np.append(first[1:], len(order))[: len(first)] - 1
    seen = order[first]
    return RemoteReads(value[seen], source[seen], target[seen], node[seen], node[order[last]], seen)


def group_starts(sorted_keys: IntArray) -> Flags:
    """A mask of the positions in a sorted array at which a new key begins."""
    starts = np.ones(len(sorted_keys), dtype=np.bool_)
    np.not_equal(sorted_keys[1:], sorted_keys[:-1], out=starts[1:])
    return starts
