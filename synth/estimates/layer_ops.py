"""The operations of the parts of a model, in F, B and W of a micro-batch on one rank.

A matrix of n × k elements has a product in each: tokens × k × n in F, tokens × n × k in B, and
n × tokens × k in W. Tensor parallelism shares n of the first matrix of a pair and k of the second
(Shoeybi et al. 2019, arXiv 1909.08053). Causal attention has the products of its mask only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from synth.estimates.layout import AttentionKernel, Layout, Recompute, Software
from synth.estimates.model_shape import ModelShape
from synth.estimates.ops import (
    Attention,
    ExchangeKind,
    GroupExchange,
    Matmul,
    Operation,
    Role,
    Traffic,
)
from synth.estimates.products import again, products

_BF16 = 2

# Passes over the scores of attention whose kernels are separate, in bytes per score: of F the
# product, scale with mask and softmax, dropout with its mask, and the second product; of B those of
# their gradients.
_SCORE_BYTES = {Role.F: 11, Role.B: 15}
_DROPOUT_BYTES = 5

# Bytes of casts of an element of a matrix's input, and kernels: to float8 it is read once and
# written straight and turned; to float4 it is read for its largest value before, and the turned one
# has a Hadamard transform of its own (NVFP4 recipe, arXiv 2509.25149).
_CASTS = {"float8": (4.0, 2), "float4": (9.0, 4)}


@dataclass
class Work:
    """The operations of F, B and W; `core` are those of F that attention's kernels have."""

    by_role: dict[Role, list[Operation]] = field(
        default_factory=lambda: {role: [] for role in Role}
    )
    core: list[Operation] = field(default_factory=list)

    def add(self, role: Role, *operations: Operation) -> None:
        """Add operations to a pass."""
        self.by_role[role].extend(operations)

    def matrix(self, tokens: float, n: int, k: int, dtype: str, groups: int = 1) -> None:
        """Add the three products of a matrix."""
        for role in Role:
            self.add(role, Matmul(tokens, max(1, n), max(1, k), role, dtype, groups))

    def both(self, operations: Iterable[Operation]) -> None:
        """Add the same exchanges to F and B."""
        for operation in operations:
            self.add(Role.F, operation)
            self.add(Role.B, operation)

    def flops(self, role: Role) -> float:
        """Of the products and of attention."""
        return sum(
            operation.flops
            for operation in self.by_role[role]
            if isinstance(operation, Matmul | Attention)
        )


