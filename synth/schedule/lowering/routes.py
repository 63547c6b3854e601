"""The ways of values between ranks: which, in what order, and where their two ends stand."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.costs import HOST, Costs, IntArray
from synth.schedule.arrays import Flags, OpArrays
from synth.schedule.lowering import positions
from synth.schedule.lowering.def_use import Uses, group_starts
from synth.schedule.lowering.effects import EffectTable
from synth.schedule.lowering.saved_moves import Rooms, host_ways
from synth.schedule.lowering.transfers import Ways

# Places in arrays, or all of them.
Some = IntArray | slice


@dataclass(frozen=True, eq=False)
class Routes:
    """All transfers as arrays, link by link, on each link in the order in which values were made.

    `made` and `read` are nodes: the op that makes the value, the first that reads it at the target.
    `post` and `wait` are places: the receive is posted before the op at `post` of the target, the
    send is waited for before the op at `wait` of the source, or after the last one. `opens_link`
    says which transfers are the first of their link.

    The host's memory is `HOST` as a source or target. It posts and waits for nothing: what goes
    there has `read` −1, and what comes back was `made` by the node of the transfer that took it.
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

    @cached_property
    def leaving(self) -> Some:
        """Those that leave a rank's memory."""
        return _where_not_host(self.source)

    @cached_property
    def arriving(self) -> Some:
        """Those that come into a rank's memory."""
        return _where_not_host(self.target)


def _where_not_host(ends: IntArray) -> Some:
    of_host = ends == HOST
    return (~of_host).nonzero()[0] if of_host.any() else slice(None)


def find_routes(arrays: OpArrays, uses: Uses, table: EffectTable, costs: Costs) -> Routes:
    """One transfer for every value read on a rank that did not make it, and those of the host.

    Links stand in the order in which the programs, one after the other, first read from them; then
    the links to and from the host, rank by rank. Receives of a link are posted in its order, so one
    is posted early if a later one needs it.
    """
    ways = _implied_ways(uses)
    if not arrays.is_plain:
        ways = ways.joined(host_ways(arrays, uses, table))
    order, opens_link = _link_order(arrays, ways)
    value, source, target, made, read, *_ = ways = Ways(*(field[order] for field in ways))
    link = opens_link.cumsum()
    post = _posts(arrays, table, ways, link)
    wait = positions.behind(arrays, made, source, arrays.schedule.buffering.send_behind)
    copy = value // arrays.schedule.num_micro_batches
    num_bytes = table.value_bytes[copy]
    duration_us = _durations_us(costs, link, copy, num_bytes, ways)
    if not arrays.is_plain:
        wait[source == HOST] = 0
        made = _made_by_transfer(arrays, ways)
    return Routes(value, source, target, made, read, post, wait, num_bytes, duration_us, opens_link)


def _implied_ways(uses: Uses) -> Ways:
    """The value that a rank reads and another one made."""
    away = uses.away
    made = uses.maker[away.value]
    known = (made >= 0).nonzero()[0]
    value, source, target, read, _, seen = (field[known] for field in away)
    return Ways(value, source, target, made[known], read, seen)


def _link_order(arrays: OpArrays, ways: Ways) -> tuple[IntArray, Flags]:
    """Link by link, on each in the order of `made`; and where links begin."""
    # HOST, −1, has the last row and column.
    num_ends = len(arrays.ops) + 1
    link = ways.source % num_ends * num_ends + ways.target % num_ends
    link_seen = np.full(num_ends * num_ends, np.iinfo(np.int64).max)
    np.minimum.at(link_seen, link, ways.seen)
    of_link = link_seen[link]
    order = (of_link * arrays.num_nodes + ways.made).argsort(kind="stable")
    return order, group_starts(of_link[order])


def _posts(arrays: OpArrays, table: EffectTable, ways: Ways, link: IntArray) -> IntArray:
    """The smallest place from each transfer to the end of its link.

    It is found for all links in one go by lifting each link above those before it. Where an op
    makes the room, the receive is not posted before it.
    """
    lift = link * (arrays.num_nodes + 1)
    place = positions.ahead(arrays, ways.read, ways.target, arrays.schedule.buffering.receive_ahead)
    if arrays.is_plain:
        lifted: IntArray = np.minimum.accumulate((place + lift)[::-1])[::-1]
        return lifted - lift
    room = Rooms.of(arrays).of_ways(table, ways)
    place = np.where(ways.target == HOST, 0, np.where(room >= 0, room, place))
    pulled = np.minimum.accumulate((place + lift)[::-1])[::-1]
    floor = np.maximum.accumulate(np.where(room >= 0, room + lift, 0))
    post: IntArray = np.maximum(pulled, floor) - lift
    return post


def _made_by_transfer(arrays: OpArrays, ways: Ways) -> IntArray:
    """What comes back from the host was made by the transfer that took it there."""
    cell = ways.value % arrays.num_cells
    outwards = (ways.target == HOST).nonzero()[0]
    taken = np.full(arrays.num_cells, -1)
    taken[cell[outwards]] = arrays.num_nodes + outwards
    made: IntArray = np.where(ways.source == HOST, taken[cell], ways.made)
    return made


def _durations_us(
    costs: Costs, link: IntArray, copy: IntArray, num_bytes: IntArray, ways: Ways
) -> IntArray:
    """Every transfer's time, asked of the costs once per link and copy of a stage."""
    key = link * (int(copy.max(initial=0)) + 1) + copy
    sample = np.full(int(key.max(initial=0)) + 1, -1)
    sample[key] = np.arange(len(key))
    times_us = np.zeros(len(sample), dtype=np.int64)
    for k in (sample >= 0).nonzero()[0].tolist():
        i = sample[k]
        ends = int(ways.source[i]), int(ways.target[i])
        times_us[k] = costs.transfer_us(int(num_bytes[i]), *ends)
    return np.take(times_us, key)
