"""Bytes of a layer's attention on one rank, without the norm before it."""

from dataclasses import dataclass

from synth.estimates.layout import AttentionKernel, Layout, Software
from synth.estimates.model_shape import ModelShape

_BF16, _FLOAT32 = 2, 4

# Of a score of unfused attention. Kept: the softmax, and with dropout its mask and its result
# (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1). For a while in B: the gradient of the
# softmax's result, which the fused softmax overwrites, and with dropout that of dropout's result.
_KEPT, _KEPT_WITH_DROPOUT = 2, 5
_IN_B, _IN_B_WITH_DROPOUT = 2, 4


@dataclass(frozen=True)
class AttentionBytes:
    """Bytes of attention of a micro-batch: what F saves for B, and what is there for a while.

    Attributes:
        inner: queries, keys and values, of latent attention with what they are projected from.
        out: the input of the output's matrix, as it is saved for W.
        core: what only the kernels of attention save, which selective recomputation drops.
        forward: transient in F.
        backward: transient in B.
    """

    inner: float
    out: float
    core: float
    forward: float
    backward: float

    @classmethod
    def of(cls, shape: ModelShape, layout: Layout, software: Software) -> "AttentionBytes":
        """Return those of a layer of a model under a layout."""
        tokens = layout.tokens / layout.tensor
        queries, keys, values = (_BF16 * tokens * width for width in _widths(shape, layout))
        whole_out = _BF16 * tokens * shape.heads * shape.value_dim
        inner = queries + keys + values
        if (latent := shape.latent) is not None:
            compressed = 2 * latent.query_rank + 2 * latent.key_value_rank + latent.rope
            inner += _BF16 * layout.sharded_tokens * compressed
        is_narrow = software.saves_narrow(layout.precision)
        out = whole_out / 2 if is_narrow else whole_out
        forward = 0.0
        if software.attention is AttentionKernel.UNFUSED:
            scores = tokens * shape.heads * layout.seq_len
            core = (_KEPT_WITH_DROPOUT if shape.dropout else _KEPT) * scores
            backward = (_IN_B_WITH_DROPOUT if shape.dropout else _IN_B) * scores
        else:
            # The logarithms of the softmax's sums, and the result unless its matrix saves the same.
            core = _FLOAT32 * tokens * shape.heads + (whole_out if is_narrow else 0.0)
            backward = whole_out + queries + keys + values
        if layout.context > 1:
            pair = keys + values
            if software.repeats_keys:
                pair *= max(1, shape.heads // shape.kv_heads) if shape.latent is None else 1
                forward = layout.context * pair
                backward += layout.context * pair
            else:
                forward = _ring_forward(layout.context, pair, whole_out)
                backward += 4 * pair
        return cls(inner, out, core, forward, backward)


def _widths(shape: ModelShape, layout: Layout) -> tuple[int, int, int]:
    """Elements of a token's queries, keys and values, of all ranks of tensor parallelism."""
    heads = shape.heads
    if shape.latent is not None:
        return heads * shape.query_dim, heads * shape.query_dim, heads * shape.value_dim
    # Each rank has at least a head of keys and one of values.
    keys = max(shape.kv_heads, layout.tensor) * shape.head_dim
    return heads * shape.head_dim, keys, keys


def _ring_forward(context: int, pair: float, out: float) -> float:
    """The transient of F of a ring of keys and values, on the rank that needs all of them.

    Transformer Engine (`AttnFuncWithCPAndKVP2P`) keeps the pairs of all steps and the results of
    all steps until the last one, and adds up in float32; the last pair is saved in place of the
    rank's own. In B there are two buffers of a pair and of its gradient.
    """
    return (context - 1) * pair + context * out + _FLOAT32 / _BF16 * out
