"""The profile of a layer: its times, its bytes, and how long its tensors are needed."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from synth.op_kinds import MEASURED, OpKind
from synth.profile.layer_tensors import (
    CUDA_BLOCK_BYTES,
    LayerTensors,
    MadeMemory,
    ReturnedTensor,
    TakenTensor,
)
from synth.profile.model_flops import Flops
from synth.records.field_types import PlainText, TimeUs, Whole
from synth.records.record import BriefRecord, Record
from synth.units import MOST_SUMMABLE, MOST_US

_Bytes = Annotated[Whole, Field(ge=0, le=MOST_SUMMABLE)]


_QUANTILES = ("median_us", "p10_us", "p90_us")


class Timing(Record):
    """One op's time over `n` measurements; a published value has n = 1 and no spread.

    In a file a plain number of µs stands for such a value.
    """

    median_us: TimeUs
    p10_us: TimeUs
    p90_us: TimeUs
    n: Whole = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.p10_us <= self.median_us <= self.p90_us:
            raise ValueError(
                f"p10_us is {self.p10_us:g}, median_us {self.median_us:g}, p90_us "
                f"{self.p90_us:g}; each must be at least the one before"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _of_number(cls, given: object) -> object:
        """A plain number is a time of which no spread is known."""
        if isinstance(given, int | float) and not isinstance(given, bool):
            return {"median_us": given, "p10_us": given, "p90_us": given, "n": 1}
        return given

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """A plain number, or an object."""
        return {
            "anyOf": [{"type": "number", "minimum": 0, "maximum": MOST_US}, handler(core_schema)]
        }

    @classmethod
    def exactly(cls, time_us: float) -> Self:
        """A time that is stated, not measured here."""
        return cls(median_us=time_us, p10_us=time_us, p90_us=time_us, n=1)

    def divided(self, number: int) -> Self:
        """The time of one of so many equal parts."""
        parts = {name: getattr(self, name) / number for name in _QUANTILES}
        return self.replace(**parts)

    def followed_by(self, other: Self) -> Self:
        """The time of this op and of another one behind it."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _QUANTILES}
        return self.replace(**sums, n=min(self.n, other.n))


# The ops of a micro-batch that are measured for each variant of a layer.
VARIED = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW)


