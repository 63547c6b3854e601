"""The sizes of a language model that its cost depends on, and its number of parameters."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from synth.records.field_types import PlainText
from synth.records.record import Record

_Size = Annotated[int, Field(gt=0, le=1 << 31)]
_Count = Annotated[int, Field(ge=0, le=1 << 31)]


class LatentAttention(Record):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Queries and keys have `nope` elements without and `rope` with a rotary embedding a head, values
    have `value`; `query_rank` 0: queries are not compressed.
    """

    query_rank: _Count
    key_value_rank: _Size
    nope: _Size
    rope: _Size
    value: _Size


class Experts(Record):
    """The experts of all layers but the `dense` ones, which are given by number.

    `ffn` is the width of an expert, `shared_ffn` that of all experts together that every token
    goes through (0: none), `further` other biases of such a layer, and vectors.
    """

    count: _Size
    per_token: _Size
    ffn: _Size
    shared_ffn: _Count = 0
    further: _Count = 0
    dense: tuple[_Count, ...] = ()

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.per_token > self.count:
            raise ValueError(f"{self.per_token} experts per token of {self.count}")
        return self


class ModelShape(Record):
    """A transformer: embedding, layers of attention and MLP, final norm, head and loss.

    `ffn` is the width of the MLP of dense layers; gated MLPs have two matrices of it before the
    product. `norms` are those of a layer. `mtp_layers` are the layers of multi-token prediction,
    each with a projection and a pass of the head of its own (DeepSeek-V3, arXiv 2412.19437, 2.2).
    """

    name: PlainText
    layers: _Size
    hidden: _Size
    ffn: _Size
    heads: _Size
    kv_heads: _Size
    head_dim: _Size
    vocab: _Size
    gated: bool = True
    tied: bool = False
    biases: bool = Field(default=False, description="of every matrix")
    attention_biases: bool = Field(default=False, description="of queries, keys and values")
    mlp_biases: bool = Field(default=False, description="of the matrices of MLPs")
    head_norms: bool = Field(default=False, description="norms of the queries and keys of a head")
    norms: _Size = 2
    norm_vectors: Annotated[int, Field(ge=0, le=2)] = Field(
        default=1, description="scale and bias of a norm; 0: norms count as `further`"
    )
    positions: _Count = Field(default=0, description="learned positions; 0: rotary or none")
    dropout: bool = False
    causal: bool = Field(default=True, description="attends to no later tokens")
    window: _Count = Field(default=0, description="tokens that a local layer attends to; 0: all")
    window_layers: float = Field(default=0.0, ge=0, le=1, description="share of local layers")
    chunked: bool = Field(default=False, description="windows begin every `window` tokens")
    latent: LatentAttention | None = None
    experts: Experts | None = None
    mtp_layers: _Count = 0
    further: _Count = Field(default=0, description="other biases and norms of a layer")
    further_ends: _Count = Field(default=0, description="those of the embedding and the head")
    left_out: tuple[str, ...] = Field(default=(), description="configs of parts beside the text's")

    @property
    def query_dim(self) -> int:
        """The elements of a head's query and key."""
        return self.head_dim if self.latent is None else self.latent.nope + self.latent.rope

    @property
    def value_dim(self) -> int:
        """The elements of a head's value."""
        return self.head_dim if self.latent is None else self.latent.value

    def is_dense(self, layer: int) -> bool:
        """True of a layer without experts, which is given by number."""
        return self.experts is None or layer in self.experts.dense

    @property
    def dense_layers(self) -> int:
        """The number of layers without experts."""
        return sum(self.is_dense(layer) for layer in range(self.layers))

    @property
    def attention_elements(self) -> int:
        """Of the matrices of a layer's attention."""
        hidden, heads = self.hidden, self.heads
        if (latent := self.latent) is not None:
            rank, key_value = latent.query_rank, latent.key_value_rank
            query = heads * self.query_dim
            queries = rank * (hidden + query) if rank else hidden * query
            down = hidden * (key_value + latent.rope)
            up = key_value * heads * (latent.nope + latent.value)
            return queries + down + up + heads * latent.value * hidden
        return 2 * hidden * (heads + self.kv_heads) * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Of the attention of a layer, with the norms in it."""
        if (latent := self.latent) is not None:
            return self.attention_elements + latent.query_rank + latent.key_value_rank
        inner = (self.heads + 2 * self.kv_heads) * self.head_dim
        biases = inner if self.biases or self.attention_biases else 0
        norms = 2 * self.head_dim if self.head_norms else 0
        return self.attention_elements + biases + (self.hidden if self.biases else 0) + norms

    def wide_parameters(self, *, dense: bool) -> int:
        """Of a layer, those of norms and of the router, which are never in narrow dtypes."""
        found = self.norms * self.norm_parameters + self.further
        if self.experts is not None and not dense:
            found += self.hidden * self.experts.count + self.experts.further
        return found

    def replicated_parameters(self, *, dense: bool) -> int:
        """Of a layer, those that every rank of tensor parallelism has whole.

        Norms, the router, and the down projections of latent attention.
        """
        found = self.wide_parameters(dense=dense)
        if (latent := self.latent) is not None:
            rank, key_value = latent.query_rank, latent.key_value_rank
            found += rank * (self.hidden + 1) + self.hidden * (key_value + latent.rope) + key_value
        return found

    def mlp_parameters(self, ffn: int) -> int:
        """Of an MLP of the given width."""
        inner = 2 if self.gated else 1
        biases = inner * ffn + self.hidden if self.biases or self.mlp_biases else 0
        return (inner + 1) * self.hidden * ffn + biases

    @property
    def expert_parameters(self) -> int:
        """Of all experts of a layer that are not shared."""
        experts = self.experts
        return 0 if experts is None else experts.count * self.mlp_parameters(experts.ffn)

    @property
    def norm_parameters(self) -> int:
        """Of a norm: its scale, and its bias if there are any."""
        return self.hidden * (2 if self.biases else self.norm_vectors)

    def layer_parameters(self, *, dense: bool) -> int:
        """Of a whole decoder layer.

        Args:
            dense: a layer without experts.
        """
        own = self.attention_parameters + self.norms * self.norm_parameters + self.further
        if dense or self.experts is None:
            return own + self.mlp_parameters(self.ffn)
        shared = self.experts.shared_ffn
        router = self.hidden * self.experts.count
        more = self.mlp_parameters(shared) if shared else 0
        return own + router + more + self.expert_parameters + self.experts.further

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding of tokens and positions."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the final norm and the head; a tied matrix counts with the embedding."""
        own = self.norm_parameters + self.further_ends
        return own + (0 if self.tied else self.vocab * self.hidden)

    @property
    def parameters(self) -> int:
        """Of the whole model, without layers of multi-token prediction."""
        dense = self.dense_layers
        return (
            self.embedding_parameters
            + dense * self.layer_parameters(dense=True)
            + (self.layers - dense) * self.layer_parameters(dense=False)
            + self.head_parameters
        )

    @property
    def parameters_of_a_token(self) -> int:
        """Of those, without the experts that a token does not go through."""
        if (experts := self.experts) is None:
            return self.parameters
        idle = (experts.count - experts.per_token) * self.mlp_parameters(experts.ffn)
        return self.parameters - (self.layers - self.dense_layers) * idle


def gpt(
    name: str, *, layers: int, hidden: int, heads: int, vocab: int, positions: int = 0
) -> ModelShape:
    """Return a GPT as Megatron-LM trains it: 12h² + 13h parameters a layer (arXiv 2104.04473)."""
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=vocab,
        gated=False,
        tied=True,
        biases=True,
        positions=positions,
        dropout=True,
    )
