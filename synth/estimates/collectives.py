"""Times of collectives: latency and bandwidth by nodes and ranks per node.

Inside a node the shares of the links and the latencies are those that AutoParallel's authors fitted
to nccl-tests on H100, and A100, H200 and B200 of stas00/ml-engineering agree within a tenth. Across
nodes a ring moves at most what the network interfaces of a node's ranks carry together, and a tree
has the lower latency for small tensors (NCCL's tuner values, meta-pytorch/autoparallel@a54c252).
Of algorithms the fastest counts. Each is latency + bytes / bandwidth, so a larger tensor never
takes less time.
"""

from math import ceil, log2

from synth.estimates.device import Device
from synth.estimates.ops import ExchangeKind, GroupExchange
from synth.profile.links import Link

# Bus bandwidth as a share of a device's links, and latency in µs, by ranks in the node.
_IN_NODE = {2: (0.60, 8.0), 4: (0.72, 17.0), 8: (0.77, 30.0)}
_ALL_TO_ALL_SHARE, _ALL_TO_ALL_US = 0.71, 30.0
_SEND_SHARE, _SEND_US = 0.78, 6.0

# Across nodes: of the interfaces, the share that large messages reach; latency of a ring in µs per
# node, at one rank a node and for each more; of a tree in µs per level.
_NETWORK_SHARE = 0.83
_RING_US, _RING_RANK_US, _TREE_US = 12.0, 3.4, 22.0
_TREE_SHARE = 0.65
_ALL_TO_ALL_NODE_US, _SEND_NETWORK_US = 9.0, 17.0


def collective_us(device: Device, call: GroupExchange) -> float:
    """The time of a collective; one rank exchanges nothing."""
    ranks = call.nodes * call.ranks_per_node
    if ranks < 2:
        return 0.0
    if call.kind is ExchangeKind.SEND:
        return _send_us(device, call)
    if call.kind is ExchangeKind.ALL_TO_ALL:
        return _all_to_all_us(device, call)
    passes = 2 if call.kind is ExchangeKind.ALL_REDUCE else 1
    moved = passes * call.num_bytes * (ranks - 1) / ranks
    share, latency = _in_node(call.ranks_per_node)
    inside = share * device.link_bytes_per_s
    if call.nodes == 1:
        return latency + moved / inside * 1e6
    network = device.nic_bytes_per_s * call.ranks_per_node
    outside = min(_NETWORK_SHARE * network, inside) if call.ranks_per_node > 1 else network * 0.83
    hops = _RING_US + _RING_RANK_US * (call.ranks_per_node - 1)
    ring = hops * call.nodes + moved / outside * 1e6
    if call.kind is not ExchangeKind.ALL_REDUCE:
        return ring
    levels = ceil(log2(call.nodes))
    tree = latency + 2 * _TREE_US * levels + moved / (_TREE_SHARE * outside) * 1e6
    return min(ring, tree)


def neighbour_link(device: Device, nodes: int, factor: float) -> Link:
    """The link to a neighbour, as latency and bandwidth of a send."""
    empty = GroupExchange(ExchangeKind.SEND, 0, nodes, 2)
    large = GroupExchange(ExchangeKind.SEND, 1e9, nodes, 2)
    latency = collective_us(device, empty)
    per_s = 1e9 / (collective_us(device, large) - latency) * 1e6
    return Link(
        latency_us=round(factor * latency, 3), bandwidth_bytes_per_s=round(per_s / factor, 0)
    )


def _in_node(ranks: int) -> tuple[float, float]:
    """Return the share and the latency of the next larger group that was measured."""
    size = next((size for size in _IN_NODE if ranks <= size), 8)
    return _IN_NODE[size]


def _all_to_all_us(device: Device, call: GroupExchange) -> float:
    ranks = call.nodes * call.ranks_per_node
    near = call.num_bytes * (call.ranks_per_node - 1) / ranks * _reached(ranks, call.copies)
    inside = near / (_ALL_TO_ALL_SHARE * device.link_bytes_per_s) * 1e6
    if call.nodes == 1:
        return _ALL_TO_ALL_US + inside
    far = call.num_bytes * (1 - 1 / call.nodes) * _reached(call.nodes, call.copies)
    share = 1 - 0.44 / call.nodes
    outside = far / (share * device.nic_bytes_per_s) * 1e6
    return _ALL_TO_ALL_US + _ALL_TO_ALL_NODE_US * call.nodes + max(inside, outside)


def _reached(places: int, copies: int) -> float:
    """The places that a token reaches for each of its copies, of places that are alike likely."""
    return places * (1 - (1 - 1 / places) ** copies) / copies


def _send_us(device: Device, call: GroupExchange) -> float:
    if call.nodes == 1:
        return _SEND_US + call.num_bytes / (_SEND_SHARE * device.link_bytes_per_s) * 1e6
    return _SEND_NETWORK_US + call.num_bytes / (_NETWORK_SHARE * device.nic_bytes_per_s) * 1e6
