"""The optimizer and its state per parameter: names and bytes, without arithmetic."""

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from synth.errors import SynthError
from synth.records.command_option import CommandOption
from synth.records.record import BriefRecord, Record

_FLOAT32_BYTES = 4
_COUNT_BYTES = 4


class OptimizerKind(StrEnum):
    """An update rule."""

    ADAMW = "adamw"
    SGD = "sgd"


class OptimizerSpec(BriefRecord):
    """An optimizer, as far as memory and the time of STEP depend on it.

    Written `adamw`, `sgd:0.9` (with its momentum), `adamw+master`, `adamw+post-validation`:

    - master: parameters that are not float32 get a float32 copy, which is updated;
    - float32-gradients: gradients accumulate in float32 for parameters of any dtype (Megatron-LM's
      `main_grad`); needs master copies, which these gradients update;
    - post-validation: ranks step without waiting for each other, and a copy of the parameters
      serves to correct steps that should have been clipped or skipped. Master copies serve as that
      copy.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("float32_gradients",)

    kind: OptimizerKind = OptimizerKind.ADAMW
    momentum: float = Field(default=0.0, ge=0, lt=1, description="of sgd")
    master_weights: bool = False
    float32_gradients: bool = False
    post_validation: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.float32_gradients and not self.master_weights:
            raise SynthError(
                "float32 gradients update float32 copies of the parameters, which were not asked "
                "for: give --master-weights as well, or write +master+float32-gradients"
            )
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the written form.

        Raises:
            SynthError: not an optimizer's written form.
        """
        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise SynthError(
                f"optimizer {text!r} is not understood; write adamw or sgd:MOMENTUM, and behind it "
                f"+master (float32 master weights), +float32-gradients and +post-validation where "
                f"wanted"
            )
        return cls(
            kind=OptimizerKind(match[1] or match[2]),
            momentum=float(match[3] or 0.0),
            master_weights=bool(match[4]),
            float32_gradients=bool(match[5]),
            post_validation=bool(match[6]),
        )

    def __str__(self) -> str:
        """The written form."""
        momentum = f":{self.momentum:g}" if self.momentum else ""
        master = "+master" if self.master_weights else ""
        wide = "+float32-gradients" if self.float32_gradients else ""
        late = "+post-validation" if self.post_validation else ""
        return f"{self.kind}{momentum}{master}{wide}{late}"

    def gradient_bytes(self, numel: int, element_bytes: int) -> int:
        """The gradient of a trainable parameter of `numel` elements of `element_bytes` each."""
        least = _FLOAT32_BYTES if self.float32_gradients else 0
        return numel * max(element_bytes, least)

    def state_bytes(self, numel: int, element_bytes: int) -> int:
        """The bytes of optimizer state of a trainable parameter, besides it and its gradient.

        Args:
            numel: its elements.
            element_bytes: the size of each.
        """
        updated = _FLOAT32_BYTES if self.master_weights else element_bytes
        return numel * (updated * self._num_moments + self._copy_bytes(element_bytes)) + (
            _COUNT_BYTES if self.kind == OptimizerKind.ADAMW else 0
        )

    @property
    def _num_moments(self) -> int:
        if self.kind == OptimizerKind.ADAMW:
            return 2
        return 1 if self.momentum else 0

    def _copy_bytes(self, element_bytes: int) -> int:
        if self.master_weights and element_bytes != _FLOAT32_BYTES:
            return _FLOAT32_BYTES
        return element_bytes if self.post_validation else 0


_WRITTEN = re.compile(
    r"(?:(adamw)|(sgd)(?::(0?\.\d+|0))?)(\+master)?(\+float32-gradients)?(\+post-validation)?"
)


class OptimizerSwitches(Record):
    """The parts of an optimizer that commands also have as options of their own."""

    master_weights: Annotated[
        bool, CommandOption("Keep float32 master weights of bfloat16 parameters.")
    ] = False
    float32_gradients: Annotated[
        bool, CommandOption("Accumulate gradients in float32; needs --master-weights.")
    ] = False
    post_validation: Annotated[
        bool,
        CommandOption(
            "Post-validation: step without waiting for the global gradient norm, and undo the "
            "step if it had to be clipped or skipped. Keeps a copy of the parameters."
        ),
    ] = False

    def added_to(self, spec: OptimizerSpec) -> OptimizerSpec:
        """Return the optimizer with these parts, besides those that it has.

        Raises:
            SynthError: the parts do not go together.
        """
        return spec.replace(**{name: True for name, is_given in self if is_given})
