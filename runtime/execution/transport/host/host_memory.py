"""Memory of the host: pinned for a CUDA device, beside PyTorch's allocator for the CPU.

The CPU's host memory is the rank's own, so that it must not be counted as the rank's.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ...base.boundary import Tensors

HostMemory = Callable[[int], Tensor]
"""Allocates a number of bytes without contents, as a flat uint8 tensor."""


def host_memory(device: torch.device) -> HostMemory:
    """The host memory of a rank that computes on a device."""
    return _pinned if device.type == "cuda" else _beside_torch


def as_bytes(buffers: Tensors) -> Tensors:
    """Contiguous tensors as flat views of their bytes."""
    return tuple(buffer.view(-1).view(torch.uint8) for buffer in buffers)


def _pinned(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def _beside_torch(num_bytes: int) -> Tensor:
    return torch.from_numpy(np.empty(num_bytes, dtype=np.uint8))
