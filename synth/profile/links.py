"""Links between ranks and to hosts: the latency and the bandwidth of transfers."""

from functools import cached_property
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from synth.records.field_types import TimeUs, Whole
from synth.records.record import BriefRecord, Record

# The least is far below any link, and still no time overflows.
_Bandwidth = Annotated[float, Field(ge=1e-30)]

# Of as many ranks as a placement may have.
MOST_RANKS = 1 << 16
# As many copies of a stage as the tokens of ops can name.
MOST_COPIES = 1000
_Rank = Annotated[Whole, Field(ge=0, lt=MOST_RANKS)]
_RankCount = Annotated[Whole, Field(ge=1, le=MOST_RANKS)]


class Link(Record):
    """A directed link: a transfer takes latency + bytes / bandwidth (None: unlimited)."""

    latency_us: TimeUs = 0.0
    bandwidth_bytes_per_s: _Bandwidth | None = None

    def transfer_us(self, num_bytes: int) -> int:
        """The time to move `num_bytes`, rounded to whole microseconds."""
        bandwidth = self.bandwidth_bytes_per_s
        return round(self.latency_us + (num_bytes / bandwidth * 1e6 if bandwidth else 0.0))

    @property
    def is_free(self) -> bool:
        """True if transfers take no time."""
        return not self.latency_us and self.bandwidth_bytes_per_s is None


class PairLink(Link):
    """The link from one given rank to another, if it differs from the default."""

    source: _Rank
    target: _Rank

    @model_validator(mode="after")
    def _between_two(self) -> Self:
        if self.source == self.target:
            raise ValueError(
                f"source and target are both rank {self.source}; a link is between two ranks"
            )
        return self


class NodeLink(Link):
    """The link between ranks of different nodes, each of `ranks_per_node` consecutive ranks."""

    ranks_per_node: _RankCount


class Links(BriefRecord):
    """All links between ranks: a default, those between nodes, and single pairs that differ.

    Of several kinds of nodes (hosts of 8 ranks, racks of 32) the largest that does not contain both
    ranks counts. `host` is between a rank and its host's memory; every rank has one such link in
    each direction.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("nodes", "host")

    default: Link = Link()
    nodes: tuple[NodeLink, ...] = ()
    pairs: tuple[PairLink, ...] = ()
    host: Link | None = None

    @model_validator(mode="after")
    def _pairs_once(self) -> Self:
        if len(self._by_ends) < len(self.pairs):
            ends = [(pair.source, pair.target) for pair in self.pairs]
            source, target = next(pair for pair in ends if ends.count(pair) > 1)
            raise ValueError(
                f"pairs has two links from rank {source} to rank {target}; give one for each "
                f"direction"
            )
        return self

    @model_validator(mode="after")
    def _nodes_once(self) -> Self:
        sizes = [node.ranks_per_node for node in self.nodes]
        if len(set(sizes)) < len(sizes):
            twice = next(size for size in sizes if sizes.count(size) > 1)
            raise ValueError(f"nodes has two links between nodes of {twice} ranks; give one")
        return self

    @property
    def are_free(self) -> bool:
        """True if transfers between ranks take no time."""
        return all(link.is_free for link in (self.default, *self.nodes, *self.pairs))

    def between(self, source: int, target: int) -> Link:
        """The link from rank `source` to rank `target`."""
        if (pair := self._by_ends.get((source, target))) is not None:
            return pair
        for node in self._largest_nodes_first:
            if source // node.ranks_per_node != target // node.ranks_per_node:
                return node
        return self.default

    # The underscore keeps the cached value out of `dict(self)`, that is, out of `replace`.
    @cached_property
    def _by_ends(self) -> dict[tuple[int, int], PairLink]:
        """The pairs by source and target."""
        return {(pair.source, pair.target): pair for pair in self.pairs}

    @cached_property
    def _largest_nodes_first(self) -> list[NodeLink]:
        return sorted(self.nodes, key=lambda node: -node.ranks_per_node)
