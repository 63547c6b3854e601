"""`--link`: latency and bandwidth between ranks, instead of the profile's links."""

import re
from collections.abc import Sequence

from pydantic import ValidationError

from synth.errors import SynthError
from synth.profile.links import Link, Links, NodeLink
from synth.records.record import describe
from synth.system.messages import talk
from synth.units import parse_bandwidth, parse_seconds, shown

_EXAMPLES = "§link 10us,25GB/s, or between nodes of 8 ranks §link 8:20us,200Gb/s"


def read_links(given: Sequence[str], measured: Links) -> Links:
    """Replace the links between ranks by those given; that to the host's memory stays.

    `10us,25GB/s` is between all ranks, by default as it was measured, and `8:20us,200Gb/s` between
    ranks of different nodes of 8.

    Raises:
        SynthError: a link cannot be parsed, or two links are for the same ranks.
    """
    default, nodes = measured.default, list[NodeLink]()
    seen: dict[int | None, str] = {}
    for text in given:
        link = _read(text)
        size = link.ranks_per_node if isinstance(link, NodeLink) else None
        if size in seen:
            raise SynthError(
                f"§link {shown(seen[size])} and §link {shown(text)} are for the same ranks; "
                f"give one of them"
            )
        seen[size] = text
        if isinstance(link, NodeLink):
            nodes.append(link)
        else:
            default = link
    if measured.pairs:
        talk("what the profile says of links between single ranks is left out")
    nodes.sort(key=lambda node: node.ranks_per_node)
    return Links(default=default, nodes=tuple(nodes), host=measured.host)


def _read(text: str) -> Link:
    """Return the ranks per node (None: between all ranks), and the link."""
    size, colon, rest = text.rpartition(":")
    latency, comma, bandwidth = rest.partition(",")
    try:
        latency_us = round(1e6 * parse_seconds(_with_unit(latency)), 3)
        rate = parse_bandwidth(bandwidth) if comma else None
        link = Link(latency_us=latency_us, bandwidth_bytes_per_s=rate)
        return NodeLink(ranks_per_node=_read_ranks(size), **dict(link)) if colon else link
    except (SynthError, ValidationError) as error:
        why = describe(error) if isinstance(error, ValidationError) else error
        raise SynthError(f"§link {shown(text)}: {why}; write {_EXAMPLES}") from None


def _read_ranks(text: str) -> int:
    found = re.fullmatch(r"\s*([1-9]\d{0,4})\s*", text, re.ASCII)
    if found is None:
        raise SynthError(f"{shown(text)} is no number of ranks of a node, 1 or more")
    return int(found[1])


def _with_unit(text: str) -> str:
    """Refuse a latency without unit, which could be seconds or microseconds."""
    if text.strip().replace(".", "").isdecimal():
        raise SynthError(f"latency {shown(text)} has no unit, such as us or ms")
    return text
