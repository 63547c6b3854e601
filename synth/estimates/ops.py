"""The operations of a layer: what each multiplies, reads and sends, for one rank."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """The result of a matrix product: the output, the input's gradient, or the weight's."""

    F = "F"
    B = "B"
    W = "W"


@dataclass(frozen=True)
class Matmul:
    """`groups` products of `tokens` rows with a matrix of n × k elements, or W of such a matrix.

    Attributes:
        dtype: of the factors; accumulation is wider.
    """

    tokens: float
    n: int
    k: int
    role: Role
    dtype: str
    groups: int = 1

    @property
    def flops(self) -> float:
        """A multiply-add is two."""
        return 2 * self.tokens * self.n * self.k * self.groups


@dataclass(frozen=True)
class Attention:
    """The products of attention, by default without writing the scores (arXiv 2205.14135).

    Attributes:
        pairs: heads of this rank times sequences.
        queries: the queries of a sequence on this rank.
        keys: the keys that a query reads in the mean, so half of the sequence under a causal mask.
        query_dim: of a head's query and key.
        role: F or B.
        is_fused: without writing the scores, which B then computes again.
    """

    pairs: float
    queries: float
    keys: float
    query_dim: int
    value_dim: int
    role: Role
    is_fused: bool = True

    @property
    def flops(self) -> float:
        """Of two products in F; in B of four, and of a fifth if the scores are computed again."""
        forward = 2 * self.pairs * self.queries * self.keys * (self.query_dim + self.value_dim)
        if self.role is Role.F:
            return forward
        return (2.5 if self.is_fused else 2.0) * forward


@dataclass(frozen=True)
class Traffic:
    """Bytes that kernels read and write, in `kernels` launches."""

    num_bytes: float
    kernels: int = 1


class ExchangeKind(StrEnum):
    """An exchange in a group of ranks."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"


@dataclass(frozen=True)
class GroupExchange:
    """An exchange of a tensor that has `num_bytes` as a whole (all-to-all: on each rank).

    Attributes:
        copies: of a token in an all-to-all, of which those for one rank are sent once, and those
            for one node cross the network once; 1: each is sent.
    """

    kind: ExchangeKind
    num_bytes: float
    nodes: int
    ranks_per_node: int
    copies: int = 1


Operation = Matmul | Attention | Traffic | GroupExchange
