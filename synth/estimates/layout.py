"""The distribution and training of a model, on which its estimate depends."""

from enum import StrEnum
from math import ceil, gcd
from typing import Annotated, ClassVar

from pydantic import Field

from synth.errors import SynthError
from synth.estimates.model_shape import ModelShape
from synth.records.record import BriefRecord, Record

_Size = Annotated[int, Field(gt=0, le=1 << 16)]
_Tokens = Annotated[int, Field(gt=0, le=1 << 31)]


class Precision(StrEnum):
    """The dtype of the factors of the layers' matrices; all else is bfloat16."""

    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def dtype(self) -> str:
        """The name of the dtype in a device's peaks."""
        return {"bf16": "bfloat16", "fp8": "float8", "fp4": "float4"}[self.value]


class Recompute(StrEnum):
    """The activations that B computes again.

    Nothing; what only attention's kernels save (arXiv 2205.05198); all but attention and every
    second matrix product (torchtitan's per-op policy); whole layers.
    """

    NONE = "none"
    SELECTIVE = "selective"
    OPS = "ops"
    FULL = "full"


class Sharding(StrEnum):
    """The state that data-parallel ranks shard: none, the optimizer's, or all of a layer."""

    NONE = "none"
    ZERO1 = "zero1"
    FSDP = "fsdp"


class AttentionKernel(StrEnum):
    """FlashAttention 1 to 3 (or cuDNN's, like 3), or separate kernels that write the scores."""

    FLASH1 = "flash1"
    FLASH2 = "flash2"
    FLASH3 = "flash3"
    UNFUSED = "unfused"


class Software(Record):
    """The properties of a training program on which an estimate depends.

    Attributes:
        hidden_tensor: share of the collectives of tensor parallelism that compute hides.
        shown_context: share of the exchange of keys and values between ranks of a context that
            attention does not hide.
        repeats_keys: attention's keys and values are repeated for each head before that exchange.
        overlaps_gradients: the reduction of gradients runs beside the last backward, and the
            gathering of parameters beside the first forward.
        traffic: bytes of pointwise kernels over those of fused ones.
        waits_for_sends: interleaved 1F1B waits for its transfers between stages.
        sends_once: a token is sent once to each rank that has experts for it, as by DeepEP; else
            once for each expert.
        hidden_experts: share of the exchange of experts that compute of another micro-batch hides.
        saves_casts: matrices of narrow factors save their inputs for W as they were cast, and keep
            casts of their weights from the first micro-batch of a step on, straight and turned
            (Transformer Engine's `is_first_microbatch`); else they cast again (torchao).
        gathers_narrow: parameters of matrices can be kept and gathered in float8 (Megatron-LM's
            `--fp8-param-gather`).
        stops_early: a layer is recomputed up to the last result that B needs, as PyTorch's
            checkpoints without re-entrance are.
        host_us: that the host takes to launch F and B of a layer with experts, one after another;
            0: CUDA graphs launch them.
        shown_launches: share of that time, or of the kernels' where these take less, that the other
            does not hide: a host that waits for the number of tokens of each expert in every layer,
            as with Megatron-LM's `alltoall` dispatcher, launches nothing ahead.
    """

    attention: AttentionKernel = AttentionKernel.FLASH3
    hidden_tensor: float = Field(default=0.0, ge=0, le=1)
    shown_context: float = Field(default=0.25, ge=0, le=1)
    repeats_keys: bool = False
    overlaps_gradients: bool = True
    traffic: float = Field(default=1.0, ge=0.1, le=10)
    waits_for_sends: bool = False
    saves_casts: bool = True
    gathers_narrow: bool = True
    stops_early: bool = False
    sends_once: bool = False
    hidden_experts: float = Field(default=0.0, ge=0, le=1)
    host_us: float = Field(default=0.0, ge=0, le=1e6)
    shown_launches: float = Field(default=0.0, ge=0, le=1)

    def check_narrow_gather(self, precision: Precision) -> None:
        """Refuse parameters in float8 where there are no such products, or that it cannot keep."""
        if precision is not Precision.FP8:
            raise SynthError(
                f"§fp8_param_gather keeps parameters as float8 products take them, and §dtype "
                f"{precision} is given; give fp8"
            )
        if not self.gathers_narrow:
            raise SynthError(
                "§fp8_param_gather is of Megatron-LM with Transformer Engine, and §software or "
                "§for names another program; leave one of them out"
            )

    def saves_narrow(self, precision: Precision) -> bool:
        """True if inputs of matrices are saved in less than bfloat16."""
        return self.saves_casts and precision is not Precision.BF16


