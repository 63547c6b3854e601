"""Costs of one stage: the microseconds of its ops, and the bytes that they hold."""

import math
from typing import Any, ClassVar, Self

from pydantic import (
    NonNegativeInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from synth.op_kinds import TIMELESS, OpKind
from synth.profile.layer_profile import check_held_until
from synth.records.record import BriefRecord

# The share of the last bucket, of gradients that are reduced in buckets.
LAST_BUCKET = 0.1


class StageCosts(BriefRecord):
    """The costs of one stage; the fields are defined as in `LayerProfile`.

    `gradient_bytes` are the bytes that copies of the stage add up before their STEPs; they are part
    of `static_bytes`. `replay_bytes` are the bytes that F keeps besides its input if R follows, and
    `light_rise_bytes` the rise of memory during such an F (None: that of any other F). R has F's
    time and rise unless given. Moves take no time and no memory of their own.

    `parameter_bytes` are the parameters as ops read them, also a part of `static_bytes`; 0 if they
    are not known apart from the rest, as in files before version 6.

    `early_gradient_bytes` are the weight gradients that B computes itself, such as those of norms.
    Where there is nothing to add them to before W, B leaves them for W; see
    `Costs.with_early_gradients`. 0 in files before version 9.

    `hidden_us` is the time by which F and BW of two micro-batches are shorter at once than one
    after the other; 0 if it is not known, as in files before version 13. Of two stages the smaller
    counts.

    `reduce_us` is the time of the reduction of the stage's gradients among the data-parallel ranks
    of the group of devices that its rank is; 0 in files before version 15.

    `parts_bytes` are the saved bytes of tensors that are a part of the input or the output: a move
    of the saved activations leaves them where they are. 0 in files before version 16.

    `output_gradient_bytes` None are as many as `output_bytes`, as in files before version 10.

    `sent_bytes` are held of the output for its send alone: not what the ops behind F need as well,
    which is saved or a part of the input. None: all of it, as in files before version 17.

    `shared_gradient_bytes` are those by which the gradient of the input takes less memory where B
    makes it, as those of several tensors are one; negative: it takes more, as they are parts of
    larger memory. 0 in files before version 17.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = (
        "output_gradient_bytes",
        "sent_bytes",
        "shared_gradient_bytes",
        "parameter_bytes",
        "replay_bytes",
        "light_rise_bytes",
        "early_gradient_bytes",
        "hidden_us",
        "reduce_us",
        "parts_bytes",
    )

    duration_us: dict[OpKind, NonNegativeInt]
    static_bytes: NonNegativeInt
    output_bytes: NonNegativeInt
    output_gradient_bytes: NonNegativeInt | None = None
    sent_bytes: NonNegativeInt | None = None
    saved_bytes: NonNegativeInt
    saved_w_bytes: NonNegativeInt
    rise_bytes: dict[OpKind, NonNegativeInt]
    input_until: OpKind = OpKind.B
    output_until: OpKind = OpKind.F
    gradient_until: OpKind = OpKind.B
    gradient_bytes: NonNegativeInt = 0
    parameter_bytes: NonNegativeInt = 0
    replay_bytes: NonNegativeInt = 0
    light_rise_bytes: NonNegativeInt | None = None
    early_gradient_bytes: NonNegativeInt = 0
    hidden_us: NonNegativeInt = 0
    reduce_us: NonNegativeInt = 0
    parts_bytes: NonNegativeInt = 0
    shared_gradient_bytes: int = 0

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Fill in missing values: R has F's costs, and moves have none."""
        if not isinstance(given, dict):
            return given
        return {**given, **{name: _filled(given[name]) for name in _BY_KIND if name in given}}

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out values that loading fills in again."""
        fields = super()._without_defaults(handler)
        for name in _BY_KIND:
            table = {k: v for k, v in fields[name].items() if k not in TIMELESS}
            if table[OpKind.R] == table[OpKind.F]:
                del table[OpKind.R]
            fields[name] = table
        return fields

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.duration_us.keys() == self.rise_bytes.keys() == _KINDS:
            raise ValueError("duration_us and rise_bytes need each of F, B, W, BW, STEP")
        check_held_until(self.input_until, self.output_until, self.gradient_until)
        return self

    @property
    def returned_bytes(self) -> int:
        """The gradient of the output, which comes back from the next stage."""
        known = self.output_gradient_bytes
        return self.output_bytes if known is None else known

    @property
    def sent_output_bytes(self) -> int:
        """The bytes that a send of the output adds to what the stage holds otherwise."""
        return self.output_bytes if self.sent_bytes is None else self.sent_bytes

    def reduction_us(self, *, in_buckets: bool) -> int:
        """The time by which the reduction among the devices of a rank lasts beyond the last W.

        In buckets it runs beside the last backward, and the last bucket is seen in any case.
        """
        if not in_buckets:
            return self.reduce_us
        left_us = self.reduce_us - self.duration_us[OpKind.BW]
        return max(round(LAST_BUCKET * self.reduce_us), left_us)

    @property
    def light_rise(self) -> int:
        """The rise of memory during an F that R will repeat, in bytes."""
        light = self.light_rise_bytes
        return self.rise_bytes[OpKind.F] if light is None else light

    def with_early_gradients(self) -> Self:
        """The costs of a stage whose B leaves the gradients that it computes for W.

        They come beside what W needs of the activations. B allocates them one by one, so its rise
        is at most larger by all of them.
        """
        early = self.early_gradient_bytes
        rises = {**self.rise_bytes, OpKind.B: self.rise_bytes[OpKind.B] + early}
        return self.replace(
            saved_w_bytes=self.saved_w_bytes + early, rise_bytes=rises, early_gradient_bytes=0
        )

    def at(self, speed: float) -> Self:
        """The costs on a rank of another speed: ops take the time by it, memory is the same."""
        if speed == 1:
            return self
        durations = {kind: round(us / speed) for kind, us in self.duration_us.items()}
        return self.replace(duration_us=durations, hidden_us=math.floor(self.hidden_us / speed))

    @property
    def work_us(self) -> int:
        """F + B + W of one micro-batch."""
        return sum(self.duration_us[kind] for kind in (OpKind.F, OpKind.B, OpKind.W))


_BY_KIND = ("duration_us", "rise_bytes")
_KINDS = frozenset(OpKind)


def _filled(table: Any) -> Any:
    if not isinstance(table, dict) or OpKind.F not in table:
        return table
    return {**dict.fromkeys(TIMELESS, 0), OpKind.R: table[OpKind.F], **table}
