"""Who makes and who reads each value: by value's number and by node, for all ops at once."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from synth.costs import IntArray
from synth.schedule.arrays import Flags, OpArrays
from synth.schedule.lowering.effects import EffectTable


class Away(NamedTuple):
    """Values read on a rank that did not make them, once per value and rank.

    `first_read` and `last_read` are nodes; `seen` numbers them in the order in which the programs,
    one after the other, first read them. A value that nobody makes has the source −1.
    """

    value: IntArray
    source: IntArray
    target: IntArray
    first_read: IntArray
    last_read: IntArray
    seen: IntArray


@dataclass(frozen=True, eq=False)
class Uses:
    """What follows from the effects of all ops.

    `maker[v]` is the node that makes value v, or −1; `last_use[v]` the last node on its rank that
    reads it, at least its maker. `late_reader` reads what `late_maker` makes on the same rank, not
    before it.
    """

    maker: IntArray
    last_use: IntArray
    late_reader: IntArray
    late_maker: IntArray
    away: Away


def find_uses(arrays: OpArrays, table: EffectTable) -> Uses:
    """Match the reads of all ops with their makers; the last of several makers counts."""
    cells, classes = arrays.cells, arrays.classes
    makes = table.makes.pairs(classes, cells)
    node, value = table.reads.pairs(classes, cells)
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
    away = _first_and_last(
        len(arrays.ops), value[elsewhere], source[elsewhere], target[elsewhere], node[elsewhere]
    )
    return Uses(maker, last_use, node[late], made[late], away)


def _first_and_last(
    num_ranks: int, value: IntArray, source: IntArray, target: IntArray, node: IntArray
) -> Away:
    """Of all reads of a value on a rank, which stand in order, the first and the last one."""
    key = value * num_ranks + target
    order = key.argsort(kind="stable")
    first = group_starts(key[order]).nonzero()[0]
    last = np.append(first[1:], len(order))[: len(first)] - 1
    seen = order[first]
    return Away(value[seen], source[seen], target[seen], node[seen], node[order[last]], seen)


def group_starts(sorted_keys: IntArray) -> Flags:
    """Where in a sorted array another key begins."""
    starts = np.ones(len(sorted_keys), dtype=np.bool_)
    np.not_equal(sorted_keys[1:], sorted_keys[:-1], out=starts[1:])
    return starts
