"""The ways of values between ranks: which, in what order, and where their two ends stand."""

from dataclasses import dataclass

import numpy as np

from synth.costs import Costs, IntArray
from synth.schedule.arrays import Flags, OpArrays
from synth.schedule.effects import EffectTable
from synth.schedule.uses import Uses, group_starts


@dataclass(frozen=True, eq=False)
class Routes:
    """All transfers as arrays, link by link, on each link in the order in which values were made.

    `made` and `read` are nodes: the op that makes the value, the first that reads it at the target.
    `post` and `wait` are places: the receive is posted before the op at `post` of the target, the
    send is waited for before the op at `wait` of the source, or after the last one. `opens_link`
    says which transfers are the first of their link.
    """

    value: IntArray
    source: IntArray
    target: IntArray
    made: IntArray
    read: IntArray
    post: IntArray
    wait: IntArray
    num_bytes: IntArray
    duration_us: IntArray
    opens_link: Flags

    def __len__(self) -> int:
        """Number of transfers."""
        return len(self.value)


def find_routes(arrays: OpArrays, uses: Uses, table: EffectTable, costs: Costs) -> Routes:
    """One transfer for every value read on a rank that did not make it.

    Links stand in the order in which the programs, one after the other, first read from them.
    Receives of a link are posted in its order, so one is posted early if a later one needs it.
    """
    chosen, made, opens_link = _in_link_order(arrays, uses)
    value, source, target, read, *_ = (field[chosen] for field in uses.away)
    link = opens_link.cumsum()
    first = np.array(arrays.first_node)
    buffering = arrays.schedule.buffering
    # Posts: the smallest place from here to the end of the link, found for all links in one go by
    # lifting each link above those before it.
    lift = link * (arrays.num_nodes + 1)
    place = np.maximum(read - first[target] - buffering.receive_ahead, 0) + lift
    post = np.minimum.accumulate(place[::-1])[::-1] - lift
    ends = first[source + 1] - first[source]
    wait = np.minimum(made - first[source] + 1 + buffering.send_behind, ends)
    copy = value // arrays.schedule.num_micro_batches
    duration_us = _durations_us(costs, link, copy % arrays.num_stages, source, target)
    num_bytes = table.value_bytes[copy]
    return Routes(value, source, target, made, read, post, wait, num_bytes, duration_us, opens_link)


def _in_link_order(arrays: OpArrays, uses: Uses) -> tuple[IntArray, IntArray, Flags]:
    """Which of `uses.away` in what order, the nodes that make them, and where links begin."""
    away, num_ranks = uses.away, len(arrays.ops)
    made = uses.maker[away.value]
    known = (made >= 0).nonzero()[0]
    made, seen = made[known], away.seen[known]
    link = away.source[known] * num_ranks + away.target[known]
    link_seen = np.full(num_ranks * num_ranks, np.iinfo(np.int64).max)
    np.minimum.at(link_seen, link, seen)
    of_link = link_seen[link]
    order = (of_link * arrays.num_nodes + made).argsort(kind="stable")
    return known[order], made[order], group_starts(of_link[order])


def _durations_us(
    costs: Costs, link: IntArray, stage: IntArray, source: IntArray, target: IntArray
) -> IntArray:
    """Every transfer's time, asked of the costs once per link and stage."""
    key = link * costs.num_stages + stage
    sample = np.full(int(key.max(initial=0)) + 1, -1)
    sample[key] = np.arange(len(key))
    times_us = np.zeros(len(sample), dtype=np.int64)
    for k in (sample >= 0).nonzero()[0].tolist():
        i = sample[k]
        times_us[k] = costs.boundary_us(int(stage[i]), int(source[i]), int(target[i]))
    return np.take(times_us, key)
