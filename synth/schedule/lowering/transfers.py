"""All transfers between ranks: their order on the links, and the places of their two ends."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.costs.costs import HOST, Costs, IntArray
from synth.op_kinds import OpKind
from synth.schedule.arrays import Flags, OpArrays
from synth.schedule.lowering import positions
from synth.schedule.lowering.def_use import DefUse, group_starts
from synth.schedule.lowering.effect_table import EffectTable
from synth.schedule.lowering.effects import ACT, MOVED_BACK, MOVED_OUT, VALUE_CODES
from synth.schedule.lowering.offload import MoveBuffers, host_transfers, left_with_host
from synth.schedule.lowering.required_transfers import RequiredTransfers
from synth.schedule.lowering.visit_transfers import weight_transfers
from synth.schedule.lowering.weight_visits import WeightVisits
from synth.schedule.weight_flow import Route

# Indices into an array, or all of it.
Index = IntArray | slice


@dataclass(frozen=True, eq=False)
class TransferTable:
    """All transfers as arrays, link by link, on each link in the order in which values were made.

    `made` and `read` are nodes: the op that makes the value, and the first op that reads it at the
    target. `post` and `wait` are places: the receive is posted before the op at `post` of the
    target, and the send is waited for before the op at `wait` of the source, or after the last op.
    `opens_link` marks the first transfer of each link. `held` is the value whose copy at the source
    is held until the wait: the transferred one; for weights that are handed on, those of the visit
    before; −1: none, for weights that their home keeps. `sent` is the node of the source behind
    which the transfer is sent, or, for weights, before which. `made` is the transfer that brought
    handed-on weights, and −1 for those that their home keeps.

    The host's memory is `HOST` as a source or target, and neither posts nor waits. A transfer to it
    has `read` −1; a transfer from it was `made` by the node of the transfer to it.
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
    held: IntArray
    sent: IntArray

    def __len__(self) -> int:
        """Number of transfers."""
        return len(self.value)

    @cached_property
    def leaving(self) -> Index:
        """The transfers that leave a rank's memory."""
        return _where_not_host(self.source)

    @cached_property
    def arriving(self) -> Index:
        """The transfers that enter a rank's memory."""
        return _where_not_host(self.target)


def _where_not_host(ends: IntArray) -> Index:
    of_host = ends == HOST
    return (~of_host).nonzero()[0] if of_host.any() else slice(None)


def find_transfers(
    arrays: OpArrays,
    def_use: DefUse,
    table: EffectTable,
    costs: Costs,
    visits: WeightVisits | None = None,
) -> TransferTable:
    """Make one transfer for every value read on a rank that did not make it, and the host's.

    Links are ordered by the first read from them, program after program; then come the links to and
    from the host, rank by rank. Receives of a link are posted in its order, so one is posted early
    if a later one needs it.
    """
    required, held = _required_transfers(arrays, def_use, table, visits)
    order, opens_link = _link_order(arrays, required, _turns(required, held, visits))
    value, source, target, made, read, *_ = required = RequiredTransfers(
        *(field[order] for field in required)
    )
    held, sent = held[order], made
    link = opens_link.cumsum()
    post = _posts(arrays, table, required, link)
    wait = positions.behind(arrays, made, source, arrays.schedule.buffering.send_behind)
    copy = value // arrays.schedule.num_micro_batches
    num_bytes = table.value_bytes[copy]
    if table.own_bytes is not table.value_bytes:
        wait = np.minimum(wait, _before_backward(arrays, table, value, source))
    duration_us = _durations_us(costs, link, copy, num_bytes, required)
    if not arrays.is_plain:
        wait[source == HOST] = 0
        made = _made_by_transfer(arrays, table, required)
    if visits is not None:
        made = np.where(held == value, made, _brought_by(arrays, value, held))
        lengths = np.diff(arrays.first_node)
        wait = np.where(held >= 0, wait, lengths[source])
    return TransferTable(
        value,
        source,
        target,
        made,
        read,
        post,
        wait,
        num_bytes,
        duration_us,
        opens_link,
        held,
        sent,
    )


def _before_backward(
    arrays: OpArrays, table: EffectTable, value: IntArray, source: IntArray
) -> IntArray:
    """The place of the source's B or BW for sends of memory that it frees, else the program's end.

    Its gradient comes from the ranks that the output was sent to, so there is nothing to wait for.
    """
    places = np.diff(arrays.first_node)[source]
    copy = value // arrays.schedule.num_micro_batches
    is_shared = table.own_bytes[copy] < table.value_bytes[copy]
    is_shared &= value // table.num_cells == VALUE_CODES[ACT]
    backward = np.full(table.num_cells, arrays.num_nodes)
    nodes = arrays.of_kinds(OpKind.B, OpKind.BW).nonzero()[0]
    backward[arrays.cells[nodes]] = arrays.begins_of_pairs(nodes)
    first = np.array(arrays.first_node)[source[is_shared]]
    places[is_shared] = backward[value[is_shared] % table.num_cells] - first
    return places