class LayerVariant(BriefRecord):
    """The costs of a layer of which B computes a part again: those that differ from its own.

    The fields are defined as in `LayerProfile`; B and BW contain the recomputation.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("inner_rise_bytes", "tensors")

    time_us: dict[OpKind, Timing]
    saved_bytes: _Bytes
    saved_w_bytes: _Bytes
    rise_bytes: dict[OpKind, _Bytes]
    inner_rise_bytes: dict[OpKind, _Bytes] = Field(
        default_factory=dict, description="rises of B, W and BW before another layer of the stage"
    )
    input_until: OpKind = OpKind.B
    output_until: OpKind = OpKind.F
    tensors: LayerTensors | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for table, name in ((self.time_us, "time_us"), (self.rise_bytes, "rise_bytes")):
            if set(table) != set(VARIED):
                raise ValueError(f"{name} of a variant needs F, B, W, BW and no others")
        _check_inner_rises(self.inner_rise_bytes, self.rise_bytes)
        check_held_until(self.input_until, self.output_until, OpKind.W)
        return self


# The share of W from which on B has but norms and biases.
_MOSTLY = 0.95


class LayerProfile(BriefRecord):
    """The costs of a layer; identical layers share one.

    Bytes, per micro-batch unless said otherwise:

    - `parameter_bytes` (with the module's buffers), `gradient_bytes`, `optimizer_bytes`: static,
      once per layer;
    - `output_bytes`: the boundary activation it returns (0 for the last layer, which ends in the
      loss);
    - `output_gradient_bytes`: the gradient of that activation, which comes back. None: as many as
      `output_bytes`; 0 if neither this layer nor one before it has a trained parameter;
    - `saved_bytes`: the activations that F saves for the backward, without its input and output;
    - `saved_w_bytes`: the part of them that W needs after B, without input, output and the gradient
      of the output. It may be larger than `saved_bytes`;
    - `recompute_saved_bytes`: what F keeps besides its input if B computes all of it again;
    - `rise_bytes[op]`: the rise of memory above its level at the op's start while it runs, results
      included. Input, output and the gradient of the output are held until the op ends, as the
      executor holds those of a stage;
    - `inner_rise_bytes[op]`: the same of B, W and BW if the next layer is in the same stage, which
      hands the gradient of the output over; absent if it is no smaller, or not known.

    Times and rises are those of F, B, W, BW and STEP. Those of R may be measured too; else they are
    F's.

    `input_until`, `output_until`, `gradient_until` name the last op of this layer (F, B or W) that
    needs its input, its output, and the gradient of its output: until then they cannot be freed.

    `tensors` has the same of each tensor that the layer takes and returns, and which of them share
    memory; None: it takes one and returns another one, or that is not known. Where it is given, no
    part of any is in `saved_bytes` and `saved_w_bytes`.

    `forward_flops` are the floating-point operations of F of a micro-batch, a multiply-add being
    two; None: not counted. They serve for the MFU and change no schedule.

    `variants` are its costs if B computes a part again, by the policy that says which.

    `pair_us` is the time of F of one micro-batch and BW of another one at once; None: not known,
    which counts as one after the other.

    `reduce_us` is the time in which the data-parallel ranks of a group of devices that is a rank
    add up the layer's gradients, once per step, over links of their own.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = (
        "output_gradient_bytes",
        "inner_rise_bytes",
        "recompute_saved_bytes",
        "tensors",
        "variants",
        "pair_us",
        "reduce_us",
    )

    time_us: dict[OpKind, Timing]
    parameter_bytes: _Bytes
    gradient_bytes: _Bytes
    optimizer_bytes: _Bytes
    output_bytes: _Bytes
    output_gradient_bytes: _Bytes | None = None
    saved_bytes: _Bytes
    saved_w_bytes: _Bytes
    rise_bytes: dict[OpKind, _Bytes]
    inner_rise_bytes: dict[OpKind, _Bytes] = Field(
        default_factory=dict, description="rises of B, W and BW before another layer of the stage"
    )
    input_until: OpKind = OpKind.B
    output_until: OpKind = OpKind.F
    gradient_until: OpKind = OpKind.B
    tensors: LayerTensors | None = Field(
        default=None, description="what it takes and returns; None: a tensor each, or not known"
    )
    recompute_saved_bytes: _Bytes = Field(
        default=0, description="what F keeps besides its input if B computes all of it again"
    )
    deferred_share: float = Field(
        default=1.0, ge=0, le=1, description="share of the weight-gradient elements that W computes"
    )
    forward_flops: Flops | None = Field(
        default=None, description="floating-point operations of F, for the MFU"
    )
    variants: dict[PlainText, LayerVariant] = Field(
        default_factory=dict, description="by policy, the costs if B computes a part again"
    )
    pair_us: Timing | None = Field(
        default=None, description="F and BW of two micro-batches at once; None: not known"
    )
    reduce_us: TimeUs = Field(
        default=0.0, description="the sum of gradients over a rank's data-parallel ranks, per step"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for table, name in ((self.time_us, "time_us"), (self.rise_bytes, "rise_bytes")):
            missing = [kind.value for kind in MEASURED if kind not in table]
            if missing:
                raise ValueError(f"{name} lacks {', '.join(missing)}; needed: F, B, W, BW, STEP")
            unknown = [kind.value for kind in table if kind not in (*MEASURED, OpKind.R)]
            if unknown:
                raise ValueError(f"{name} has {', '.join(unknown)}, which no layer is measured for")
        _check_inner_rises(self.inner_rise_bytes, self.rise_bytes)
        check_held_until(self.input_until, self.output_until, self.gradient_until)
        return self

    @property
    def static_bytes(self) -> int:
        """Bytes held all the time: parameters, gradients, optimizer state."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def early_gradient_bytes(self) -> int:
        """The bytes of the weight gradients that B computes itself."""
        return self.gradient_bytes - round(self.deferred_share * self.gradient_bytes)

    @property
    def defers_little(self) -> bool:
        """True if B computes more weight gradients than those of norms and biases."""
        return bool(self.gradient_bytes) and self.deferred_share < _MOSTLY

    @property
    def returned_bytes(self) -> int:
        """The gradient of the output, which comes back from the next layer."""
        known = self.output_gradient_bytes
        return self.output_bytes if known is None else known

    @property
    def boundary_tensors(self) -> LayerTensors:
        """The tensors that it takes and returns; where they are not known, one each."""
        return self.tensors or self._opaque_tensors

    @property
    def opaque_tensors(self) -> LayerTensors:
        """One tensor that it takes, of unknown size, and one that it returns."""
        return self._opaque_tensors

    def can_follow(self, before: "LayerProfile") -> bool:
        """True if the layer takes what another one returns, or that is not known."""
        if self.tensors is None or before.tensors is None:
            return True
        taken, returned = self.tensors.taken, before.tensors.returned
        return len(taken) == len(returned) and all(
            abs(one.num_bytes - other.num_bytes) < CUDA_BLOCK_BYTES
            for one, other in zip(taken, returned, strict=True)
        )

    # The underscore keeps the cached value out of `dict(self)`, that is, out of `replace`.
    @cached_property
    def _opaque_tensors(self) -> LayerTensors:
        return LayerTensors(
            taken=(TakenTensor(num_bytes=0, until=self.input_until),),
            made=(MadeMemory(num_bytes=self.output_bytes, until=self.output_until),),
            returned=(
                ReturnedTensor(
                    memory=1,
                    num_bytes=self.output_bytes,
                    gradient_bytes=self.returned_bytes,
                    gradient_until=self.gradient_until,
                ),
            ),
        )

    @property
    def hidden_us(self) -> float:
        """The time by which F and BW are shorter at once than one after the other."""
        if self.pair_us is None:
            return 0.0
        forward_us, backward_us = (self.time_us[kind].median_us for kind in (OpKind.F, OpKind.BW))
        saved_us = forward_us + backward_us - self.pair_us.median_us
        return min(max(0.0, saved_us), forward_us, backward_us)

    @property
    def recompute_us(self) -> float:
        """R: as measured, or as F."""
        return self.time_us.get(OpKind.R, self.time_us[OpKind.F]).median_us

    @property
    def recompute_rise_bytes(self) -> int:
        """The rise of memory during R: as measured, or as during F."""
        return self.rise_bytes.get(OpKind.R, self.rise_bytes[OpKind.F])

    def inner_rise(self, kind: OpKind) -> int:
        """The rise of memory during an op of the layer if the next one is in the same stage."""
        return self.inner_rise_bytes.get(kind, self.rise_bytes[kind])

    @property
    def can_be_recomputed(self) -> bool:
        """False if the profile says that nothing is freed by it.

        It says so of a layer that changes its input in place, which cannot be computed again.
        """
        return self.recompute_saved_bytes < max(1, self.saved_bytes + self.output_bytes)

    @property
    def as_variant(self) -> LayerVariant:
        """The costs that differ between variants of a layer."""
        return LayerVariant(
            time_us={kind: self.time_us[kind] for kind in VARIED},
            saved_bytes=self.saved_bytes,
            saved_w_bytes=self.saved_w_bytes,
            rise_bytes={kind: self.rise_bytes[kind] for kind in VARIED},
            inner_rise_bytes=self.inner_rise_bytes,
            input_until=self.input_until,
            output_until=self.output_until,
            tensors=self.tensors,
        )

    def under(self, policy: str) -> Self:
        """Return the costs under the policy of one of its variants.

        No op counts as shorter than where everything is kept, so that times without recomputation
        bound all others; a shorter one that was measured is chance.
        """
        variant = self.variants[policy]
        times = {kind: _longer(self.time_us[kind], us) for kind, us in variant.time_us.items()}
        rises = dict(variant.rise_bytes)
        if OpKind.R in self.time_us:
            times[OpKind.R] = _longer(self.time_us[OpKind.R], times[OpKind.F])
        if OpKind.R in self.rise_bytes:
            rises[OpKind.R] = max(self.rise_bytes[OpKind.R], rises[OpKind.F])
        return self.replace(
            time_us={**self.time_us, **times},
            rise_bytes={**self.rise_bytes, **rises},
            inner_rise_bytes=variant.inner_rise_bytes,
            saved_bytes=variant.saved_bytes,
            saved_w_bytes=variant.saved_w_bytes,
            input_until=variant.input_until,
            output_until=variant.output_until,
            tensors=variant.tensors,
            variants={},
            pair_us=None,
        )

    def work_us(self) -> float:
        """F + B + W of one micro-batch."""
        return sum(self.time_us[kind].median_us for kind in (OpKind.F, OpKind.B, OpKind.W))


def _longer(one: Timing, other: Timing) -> Timing:
    return max(one, other, key=lambda timing: timing.median_us)


def smaller_rises(inner: Mapping[OpKind, int], rises: Mapping[OpKind, int]) -> dict[OpKind, int]:
    """Return those of a layer's rises within a stage that are below its others."""
    return {kind: rise for kind, rise in inner.items() if rise < rises[kind]}


def _check_inner_rises(inner: Mapping[OpKind, int], rises: Mapping[OpKind, int]) -> None:
    for kind, rise in inner.items():
        if kind not in (OpKind.B, OpKind.W, OpKind.BW):
            raise ValueError(f"inner_rise_bytes has {kind.value}; it is for B, W and BW")
        if rise > rises[kind]:
            raise ValueError(
                f"inner_rise_bytes of {kind.value} is {rise}, above its rise_bytes "
                f"{rises[kind]}; within a stage an op takes no more than at its end"
            )


def check_held_until(input_until: OpKind, output_until: OpKind, gradient_until: OpKind) -> None:
    """A layer needs its input and output until F, B or W, and the gradient until B or W.

    Raises:
        ValueError: one of them names another op.
    """
    allowed = (OpKind.F, OpKind.B, OpKind.W)
    for name, kind, kinds in (
        ("input_until", input_until, allowed),
        ("output_until", output_until, allowed),
        ("gradient_until", gradient_until, allowed[1:]),
    ):
        if kind not in kinds:
            raise ValueError(f"{name} is {kind}; needed: {' or '.join(kinds)}")


class Layer(Record):
    """One entry of the model's sequential list: its name, and the profile that it shares."""

    name: PlainText
    profile: PlainText
