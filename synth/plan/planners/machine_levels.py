"""The machines as PipeDream's planner sees them: a tree of components, joined level by level."""

from typing import NamedTuple

from synth.errors import SynthError
from synth.profile.links import Link, Links


class MachineLevel(NamedTuple):
    """One level of the tree, the lowest of which joins ranks.

    Attributes:
        machines: the number of components of the level below that it joins.
        bytes_per_us: the bandwidth between them; infinite if transfers take no time.
    """

    machines: int
    bytes_per_us: float


def machine_levels(links: Links, num_ranks: int) -> list[MachineLevel]:
    """Read the levels off the links, the lowest first; latencies are not part of the model.

    Raises:
        SynthError: single pairs of ranks have links of their own, or nodes are not of equally many
            ranks.
    """
    if links.pairs:
        raise SynthError(
            "the profile has links of single pairs of ranks, and PipeDream's planner knows one "
            "bandwidth for each level of nodes; give §link, or links of nodes"
        )
    found: list[MachineLevel] = []
    size, link = 1, links.default
    for node in sorted(links.nodes, key=lambda node: node.ranks_per_node):
        if node.ranks_per_node >= num_ranks:
            break
        found.append(_level(size, node.ranks_per_node, link))
        size, link = node.ranks_per_node, node
    return [*found, _level(size, num_ranks, link)]


def _level(size: int, joined: int, link: Link) -> MachineLevel:
    """The level that joins components of `size` ranks to one of `joined`."""
    if joined % size:
        raise SynthError(
            f"{joined} ranks are no whole number of nodes of {size}, and PipeDream's planner needs "
            f"nodes of equally many ranks; give a multiple of {size} ranks"
        )
    bandwidth = link.bandwidth_bytes_per_s
    return MachineLevel(joined // size, float("inf") if bandwidth is None else bandwidth / 1e6)
