"""Bytes of the parts of a model on one rank, by formula.

Activations of a decoder layer after Korthikanti et al. 2022 (arXiv 2205.05198, section 4), whose
sbh(34 + 5as/h) are the case of an MLP of 4h, unfused attention and dropout, extended by gated MLPs,
grouped and latent attention, experts and narrow dtypes. The input of a layer counts with the layer
before it, whose output it is.
"""

from dataclasses import dataclass
from functools import cached_property

from synth.estimates.attention_memory import AttentionBytes
from synth.estimates.layout import Layout, Precision, Recompute, Sharding, Software
from synth.estimates.model_shape import ModelShape
from synth.estimates.products import kept, products
from synth.profile.optimizer import OptimizerSpec

_BF16, _FLOAT32, _INT64 = 2, 4, 8

# Of an element of a matrix in narrow dtypes, straight and turned; of float4 with a scale of a byte
# for 16 of them.
_CAST_TWICE = {Precision.FP8: 2.0, Precision.FP4: 1.125}


@dataclass(frozen=True)
class States:
    """Bytes of parameters, gradients and optimizer state on a rank.

    Attributes:
        shared: parameters of the rank before they are sharded, of all but experts.
        kept: the share of them whose optimizer state is on the rank.
        cast_bytes: of weights that are kept in a narrow dtype beside the parameters.
        narrow: of both, the parameters that are kept and gathered in float8: all experts, and
            others; 0: all are in bfloat16.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    shared: float
    experts: float
    kept: float
    cast_bytes: int = 0
    narrow: float = 0.0

    @property
    def static_bytes(self) -> int:
        """All that is there between the steps, or between the micro-batches of a step."""
        own = self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes
        return own + self.cast_bytes

    @property
    def gathered_bytes(self) -> tuple[float, float]:
        """Of the shared parameters and of those of experts, as they are gathered."""
        if not self.narrow:
            return _BF16 * self.shared, _BF16 * self.experts
        # A byte less of each; the scales, one of 4 bytes for each matrix, do not count.
        return _BF16 * self.shared - (self.narrow - self.experts), self.experts

    @property
    def whole_bytes(self) -> float:
        """Of all parameters, as they are gathered."""
        return sum(self.gathered_bytes)


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes of a micro-batch on a rank: what is saved for B, and for W, and the largest transients.

    Attributes:
        saved: F's, without input and output.
        saved_for_w: what W needs after B, without input, output and the output's gradient.
        forward: transient in F, beside what it saves.
        backward: transient in B.
        weight: transient in W: the gradient of the largest matrix before it is added.
        both: transient in B where W follows at once, so that nothing waits for it.
    """

    saved: float
    saved_for_w: float
    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    both: float = 0.0


