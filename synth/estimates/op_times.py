"""Times of operations, apart by what a calibration scales: matrices, memory, communication."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from synth.estimates.collectives import collective_us
from synth.estimates.device import Device
from synth.estimates.layout import AttentionKernel, Software
from synth.estimates.ops import Attention, GroupExchange, Matmul, Operation, Traffic
from synth.estimates.rates import attention_flops_per_s, matmul_efficiency

# Of a kernel, beside its bytes: the gap to the one before.
LAUNCH_US = 3.0

# Share of the peak that the batched products of unfused attention reach.
_UNFUSED_EFFICIENCY = 0.42

# FlashAttention 2 against 1 and Triton's, which are alike (arXiv 2307.08691, figures 4 to 7).
_FIRST_SLOWER = 1.8


@dataclass(frozen=True)
class Parts:
    """Microseconds of products, of kernels bound by memory, and of communication."""

    matmul_us: float = 0.0
    memory_us: float = 0.0
    communication_us: float = 0.0

    def __add__(self, other: "Parts") -> "Parts":
        return Parts(
            self.matmul_us + other.matmul_us,
            self.memory_us + other.memory_us,
            self.communication_us + other.communication_us,
        )

    def times(self, factor: float) -> Self:
        """All of it `factor` times."""
        return type(self)(
            factor * self.matmul_us, factor * self.memory_us, factor * self.communication_us
        )

    @property
    def total_us(self) -> float:
        """The sum, each as it is."""
        return self.matmul_us + self.memory_us + self.communication_us


def parts_of(operations: Iterable[Operation], device: Device, software: Software) -> Parts:
    """Return the time of operations one after another."""
    total = Parts()
    for operation in operations:
        total += _parts(operation, device, software)
    return total


def _parts(operation: Operation, device: Device, software: Software) -> Parts:
    match operation:
        case Matmul():
            rate = device.peak(operation.dtype) * matmul_efficiency(device, operation)
            return Parts(matmul_us=operation.flops / rate * 1e6, memory_us=LAUNCH_US)
        case Attention():
            return Parts(matmul_us=_attention_us(operation, device, software), memory_us=LAUNCH_US)
        case Traffic():
            rate = device.memory_bytes_per_s * device.memory_efficiency
            launches = LAUNCH_US * operation.kernels
            return Parts(memory_us=operation.num_bytes / rate * 1e6 + launches)
        case GroupExchange():
            return Parts(communication_us=collective_us(device, operation))


def _attention_us(call: Attention, device: Device, software: Software) -> float:
    if software.attention is AttentionKernel.UNFUSED:
        return call.flops / (_UNFUSED_EFFICIENCY * device.peak("bfloat16")) * 1e6
    is_first = software.attention is AttentionKernel.FLASH1
    kernel = "flash2" if is_first else software.attention.value
    slower = _FIRST_SLOWER if is_first else 1.0
    return slower * call.flops / attention_flops_per_s(device, call, kernel) * 1e6
