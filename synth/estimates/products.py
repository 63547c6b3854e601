"""The matrix products of a layer one by one, in the order in which torchtitan's models have them.

Its policy `selective_ac_option = "op"` counts them: B computes every second one again. Queries,
keys and values are three products, and so are the two halves of a gated MLP two. The products of
experts are grouped and not counted, and neither is the router's, which B always computes again
(`per_op_sac_force_recompute_mm_shapes_by_fqns`).

    queries  keys  values  output   gate  up  down
    kept           kept             kept      kept
"""

from collections.abc import Iterator
from dataclasses import dataclass

from synth.estimates.layout import Layout
from synth.estimates.model_shape import ModelShape

_BF16 = 2


@dataclass(frozen=True)
class LayerProduct:
    """A product of `tokens` rows with a matrix of n × k elements on one rank.

    Attributes:
        is_needed: the backward of the layer needs the result.
    """

    tokens: float
    n: int
    k: int
    is_needed: bool = True

    @property
    def output_bytes(self) -> float:
        """Of its result."""
        return _BF16 * self.tokens * self.n


def products(shape: ModelShape, layout: Layout, *, dense: bool) -> list[LayerProduct]:
    """Return the products of a decoder layer.

    Args:
        layout: the sizes of groups and micro-batches.
        dense: of a layer without experts.
    """
    return [*_attention(shape, layout), *_mlp(shape, layout, dense=dense)]


def kept(ordered: list[LayerProduct]) -> list[LayerProduct]:
    """Return those whose results are kept."""
    return ordered[::2]


def again(ordered: list[LayerProduct]) -> list[LayerProduct]:
    """Return those that B computes again, as far as it needs them."""
    return [each for each in ordered[1::2] if each.is_needed]


def _attention(shape: ModelShape, layout: Layout) -> Iterator[LayerProduct]:
    tokens, ranks, hidden = layout.tokens, layout.tensor, shape.hidden
    query = shape.heads * shape.query_dim // ranks
    if (latent := shape.latent) is not None:
        if latent.query_rank:
            yield LayerProduct(layout.sharded_tokens, latent.query_rank, hidden)
        yield LayerProduct(tokens, query, latent.query_rank or hidden)
        yield LayerProduct(layout.sharded_tokens, latent.key_value_rank + latent.rope, hidden)
        up = shape.heads * (latent.nope + latent.value) // ranks
        yield LayerProduct(tokens, up, latent.key_value_rank)
    else:
        keys = max(1, shape.kv_heads // ranks) * shape.head_dim
        yield LayerProduct(tokens, query, hidden)
        yield LayerProduct(tokens, keys, hidden)
        yield LayerProduct(tokens, keys, hidden)
    yield LayerProduct(tokens, hidden, shape.heads * shape.value_dim // ranks)


def _mlp(shape: ModelShape, layout: Layout, *, dense: bool) -> Iterator[LayerProduct]:
    width, hidden = shape.ffn, shape.hidden
    if not dense and (experts := shape.experts) is not None:
        width = experts.shared_ffn
    if not width:
        return
    inner = width // layout.tensor
    for _ in range(2 if shape.gated else 1):
        yield LayerProduct(layout.tokens, inner, hidden)
    yield LayerProduct(layout.tokens, hidden, inner, is_needed=False)