@dataclass(frozen=True)
class MemoryOf:
    """The bytes of a model's parts under a layout."""

    shape: ModelShape
    layout: Layout
    software: Software
    optimizer: OptimizerSpec

    @property
    def boundary(self) -> int:
        """The output of a layer, as it goes to the next rank."""
        return round(_BF16 * self.layout.sharded_tokens * self.shape.hidden)

    @cached_property
    def _row(self) -> int:
        """Of an element of a matrix's input, as it is saved for W."""
        return 1 if self.software.saves_narrow(self.layout.precision) else _BF16

    def states(self, shared: float, experts: float = 0.0, narrow: float = 0.0) -> States:
        """The states of parameters, whose numbers are those of the rank.

        Args:
            shared: that all data-parallel ranks have.
            experts: that only those with the same experts have.
            narrow: of both, those of matrices with narrow factors.
        """
        number = shared + experts
        kept = 1.0
        layout = self.layout
        if layout.sharding is not Sharding.NONE and number:
            kept = shared / number / layout.state_ranks
            kept += experts / number / layout.expert_state_ranks
        whole = kept if layout.sharding is Sharding.FSDP else 1.0
        count = round(number)
        in_float8 = narrow if layout.narrow_gather else 0.0
        return States(
            round(whole * (_BF16 * count - in_float8)),
            round(whole * self.optimizer.gradient_bytes(count, _BF16)),
            round(kept * self.optimizer.state_bytes(count, _BF16)),
            shared,
            experts,
            kept,
            self._cast_bytes(narrow),
            in_float8,
        )

    def _cast_bytes(self, narrow: float) -> int:
        """Of casts of weights that are kept; of weights that are gathered none are.

        Of parameters in float8 the turned ones alone are kept beside them.
        """
        precision, is_gathered = self.layout.precision, self.layout.sharding is Sharding.FSDP
        is_kept = self.software.saves_narrow(precision) and not is_gathered
        own = 1.0 if self.layout.narrow_gather else 0.0
        return round((_CAST_TWICE[precision] - own) * narrow) if is_kept else 0

    def of(self, kind: str) -> tuple[States, ActivationBytes]:
        """Of a kind of layer: embedding, block, moe_block, mtp or head."""
        if kind == "embedding":
            return self.embedding()
        if kind == "head":
            return self.head()
        if kind == "mtp":
            return self.multi_token()
        dense = kind == "block"
        return self.decoder_states(dense=dense), self.decoder(dense=dense)

    def decoder_states(self, *, dense: bool) -> States:
        """Of a decoder layer."""
        shape, layout = self.shape, self.layout
        experts = 0 if dense else shape.expert_parameters
        replicated = shape.replicated_parameters(dense=dense)
        split = shape.layer_parameters(dense=dense) - experts - replicated
        if shape.latent is None:
            # Each rank has at least a head of keys and one of values.
            more = max(0, layout.tensor - shape.kv_heads)
            split += 2 * more * shape.head_dim * shape.hidden
        shared, own = split / layout.tensor + replicated, experts / layout.expert_ranks
        return self.states(shared, own, shared + own - shape.wide_parameters(dense=dense))

    def decoder(self, *, dense: bool) -> ActivationBytes:
        """Of a decoder layer, under the layout's recomputation unless that is of whole layers.

        B frees what the MLP saved before it comes to attention, unless W needs it.
        """
        shape, layout = self.shape, self.layout
        tokens, between = layout.tokens / layout.tensor, layout.sharded_tokens
        hidden, recompute = shape.hidden, layout.recompute
        attention = AttentionBytes.of(shape, layout, self.software)
        mlp = self._mlp if dense or shape.experts is None else self._experts
        more, more_for_w, widest = mlp(tokens)
        norm = self._row * between * hidden
        residual = _BF16 * between * hidden
        masks = 2 * between * hidden if shape.dropout else 0
        rest = attention.inner + attention.out + 2 * norm + residual + masks
        whole = rest + attention.core + more
        for_w = attention.inner + attention.out + 2 * norm + residual + more_for_w
        gathered = _BF16 * layout.tokens * hidden if layout.tensor > 1 else 0.0
        saved, again, forward = whole, 0.0, max(gathered, attention.forward - more)
        if recompute is Recompute.SELECTIVE:
            saved = whole - attention.core
            forward = max(gathered, attention.forward + attention.core - more)
        elif recompute is Recompute.OPS:
            needed, other = self._kept_of_ops(attention, dense=dense)
            saved, again = needed + other, max(0.0, whole - needed)
            # No more than where everything is kept.
            forward = min(max(forward, widest), max(forward, whole + forward - saved))
        core = attention.core if recompute is Recompute.SELECTIVE else 0.0
        beside = core + attention.backward
        return ActivationBytes(
            saved,
            for_w,
            forward,
            again + max(widest, beside - max(0.0, more - more_for_w)) + residual,
            _BF16 * self._largest(dense),
            again + max(widest, beside - more) + residual,
        )

    def _kept_of_ops(self, attention: AttentionBytes, *, dense: bool) -> tuple[float, float]:
        """Return the bytes that torchtitan's policy of ops keeps: those that B needs, and others.

        They are the results of attention's kernel, of every second product (`products`), of the
        scatters of tensor parallelism, which follow the output's product and the last one, and of
        the two exchanges of tokens between ranks that share experts.
        """
        layout = self.layout
        each = kept(products(self.shape, layout, dense=dense))
        needed = sum(product.output_bytes for product in each if product.is_needed)
        other = sum(product.output_bytes for product in each if not product.is_needed)
        if not self.software.saves_narrow(layout.precision):
            needed += attention.out
        scattered = self.boundary if layout.tensor > 1 and layout.sequence else 0
        experts = None if dense or layout.expert == 1 else self.shape.experts
        copies = 0 if experts is None else experts.per_token
        exchanged = copies * _BF16 * layout.tokens / layout.tensor * self.shape.hidden
        return needed + attention.core, other + 2 * (scattered + exchanged)

    def _largest(self, dense: bool) -> float:
        """Parameters of the largest matrix of a layer on this rank."""
        shape, layout = self.shape, self.layout
        inner = 2 if shape.gated else 1
        if dense or shape.experts is None:
            return inner * shape.hidden * shape.ffn / layout.tensor
        return inner * shape.hidden * shape.experts.ffn * shape.experts.count / layout.expert_ranks

    def _mlp(self, tokens: float, ffn: int | None = None) -> tuple[float, float, float]:
        """Saved for B, and for W, without the norm before it; and what B adds for a while."""
        ffn = self.shape.ffn if ffn is None else ffn
        inner = _BF16 * tokens * ffn * (2 if self.shape.gated else 1)
        product = self._row * tokens * ffn
        return inner + product, inner + product, inner + _BF16 * tokens * ffn

    def _experts(self, tokens: float) -> tuple[float, float, float]:
        experts = self.shape.experts
        assert experts is not None
        parts = self.layout.expert_tensor
        rows = tokens * experts.per_token * parts
        saved, for_w, widest = self._mlp(rows, experts.ffn // parts)
        inputs = self._row * rows * self.shape.hidden
        router = _FLOAT32 * tokens * experts.count
        shared = self._mlp(tokens, experts.shared_ffn)
        return (
            saved + inputs + router + shared[0],
            for_w + inputs + shared[1],
            max(widest, shared[2]) + _BF16 * rows * self.shape.hidden,
        )

    def multi_token(self) -> tuple[States, ActivationBytes]:
        """Of a layer of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2).

        A decoder layer whose input is the projection of the last hidden state and of an embedding,
        each with a norm, and a pass of the head, whose matrix is the model's.
        """
        shape, layout = self.shape, self.layout
        own, held = self.decoder_states(dense=False), self.decoder(dense=False)
        projection = 2 * shape.hidden**2 / layout.tensor
        shared = own.shared + projection + 3 * shape.norm_parameters
        narrow = own.shared + own.experts - shape.wide_parameters(dense=False) + projection
        states = self.states(shared, own.experts, narrow)
        _, head = self.head()
        between = layout.sharded_tokens * shape.hidden
        joined = 2 * self._row * between
        embedded = _BF16 * between
        output = _BF16 * between
        return states, ActivationBytes(
            held.saved + head.saved + joined + embedded + output,
            held.saved_for_w + head.saved_for_w + joined,
            max(held.forward, head.forward),
            max(held.backward, head.backward),
            max(held.weight, head.weight, _BF16 * projection),
            max(held.both, head.both),
        )

    def embedding(self) -> tuple[States, ActivationBytes]:
        """Of the embedding."""
        ids = _INT64 * self.layout.tokens
        return self.states(self.shape.embedding_parameters / self.layout.tensor), ActivationBytes(
            ids, ids
        )

    def head(self) -> tuple[States, ActivationBytes]:
        """Of the final norm, the head, and the loss of float32 logits."""
        shape, layout = self.shape, self.layout
        matrix = shape.vocab * shape.hidden / layout.tensor
        logits = layout.tokens * shape.vocab / layout.tensor
        norm = _BF16 * layout.sharded_tokens * shape.hidden
        held = ActivationBytes(
            norm + _FLOAT32 * logits,
            norm + _BF16 * logits,
            _BF16 * logits,
            _BF16 * logits,
            _BF16 * matrix,
            _BF16 * logits,
        )
        # A tied head has a copy of the matrix if it is on another rank than the embedding.
        own = shape.norm_parameters + shape.further_ends
        return self.states(own + matrix), held
