"""Floating-point operations of training a model: the numerator of the MFU, and a device's peak."""

import re
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field

from synth.errors import SynthError
from synth.records.field_types import Whole
from synth.records.record import Record
from synth.units import shown

# Beyond any micro-batch of a layer, any micro-batch of a model, and any device.
_MOST_OF_LAYER, _MOST_OF_MODEL, MOST_PER_S = 10**21, 10**27, 1e21

Flops = Annotated[Whole, Field(ge=0, le=_MOST_OF_LAYER)]
PeakFlops = Annotated[float, Field(gt=0, le=MOST_PER_S)]

# Forward and backward together, in forwards. The backward of a matrix multiplication is two of the
# same size, one for the gradient of each factor (Narayanan et al. 2021, "Efficient Large-Scale
# Language Model Training on GPU Clusters Using Megatron-LM", appendix; Chowdhery et al. 2022,
# "PaLM", appendix B: 6N per token, of which the forward is 2N).
_FORWARDS = 3

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


class ModelFlops(Record):
    """FLOPs of a micro-batch's forward and backward, and the peak of a rank's device.

    Recomputation does not count, however often the schedule repeats a forward. So the share of the
    peak that is reached is the model FLOPs utilization (MFU), not the hardware FLOPs utilization
    (HFU); Chowdhery et al. 2022, appendix B. The optimizer's operations do not count either.

    Attributes:
        per_micro_batch: three times the FLOPs of the forward; a multiply-add is two.
        peak_per_s: FLOP/s of a device at its peak; None: not known.
    """

    per_micro_batch: Annotated[Whole, Field(gt=0, le=_MOST_OF_MODEL)]
    peak_per_s: PeakFlops | None = None

    @classmethod
    def of_forwards(cls, forwards: Sequence[int | None], peak_per_s: float | None) -> Self | None:
        """Add up the forwards of all layers; None: one is not known, or all are 0."""
        known = [forward for forward in forwards if forward is not None]
        if len(known) < len(forwards) or not any(known):
            return None
        return cls(per_micro_batch=_FORWARDS * sum(known), peak_per_s=peak_per_s)


def format_flops(count: float) -> str:
    """Show a number of operations: `12.34 TFLOP`."""
    for prefix, factor in reversed(_PREFIXES.items()):
        if count >= factor:
            return f"{count / factor:.4g} {prefix}FLOP"
    return f"{count:.4g} FLOP"


def parse_flops_per_s(text: str) -> float:
    """Read a rate: `989e12`, `989TFLOPS` and `989 TFLOP/s` are the same.

    Raises:
        SynthError: something else, nothing per second, or more than 10²¹.
    """
    match = re.fullmatch(
        r"\s*(\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?)\s*(?:([kMGTPE]?)FLOP(?:S|/s|s/s|s))?\s*", text
    )
    per_s = float(match[1]) * _PREFIXES[match[2] or ""] if match else 0.0
    if not 0 < per_s <= MOST_PER_S:
        raise SynthError(
            f"FLOP/s {shown(text)} are not understood; write for example 989e12 or 989TFLOPS"
        )
    return per_s