@dataclass(frozen=True)
class LayerOps:
    """Builds the operations of a model's parts under a layout.

    Attributes:
        layout: the sizes of groups and micro-batches.
        software: the training program.
        ranks_per_node: of the device's node.
    """

    shape: ModelShape
    layout: Layout
    software: Software
    ranks_per_node: int

    def of(self, kind: str) -> Work:
        """A kind of layer: embedding, block, moe_block, mtp or head."""
        match kind:
            case "embedding":
                return self.embedding()
            case "mtp":
                return self.multi_token()
            case "head":
                return self.head()
        return self.decoder(dense=kind == "block")

    def decoder(self, *, dense: bool) -> Work:
        """A decoder layer, with experts unless `dense`."""
        work, second = self.attention(), self.mlp(dense=dense)
        for role in Role:
            work.add(role, *second.by_role[role])
        return work

    def attention(self) -> Work:
        """The attention of a layer, with half of its norms."""
        work = Work()
        self._norms(work, self.shape.norms / 2)
        self._attention_matrices(work)
        self._attention(work)
        self._tensor_exchange(work)
        return work

    def mlp(self, *, dense: bool) -> Work:
        """The MLP of a layer, or its experts, with the other half of the norms."""
        work = Work()
        self._norms(work, self.shape.norms / 2)
        if dense or self.shape.experts is None:
            self._mlp(work, self.shape.ffn)
            self._tensor_exchange(work)
        else:
            self._experts(work)
            if self.shape.experts.shared_ffn:
                self._mlp(work, self.shape.experts.shared_ffn)
                self._tensor_exchange(work)
        return work

    def embedding(self) -> Work:
        """The look-up of tokens; its W adds to the rows of the tokens."""
        work, layout = Work(), self.layout
        row = layout.tokens * self.shape.hidden * _BF16
        work.add(Role.F, Traffic(2 * row / layout.tensor, 2))
        work.add(Role.W, Traffic(3 * row / layout.tensor, 2))
        exchanges = self._exchange(row)
        if layout.sequence:
            work.both(exchanges[1:])
        else:  # a sum of F's rows alone
            work.add(Role.F, *exchanges)
        return work

    def head(self) -> Work:
        """The final norm, the matrix of the vocabulary, and the loss of its float32 logits."""
        work, layout = Work(), self.layout
        self._norms(work, 1)
        vocab = self.shape.vocab // layout.tensor
        work.matrix(layout.tokens, vocab, self.shape.hidden, "bfloat16")
        logits = layout.tokens * vocab
        work.add(Role.F, Traffic(12.0 * logits, 5))
        work.add(Role.B, Traffic(8.0 * logits, 3))
        exchanges = self._exchange(layout.tokens * self.shape.hidden * _BF16)
        if layout.sequence:
            work.both(exchanges[:1])
        else:  # a sum of the input's gradients alone
            work.add(Role.B, *exchanges)
        return work

    def multi_token(self) -> Work:
        """A layer of multi-token prediction: a projection, a decoder layer, and a head's pass."""
        work = self.decoder(dense=False)
        hidden = self.shape.hidden
        work.matrix(self.layout.tokens, hidden // self.layout.tensor, 2 * hidden, self._dtype)
        head = self.head()
        for role in Role:
            work.add(role, *head.by_role[role])
        return work

    @property
    def _dtype(self) -> str:
        return self.layout.precision.dtype

    def _pointwise(self, work: Work, forward: float, backward: float, kernels: int) -> None:
        """Add bytes of pointwise kernels to F and B."""
        factor = self.software.traffic
        work.add(Role.F, Traffic(forward * factor, kernels))
        work.add(Role.B, Traffic(backward * factor, kernels))

    def _norms(self, work: Work, count: float) -> None:
        """Norms, with the additions of residuals (and dropout's masks) beside them."""
        row = self.layout.sharded_tokens * self.shape.hidden
        mask = 1 if self.shape.dropout else 0
        self._pointwise(
            work, count * row * (10 + mask), count * row * (12 + mask), round(2 * count)
        )

    def _casts(self, work: Work, elements: float) -> None:
        """The casts of a matrix's input to a narrow dtype; in B of the output's gradient."""
        if (cast := _CASTS.get(self._dtype)) is not None:
            self._pointwise(work, cast[0] * elements, cast[0] * elements, cast[1])

    def _attention_matrices(self, work: Work) -> None:
        shape, layout = self.shape, self.layout
        tokens, ranks, hidden = layout.tokens, layout.tensor, shape.hidden
        out = shape.heads * shape.value_dim // ranks
        if (latent := shape.latent) is not None:
            query = shape.heads * shape.query_dim // ranks
            if latent.query_rank:
                work.matrix(layout.sharded_tokens, latent.query_rank, hidden, self._dtype)
            work.matrix(tokens, query, latent.query_rank or hidden, self._dtype)
            down = latent.key_value_rank + latent.rope
            work.matrix(layout.sharded_tokens, down, hidden, self._dtype)
            up = shape.heads * (latent.nope + latent.value) // ranks
            work.matrix(tokens, up, latent.key_value_rank, self._dtype)
            rotated = tokens * (2 * query + up)
        else:
            keys = max(1, shape.kv_heads // ranks) * shape.head_dim
            query = shape.heads * shape.head_dim // ranks
            work.matrix(tokens, query + 2 * keys, hidden, self._dtype)
            rotated = tokens * (query + keys) if not shape.positions else 0
        work.matrix(tokens, hidden, out, self._dtype)
        self._casts(work, tokens * (hidden + out))
        self._pointwise(work, 4.0 * rotated, 4.0 * rotated, 2)

    def _attention(self, work: Work) -> None:
        shape, layout = self.shape, self.layout
        pairs = layout.micro_batch_size * shape.heads / layout.tensor
        queries, length = layout.seq_len / layout.context, layout.seq_len
        is_fused = self.software.attention is not AttentionKernel.UNFUSED
        near = min(shape.window, length) if shape.window else length
        local = near / 2 if shape.chunked else near - near**2 / (2 * length)
        keys = shape.window_layers * local + (1 - shape.window_layers) * length / 2
        if not (is_fused and shape.causal):
            keys = length
        for role in (Role.F, Role.B):
            call = Attention(pairs, queries, keys, shape.query_dim, shape.value_dim, role, is_fused)
            traffic = [] if is_fused else [self._scores(pairs * queries * keys, role)]
            work.add(role, call, *traffic)
            if role is Role.F:
                work.core += [call, *traffic]
        if layout.context > 1:
            is_whole = shape.latent is not None or self.software.repeats_keys
            heads = shape.heads if is_whole else shape.kv_heads
            each = shape.query_dim + shape.value_dim
            size = _BF16 * max(1, heads // layout.tensor) * each
            group = layout.group(layout.context, layout.tensor, self.ranks_per_node)
            moved = self.software.shown_context * size * layout.micro_batch_size * length
            for role, factor in ((Role.F, 1), (Role.B, 2)):
                exchange = GroupExchange(ExchangeKind.ALL_GATHER, factor * moved, *group)
                work.add(role, exchange)
                if role is Role.F:
                    work.core.append(exchange)

    def _scores(self, count: float, role: Role) -> Traffic:
        less = 0 if self.shape.dropout else _DROPOUT_BYTES
        return Traffic(count * (_SCORE_BYTES[role] - less), 4)

    def _mlp(self, work: Work, ffn: int) -> None:
        shape, layout = self.shape, self.layout
        tokens, width = layout.tokens, ffn // layout.tensor
        inner = 2 * width if shape.gated else width
        work.matrix(tokens, inner, shape.hidden, self._dtype)
        work.matrix(tokens, shape.hidden, width, self._dtype)
        self._activation(work, tokens, inner, width)
        self._casts(work, tokens * (shape.hidden + width))

    def _activation(self, work: Work, tokens: float, inner: int, width: int) -> None:
        forward = 2.0 * tokens * (inner + width)
        self._pointwise(work, forward, forward + 2.0 * tokens * inner, 1)

    def _experts(self, work: Work) -> None:
        """Router, exchange, and the matrices of this rank's experts.

        The ranks that divide an expert gather their tokens, and add up their parts of the result.
        """
        shape, layout, experts = self.shape, self.layout, self.shape.experts
        assert experts is not None
        own = layout.tokens / layout.tensor
        sent, parts = own * experts.per_token, layout.expert_tensor
        rows, width = sent * parts, experts.ffn // parts
        groups = experts.count // layout.expert
        each = max(1.0, rows * layout.expert / experts.count)
        inner = (2 if shape.gated else 1) * width
        work.matrix(own, experts.count, shape.hidden, "bfloat16")
        work.matrix(each, inner, shape.hidden, self._dtype, groups)
        work.matrix(each, shape.hidden, width, self._dtype, groups)
        self._activation(work, rows, inner, width)
        self._casts(work, rows * (shape.hidden + width))
        # Sorting by expert before and adding up after, each read and written. If each copy of a
        # token is sent, a rank with several experts sorts once more, and back (Megatron-LM's
        # `MoEAlltoAllTokenDispatcher`, torchtitan's `generate_permute_indices`).
        row = shape.hidden * _BF16
        is_twice = layout.expert > 1 and groups > 1 and not self.software.sends_once
        sorts = 2 if is_twice else 1
        self._pointwise(work, sorts * 4 * rows * row, sorts * 4 * rows * row, sorts * 6)
        moved = sent * row
        group = layout.group(layout.expert, parts, self.ranks_per_node)
        copies = experts.per_token if self.software.sends_once else 1
        shown = (1 - self.software.hidden_experts) * moved
        work.both([GroupExchange(ExchangeKind.ALL_TO_ALL, shown, *group, copies)] * 2)
        if parts > 1:
            within = layout.group(parts, 1, self.ranks_per_node)
            kinds = (ExchangeKind.ALL_GATHER, ExchangeKind.REDUCE_SCATTER)
            work.both(GroupExchange(kind, rows * row, *within) for kind in kinds)

    def _tensor_exchange(self, work: Work) -> None:
        """The exchanges of tensor parallelism before and after a pair of matrices."""
        row = self.layout.tokens * self.shape.hidden * _BF16
        shown = 1 - self.software.hidden_tensor
        work.both(self._exchange(shown * row, 1.0 if self._dtype == "bfloat16" else 0.5))

    def _exchange(self, num_bytes: float, gathered: float = 1.0) -> Sequence[GroupExchange]:
        """Gather and scatter along the sequence, or one sum; sums are of bfloat16.

        The input of a narrow matrix is cast before it is gathered, as its output's gradient is
        (Transformer Engine's and torchao's layers with sequence parallelism).
        """
        layout = self.layout
        if layout.tensor == 1:
            return ()
        group = layout.group(layout.tensor, 1, self.ranks_per_node)
        if not layout.sequence:
            return (GroupExchange(ExchangeKind.ALL_REDUCE, num_bytes, *group),)
        return (
            GroupExchange(ExchangeKind.ALL_GATHER, gathered * num_bytes, *group),
            GroupExchange(ExchangeKind.REDUCE_SCATTER, num_bytes, *group),
        )

    def recomputed(self, kind: str, work: Work) -> Sequence[Operation]:
        """Return the ops that B of a decoder layer repeats under the layout's recomputation.

        Of multi-token prediction the projection and the head are not repeated under a policy.

        Args:
            kind: block, moe_block or mtp.
            work: of that kind.
        """
        match self.layout.recompute:
            case Recompute.NONE:
                return ()
            case Recompute.SELECTIVE:
                return work.core
            case Recompute.FULL:
                is_short = self.software.stops_early and kind == "block"
                return self.forward_again(work) if is_short else work.by_role[Role.F]
        return self._again_of_ops(dense=kind == "block")

    def forward_again(self, work: Work) -> Sequence[Operation]:
        """F of a layer without experts up to the last result that B needs.

        B needs the input of the last product, but not its result or what follows.
        """
        forward = work.by_role[Role.F]
        last = max(at for at, each in enumerate(forward) if isinstance(each, Matmul))
        exchanges = (ExchangeKind.REDUCE_SCATTER, ExchangeKind.ALL_REDUCE)
        return [
            each
            for at, each in enumerate(forward)
            if at != last
            and not (at > last and isinstance(each, GroupExchange) and each.kind in exchanges)
        ]

    def _again_of_ops(self, *, dense: bool) -> Sequence[Operation]:
        """Every second product, those of router and experts, and what memory or gathering bounds.

        Attention's kernels, the exchange of tokens and the scatters of tensor parallelism are not
        repeated, and neither is the sum in place of a scatter behind the last product, of which B
        needs nothing.
        """
        attention, mlp = self.attention(), self.mlp(dense=dense)
        found: list[Operation] = [
            Matmul(each.tokens, each.n, each.k, Role.F, self._dtype)
            for each in again(products(self.shape, self.layout, dense=dense))
        ]
        if not dense and self.shape.experts is not None:
            routed = Work()
            self._experts(routed)
            found += [each for each in routed.by_role[Role.F] if isinstance(each, Matmul)]
        sums, gathers = ExchangeKind.ALL_REDUCE, ExchangeKind.ALL_GATHER
        for work, exchanges in ((attention, (gathers, sums)), (mlp, (gathers,))):
            for operation in work.by_role[Role.F]:
                match operation:
                    case Traffic():
                        found.append(operation)
                    case GroupExchange() if operation.kind in exchanges:
                        found.append(operation)
        kernels = [each for each in attention.core if isinstance(each, GroupExchange)]
        for each in kernels:
            found.remove(each)
        return found