class Layout(BriefRecord):
    """The sizes of a run: of its groups of ranks, and of a micro-batch.

    Attributes:
        tensor: ranks of tensor parallelism, and `sequence`: with sequence parallelism, which
            splits what is between the matrices (Korthikanti et al. 2022, arXiv 2205.05198).
        context: ranks that share the tokens of a sequence.
        expert: ranks that share the experts, and `expert_tensor`: ranks that divide each of them.
            Both are ranks of `tensor`, `context` and `data` together, which attention and experts
            group differently: Megatron Core's parallel folding (arXiv 2504.14960).
        data: ranks that train other samples, and share what `sharding` says.
        narrow_gather: ranks keep and gather the parameters of matrices in float8, with no copy in
            bfloat16 (Megatron-LM's `--fp8-param-gather`).
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("expert_tensor", "narrow_gather")

    seq_len: _Tokens
    micro_batch_size: _Tokens = 1
    tensor: _Size = 1
    sequence: bool = True
    context: _Size = 1
    expert: _Size = 1
    expert_tensor: _Size = 1
    data: _Size = 1
    precision: Precision = Precision.BF16
    sharding: Sharding = Sharding.ZERO1
    recompute: Recompute = Recompute.NONE
    narrow_gather: bool = False

    def check(self, shape: ModelShape) -> None:
        """Refuse sizes that do not go together, or that a model does not admit.

        Raises:
            SynthError: heads, widths, experts or tokens cannot be shared so.
        """
        if shape.heads % self.tensor:
            raise SynthError(
                f"{shape.name} has {shape.heads} heads, which {self.tensor} ranks of tensor "
                f"parallelism cannot share equally; give a divisor"
            )
        if shape.latent is None and shape.kv_heads % self.tensor and self.tensor % shape.kv_heads:
            raise SynthError(
                f"{shape.name} has {shape.kv_heads} heads of keys and values, which {self.tensor} "
                f"ranks of tensor parallelism can neither share nor repeat equally; give a divisor "
                f"or a multiple"
            )
        shared = 0 if shape.experts is None else shape.experts.shared_ffn
        for width in (shape.ffn if shape.dense_layers else 0, shared):
            if width % self.tensor:
                raise SynthError(
                    f"{shape.name} has an MLP {width} wide, which {self.tensor} ranks of tensor "
                    f"parallelism cannot share equally; give a divisor"
                )
        if shape.experts is None and self.expert_ranks > 1:
            raise SynthError(f"{shape.name} has no experts; leave expert parallelism out")
        if shape.experts is not None and shape.experts.count % self.expert:
            raise SynthError(
                f"{shape.name} has {shape.experts.count} experts, which {self.expert} ranks cannot "
                f"share equally; give a divisor"
            )
        if shape.experts is not None and shape.experts.ffn % self.expert_tensor:
            raise SynthError(
                f"{shape.name} has experts {shape.experts.ffn} wide, which {self.expert_tensor} "
                f"ranks of expert tensor parallelism cannot divide equally; give a divisor"
            )
        if 0 < shape.positions < self.seq_len:
            raise SynthError(
                f"{shape.name} has learned positions of {shape.positions} tokens, and a sequence "
                f"has {self.seq_len}; give sequences of at most {shape.positions} tokens"
            )
        parts = self.context * (self.tensor if self.sequence else 1)
        if self.seq_len % parts:
            raise SynthError(
                f"{self.seq_len} tokens of a sequence cannot be shared equally by {parts} ranks; "
                f"give a multiple"
            )
        if self.narrow_gather and self.sharding is not Sharding.ZERO1:
            raise SynthError(
                f"§fp8_param_gather is estimated for a distributed optimizer, §sharding zero1, and "
                f"{self.sharding} is given; leave one of them out"
            )
        ranks = self.group_size
        if ranks % self.expert_ranks:
            divide = "" if self.expert_tensor == 1 else f" × {self.expert_tensor} that divide each"
            raise SynthError(
                f"{self.expert}{divide} ranks share the experts, and tensor, context and data "
                f"parallelism have {ranks} together; give a divisor, or more data-parallel ranks"
            )

    @property
    def tokens(self) -> int:
        """The tokens of a micro-batch on a rank."""
        return self.micro_batch_size * self.seq_len // self.context

    @property
    def sharded_tokens(self) -> float:
        """The tokens of a rank between the matrices."""
        return self.tokens / (self.tensor if self.sequence else 1)

    @property
    def state_ranks(self) -> int:
        """The ranks that have the same parameters, of all but experts."""
        return self.data * self.context

    @property
    def expert_ranks(self) -> int:
        """The ranks that have all experts together."""
        return self.expert * self.expert_tensor

    @property
    def expert_state_ranks(self) -> int:
        """The ranks that have the same parts of experts."""
        return self.group_size // self.expert_ranks

    @property
    def group_size(self) -> int:
        """The devices of a rank of the pipeline and of its copies."""
        return self.tensor * self.context * self.data

    def group(self, size: int, stride: int, ranks_per_node: int) -> tuple[int, int]:
        """Return nodes and ranks per node of a group of ranks that are `stride` apart.

        Groups follow each other over nodes that they need not fill: of ranks 4 to 7 in nodes of 6,
        two are in one node and two in the next. The one with the fewest ranks in a node counts,
        because its exchanges take the longest.
        """
        near = max(1, gcd(size * stride, ranks_per_node) // stride)
        return ceil(size / near), near
