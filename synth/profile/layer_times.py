"""Layers that were measured elsewhere: times of passes and sizes, from which a profile is made."""

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from synth.op_kinds import OpKind
from synth.profile.model_flops import Flops
from synth.records.record import Record
from synth.units import MOST_SUMMABLE, MOST_US

# Of a profile; far more than any model has, and few enough to be written out.
MOST_LAYERS = 1 << 16

# AdamW keeps two moments of each parameter.
_MOMENTS = 2


def without_inputs(layers: Sequence["LayerTimes"]) -> list[str]:
    """Return the names of layers that save less than their input; none if no layer saves at all."""
    if not any(layer.saved_bytes for layer in layers):
        return []
    inputs = [0, *(layer.output_bytes for layer in layers)]
    return [
        layer.name
        for input_bytes, layer in zip(inputs, layers, strict=False)
        if layer.saved_bytes < max(input_bytes, layer.output_bytes * (layer.count > 1))
    ]


class LayerTimes(Record):
    """A layer, or `count` equal ones in a row, as another program has measured it.

    Times are in µs per micro-batch. A backward that is given whole counts half as B and half as W,
    unless one of the two is given. Sizes are in bytes:

    - `parameter_bytes`, `gradient_bytes` (None: as many as of parameters), `optimizer_bytes` (None:
      twice as many, as AdamW's moments): once per layer;
    - `output_bytes`: the output of a micro-batch, 0 for the last layer;
    - `saved_bytes`: what F keeps of a micro-batch for the backward, with the layer's input;
    - `saved_w_bytes`: the part of it that W needs after B (None: all of it).

    `pair_us` is the time of the forward of one micro-batch and the whole backward of another one at
    once, at least that of the longer one; None: not measured.

    `forward_flops` are the floating-point operations of a micro-batch's forward, a multiply-add
    being two; None: not counted, so there is no MFU.
    """

    name: str
    count: int = Field(default=1, ge=1, le=MOST_LAYERS)
    forward_us: float = Field(ge=0, le=MOST_US)
    backward_us: float | None = Field(default=None, ge=0, le=MOST_US)
    backward_input_us: float | None = Field(default=None, ge=0, le=MOST_US)
    backward_weight_us: float | None = Field(default=None, ge=0, le=MOST_US)
    step_us: float = Field(default=0.0, ge=0, le=MOST_US)
    pair_us: float | None = Field(default=None, ge=0, le=MOST_US)
    parameter_bytes: int = Field(default=0, ge=0, le=MOST_SUMMABLE)
    gradient_bytes: int | None = Field(default=None, ge=0, le=MOST_SUMMABLE)
    optimizer_bytes: int | None = Field(default=None, ge=0, le=MOST_SUMMABLE)
    output_bytes: int = Field(default=0, ge=0, le=MOST_SUMMABLE)
    saved_bytes: int = Field(default=0, ge=0, le=MOST_SUMMABLE)
    saved_w_bytes: int | None = Field(default=None, ge=0, le=MOST_SUMMABLE)
    forward_flops: Flops | None = None

    @model_validator(mode="after")
    def _has_backward(self) -> Self:
        whole, parts = self.backward_us, (self.backward_input_us, self.backward_weight_us)
        if whole is None and None in parts:
            raise ValueError(
                f"layer {self.name!r} lacks the time of its backward; give backward, or "
                f"backward_input and backward_weight"
            )
        longest = max(part or 0.0 for part in parts)
        if whole is not None and longest > whole:
            raise ValueError(
                f"layer {self.name!r}: backward is {whole:g} µs, and a part of it {longest:g} µs"
            )
        return self

    @model_validator(mode="after")
    def _has_both_in_pair(self) -> Self:
        longer_us = max(self.forward_us, self.time_us[OpKind.BW])
        if self.pair_us is not None and self.pair_us < longer_us:
            raise ValueError(
                f"layer {self.name!r}: forward and backward at once take {self.pair_us:g} µs, and "
                f"one of them alone {longer_us:g} µs"
            )
        return self

    @property
    def time_us(self) -> dict[OpKind, float]:
        """The time of each op."""
        input_us, weight_us = self.backward_input_us, self.backward_weight_us
        whole_us = self.backward_us
        if whole_us is None:
            assert input_us is not None and weight_us is not None
            whole_us = input_us + weight_us
        if input_us is None:
            input_us = whole_us / 2 if weight_us is None else whole_us - weight_us
        if weight_us is None:
            weight_us = whole_us - input_us
        return {
            OpKind.F: self.forward_us,
            OpKind.B: input_us,
            OpKind.W: weight_us,
            OpKind.BW: whole_us,
            OpKind.STEP: self.step_us,
        }

    def rise_bytes(self, input_bytes: int) -> dict[OpKind, int]:
        """The rise of memory during each op: what is saved, the output, the input's gradient."""
        saved_w = self.saved_bytes if self.saved_w_bytes is None else self.saved_w_bytes
        more = max(0, saved_w - self.saved_bytes)
        return {
            OpKind.F: self.saved_bytes + self.output_bytes,
            OpKind.B: input_bytes + more,
            OpKind.W: 0,
            OpKind.BW: input_bytes + more,
            OpKind.STEP: 0,
        }

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes in bytes, by their names in a profile."""
        parameters = self.parameter_bytes
        gradients, state, saved_w = self.gradient_bytes, self.optimizer_bytes, self.saved_w_bytes
        return {
            "parameter_bytes": parameters,
            "gradient_bytes": parameters if gradients is None else gradients,
            "optimizer_bytes": _MOMENTS * parameters if state is None else state,
            "output_bytes": self.output_bytes,
            "saved_bytes": self.saved_bytes,
            "saved_w_bytes": self.saved_bytes if saved_w is None else saved_w,
        }
