"""What a layout is chosen for, and a layout of the whole run."""

from dataclasses import dataclass, field, replace

from synth.errors import SynthError
from synth.estimates.device import Device
from synth.estimates.estimated_layer import DEFAULT_OPTIMIZER
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import Factors
from synth.estimates.layout import Layout, Precision, Recompute, Sharding, Software
from synth.estimates.model_shape import ModelShape
from synth.layouts.runtime_rules import check_on_runtime, why_no_pairs
from synth.plan.runtimes import DEFAULT, Allowed
from synth.profile.optimizer import OptimizerSpec
from synth.units import counted


@dataclass(frozen=True)
class RunLayout:
    """A layout of all ranks of a run.

    Attributes:
        groups: the sizes of groups and micro-batches of a stage.
        rounds: stages per rank of the pipeline.
        micro_batches: of each pipeline in a step.
    """

    groups: Layout
    ranks: int
    rounds: int
    micro_batches: int

    @property
    def gpus(self) -> int:
        """Devices; experts are shared and divided by ranks of the other groups."""
        groups = self.groups
        return groups.tensor * groups.context * groups.data * self.ranks

    @property
    def words(self) -> str:
        """`tp=8,cp=1,ep=1,pp=4,dp=2,mbs=1,vp=2`, and what is otherwise than usual."""
        groups = self.groups
        sizes = {
            "tp": groups.tensor,
            "cp": groups.context,
            "ep": groups.expert,
            "etp": groups.expert_tensor,
            "pp": self.ranks,
            "dp": groups.data,
            "mbs": groups.micro_batch_size,
            "vp": self.rounds,
        }
        shown = [f"{word}={size}" for word, size in sizes.items() if size > 1 or word in _ALWAYS]
        if groups.sharding is not Sharding.ZERO1:
            shown.append(f"sharding={groups.sharding}")
        if groups.recompute is not Recompute.NONE:
            shown.append(f"recompute={groups.recompute}")
        return ",".join(shown)


_ALWAYS = ("tp", "pp", "dp")


@dataclass(frozen=True)
class LayoutQuestion:
    """The model, the devices, the batch, and what the training program can do.

    Attributes:
        global_batch: sequences of a step.
        seq_len: tokens of a sequence.
        narrow_gather: layouts with ZeRO-1 keep and gather parameters in float8.
        factors: what estimated times are multiplied by.
        allowed: the schedules that the runtime executes.
        cap_bytes: the memory limit of a device; None: no limit.
    """

    shape: ModelShape
    device: Device
    gpus: int
    global_batch: int
    seq_len: int
    software: Software
    precision: Precision = Precision.BF16
    narrow_gather: bool = False
    factors: Factors = field(default_factory=Factors)
    optimizer: OptimizerSpec = DEFAULT_OPTIMIZER
    allowed: Allowed = DEFAULT
    cap_bytes: int | None = None

    def estimator(self, groups: Layout) -> Estimator:
        """The estimate of a stage's groups."""
        return Estimator(
            self.shape, self.device, groups, self.software, self.factors, self.optimizer
        )

    def with_factors(self, factors: Factors) -> "LayoutQuestion":
        """The same question under other factors."""
        return replace(self, factors=factors)

    def within(self, cap_bytes: int | None) -> "LayoutQuestion":
        """The same question under a memory limit of a device; None: no limit."""
        return replace(self, cap_bytes=cap_bytes)

    @property
    def num_layers(self) -> int:
        """Layers of a profile: embedding, decoder layers, those of multi-token prediction, head."""
        return self.shape.layers + self.shape.mtp_layers + 2

    def tokens_per_s(self, step_us: float) -> float:
        """Tokens per second of one device."""
        return self.global_batch * self.seq_len / (step_us * 1e-6) / self.gpus

    def has_order(self, layout: RunLayout) -> bool:
        """True if the runtime has an order; Megatron-LM interleaves as many as ranks at least."""
        is_whole = layout.rounds == 1 or layout.micro_batches >= layout.ranks
        return is_whole or self.allowed.orders_freely

    def runs_pairs(self, layout: RunLayout) -> bool:
        """True if schedules with F and BW at once are judged for a layout."""
        return self.why_no_pairs(layout) is None

    def why_no_pairs(self, layout: RunLayout) -> str | None:
        """Return what a layout lacks for F and BW at once, as a clause; None: nothing."""
        runtime, groups = self.allowed.runtime, layout.groups
        return why_no_pairs(runtime, self.shape, groups, layout.ranks, layout.rounds)

    def check_groups(self, groups: Layout, ranks: int) -> None:
        """Refuse sizes that the model or the runtime does not admit on so many pipeline ranks."""
        groups.check(self.shape)
        check_on_runtime(self.allowed.runtime, self.shape, groups, ranks, self.optimizer)

    def check(self, layout: RunLayout) -> None:
        """Refuse a layout that does not go with the question."""
        groups = layout.groups
        self.check_groups(groups, layout.ranks)
        if layout.gpus != self.gpus:
            raise SynthError(
                f"{layout.words} has tp × cp × pp × dp = {counted(layout.gpus, 'device')}, and "
                f"there are {self.gpus}; give sizes whose product is {self.gpus}"
            )
        if groups.data * groups.micro_batch_size * layout.micro_batches != self.global_batch:
            raise SynthError(
                f"{layout.words} cannot share {counted(self.global_batch, 'sequence')} equally; "
                f"give dp × mbs that divides them"
            )
        if layout.ranks * layout.rounds > self.num_layers:
            raise SynthError(
                f"{layout.words} has {counted(layout.ranks * layout.rounds, 'stage')}, and "
                f"{self.shape.name} has {counted(self.num_layers, 'layer')} with embedding and "
                f"head; give fewer"
            )
        if not self.has_order(layout):
            raise SynthError(
                f"{layout.words} has {counted(layout.micro_batches, 'micro-batch')}, and "
                f"Megatron-LM interleaves as many as there are ranks at least; give vp=1, or "
                f"smaller dp or mbs"
            )
        if groups.sharding is Sharding.FSDP and layout.ranks > 1:
            raise SynthError(
                f"{layout.words} has FSDP with a pipeline, beside which PyTorch's FSDP2 keeps "
                f"parameters gathered and gradients whole until the last backward, as "
                f"sharding=zero1 does; give that, or pp=1"
            )