def _required_transfers(
    arrays: OpArrays, def_use: DefUse, table: EffectTable, visits: WeightVisits | None
) -> tuple[RequiredTransfers, IntArray]:
    """All transfers, in no order, and the value that each of them holds at its source."""
    required = _implied_transfers(arrays, def_use)
    if not arrays.is_plain:
        required = left_with_host(arrays, required)
        required = required.joined(host_transfers(arrays, def_use, table))
    if visits is None:
        return required, required.value
    of_weights, relayed = weight_transfers(arrays, visits)
    return required.joined(of_weights), np.concatenate([required.value, relayed])


def _turns(required: RequiredTransfers, held: IntArray, visits: WeightVisits | None) -> IntArray:
    """Keys that order the transfers of a link.

    A link serves transfers in the order in which their values were made or, where weights are sent
    from rank to rank, in which they are read, as weights are there from the start; of those that
    one op reads, weights come before a sum of gradients, which has yet to be made. A link from the
    host serves them in the order in which they are asked for.
    """
    on_links = visits is not None and visits.flow.weights != Route.GATHER
    is_read = on_links & (required.source != HOST) & (required.target != HOST)
    turn = np.where(is_read, required.read, required.made)
    holds_own_value = is_read & (held == required.value)  # not so with weights: they come first
    keys: IntArray = 2 * turn + holds_own_value
    return keys


def _brought_by(arrays: OpArrays, value: IntArray, held: IntArray) -> IntArray:
    """The transfer that brought the held value to the source, or −1."""
    brought = np.full(max(int(value.max(initial=0)), int(held.max(initial=0))) + 2, -1)
    brought[value] = arrays.num_nodes + np.arange(len(value))
    found: IntArray = brought[held]
    return found


def _implied_transfers(arrays: OpArrays, def_use: DefUse) -> RequiredTransfers:
    """The transfers of values that one rank makes and another one reads.

    What F and BW make that run at once is there when both have ended.
    """
    remote_reads = def_use.remote_reads
    made = arrays.ends_of_pairs(def_use.maker[remote_reads.value])
    known = (made >= 0).nonzero()[0]
    value, source, target, read, _, seen = (field[known] for field in remote_reads)
    return RequiredTransfers(value, source, target, made[known], read, seen)


def _link_order(
    arrays: OpArrays, required: RequiredTransfers, turn: IntArray
) -> tuple[IntArray, Flags]:
    """The order of transfers, link by link and by `turn`, and a mask of the first of each link."""
    # HOST, −1, has the last row and column.
    num_ends = len(arrays.ops) + 1
    link = required.source % num_ends * num_ends + required.target % num_ends
    link_seen = np.full(num_ends * num_ends, np.iinfo(np.int64).max)
    np.minimum.at(link_seen, link, required.seen)
    of_link = link_seen[link]
    order = (of_link * 2 * arrays.num_nodes + turn).argsort(kind="stable")
    return order, group_starts(of_link[order])


def _posts(
    arrays: OpArrays, table: EffectTable, required: RequiredTransfers, link: IntArray
) -> IntArray:
    """The place of each receive: the smallest from its transfer to the end of its link.

    A running minimum finds it for all links at once, with each link lifted above those before it.
    If an op allocates the buffer, the receive is not posted before that op.
    """
    lift = link * (arrays.num_nodes + 1)
    place = positions.ahead(
        arrays, required.read, required.target, arrays.schedule.buffering.receive_ahead
    )
    if arrays.is_plain:
        lifted: IntArray = np.minimum.accumulate((place + lift)[::-1])[::-1]
        return lifted - lift
    buffer_place = MoveBuffers.of(arrays).places_of(table, required)
    place = np.where(required.target == HOST, 0, np.where(buffer_place >= 0, buffer_place, place))
    pulled = np.minimum.accumulate((place + lift)[::-1])[::-1]
    floor = np.maximum.accumulate(np.where(buffer_place >= 0, buffer_place + lift, 0))
    post: IntArray = np.maximum(pulled, floor) - lift
    return post


def _made_by_transfer(
    arrays: OpArrays, table: EffectTable, required: RequiredTransfers
) -> IntArray:
    """A transfer from the host was made by the transfer to it; −1 for weights, which it keeps."""
    kind, cell = np.divmod(required.value, arrays.num_cells)
    outwards = (required.target == HOST).nonzero()[0]
    left_by = np.full(table.num_values, -1)
    left_by[required.value[outwards]] = arrays.num_nodes + outwards
    out = VALUE_CODES[MOVED_OUT] * arrays.num_cells + cell
    left_as = np.where(kind == VALUE_CODES[MOVED_BACK], out, required.value)
    made: IntArray = np.where(required.source == HOST, left_by[left_as], required.made)
    return made


def _durations_us(
    costs: Costs, link: IntArray, copy: IntArray, num_bytes: IntArray, required: RequiredTransfers
) -> IntArray:
    """Every transfer's time, computed once per link and stage copy."""
    key = link * (int(copy.max(initial=0)) + 1) + copy
    sample = np.full(int(key.max(initial=0)) + 1, -1)
    sample[key] = np.arange(len(key))
    times_us = np.zeros(len(sample), dtype=np.int64)
    for k in (sample >= 0).nonzero()[0].tolist():
        i = sample[k]
        ends = int(required.source[i]), int(required.target[i])
        times_us[k] = costs.transfer_us(int(num_bytes[i]), *ends)
    return np.take(times_us, key)
