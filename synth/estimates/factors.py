"""The three factors of a device and a training program, and the training programs known by name."""

from dataclasses import dataclass, replace

import numpy as np

from synth.errors import SynthError
from synth.estimates.layout import AttentionKernel, Software
from synth.estimates.op_times import Parts

KINDS = ("matmul", "memory", "communication")

# Standard deviations of the logarithms before any calibration: by how much the medians of published
# runs of different programs on one device lie apart (`python -m benchmarks.estimates`).
PRIOR = (0.20, 0.35, 0.50)

# Of steps of models with experts: the root mean square of the logarithms of estimate over measured
# time, under the shipped factors, of 63 published runs (`python -m benchmarks.estimates`).
SCATTER_OF_EXPERTS = 0.24

# Of F and B of a layer with experts, launched one by one: the mean of the published steps of
# Qwen3-30B-A3B on H100 (rows 31 and 64 of `published.csv`), which is independent of the bytes
# and FLOPs of the layers. Rows 70 and 91 on B200 and 204 of Qwen3-235B have 8.8 to 9.6 ms.
_HOST_US = 9500.0

SOFTWARE = {
    "megatron": Software(hidden_tensor=0.5, sends_once=True, host_us=_HOST_US),
    "megatron-graphs": Software(hidden_tensor=0.5, sends_once=True),
    "megatron-plain": Software(overlaps_gradients=False),
    "megatron-2021": Software(
        attention=AttentionKernel.UNFUSED,
        overlaps_gradients=False,
        traffic=1.3,
        waits_for_sends=True,
        saves_casts=False,
        gathers_narrow=False,
    ),
    # Keys and values are repeated before attention, and gathered before it begins (its default
    # `context_parallel_rotate_method`).
    "torchtitan": Software(
        attention=AttentionKernel.FLASH2,
        shown_context=1.0,
        repeats_keys=True,
        stops_early=True,
        saves_casts=False,
        gathers_narrow=False,
    ),
    # Its recipes have `activation_checkpointing_reentrant: false`.
    "llm-foundry": Software(
        attention=AttentionKernel.FLASH1, traffic=1.5, stops_early=True, gathers_narrow=False
    ),
}


def software_of(name: str) -> Software:
    """Return a training program by its name.

    Raises:
        SynthError: it is not known.
    """
    found = SOFTWARE.get(name)
    if found is None:
        raise SynthError(f"software {name!r:.40} is not known; known: {', '.join(SOFTWARE)}")
    return found


@dataclass(frozen=True)
class Factors:
    """Factors of the times of each kind, in the order of `KINDS`.

    Attributes:
        values: 1 without calibration.
        deviations: standard deviations of their logarithms.
        calibration: what they are fitted to; None: nothing.
        scatter: standard deviation of steps about their estimates with the right factors.
    """

    values: tuple[float, float, float] = (1.0, 1.0, 1.0)
    deviations: tuple[float, float, float] = PRIOR
    calibration: str | None = None
    scatter: float = 0.05

    def us(self, parts: Parts) -> float:
        """The time of parts."""
        matmul, memory, communication = self.values
        return (
            matmul * parts.matmul_us
            + memory * parts.memory_us
            + communication * parts.communication_us
        )

    def at(self, logarithms: np.ndarray) -> "Factors":
        """The same with other values, of which the logarithms are given."""
        matmul, memory, communication = (float(value) for value in np.exp(logarithms))
        return replace(self, values=(matmul, memory, communication))
