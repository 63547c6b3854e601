"""The link between a rank and its host's memory, for saved activations that are offloaded.

The two directions run concurrently with each other and with compute; each makes one move after
another. A move back starts when it has been requested and the move out has ended:

    compute   | F0  | F1    | F2  | BW2      | BW0     |
    out             [== 0 ==][== 1 ==]
    back                                [== 0 ==]

The copies are not part of any rank's memory: on CUDA they are pinned; on CPU, whose host memory is
the rank's own, they lie outside of PyTorch's allocator. The memory is reused from step to step.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from synth.schedule.lowering.lower import Transfer

from .boundary import Tensors
from .copy_lane import Done, Lane, StreamLane, ThreadLane


class HostMove(NamedTuple):
    """Saved activations that leave for the host, or come back.

    Attributes:
        whose: their stage, micro-batch and replica.
        is_out: True if they leave.
        num_bytes: of all of them.
    """

    whose: tuple[int, int, int]
    is_out: bool
    num_bytes: int


@dataclass(eq=False)
class _HostBuffer:
    """A buffer in the host's memory; it may be written again when `free` is over."""

    memory: Tensor
    free: Done | None = None


@dataclass(eq=False)
class _HostCopy:
    """A move's copy in the host's memory, complete when `done` is over."""

    buffer: _HostBuffer
    parts: Tensors
    done: Done


class _Moving:
    """A move under way."""

    def __init__(self, done: Done, tensors: Tensors) -> None:
        self._done = done
        self._tensors = tensors

    def wait(self) -> Tensors:
        self._done.wait()
        return self._tensors


class HostLink:
    """Stores what is sent to the host until it is requested; implements `Transport`."""

    def __init__(self, device: torch.device) -> None:
        """Make the link of a rank that computes on a device."""
        on_cuda = device.type == "cuda"
        self._out: Lane = StreamLane(device) if on_cuda else ThreadLane("offload")
        self._back: Lane = StreamLane(device) if on_cuda else ThreadLane("reload")
        self._pool = _HostBuffers(_pinned if on_cuda else _beside_torch)
        self._copies: dict[tuple[int, int, int], _HostCopy] = {}

    def send(self, tensors: Tensors, transfer: Transfer) -> _Moving:
        """Start copying rows of bytes to the host."""
        whose = transfer.value[1:]
        if whose in self._copies:  # left by an iteration that was undone
            self._pool.give(self._copies.pop(whose).buffer)
        sizes = [t.numel() for t in tensors]
        buffer = self._pool.take(sum(sizes))
        parts = torch.split(buffer.memory[: sum(sizes)], sizes)
        done = self._out.copy(tensors, parts, buffer.free)
        self._copies[whose] = _HostCopy(buffer, parts, done)
        return _Moving(done, tensors)

    def reserve(self, moves: Iterable[HostMove]) -> None:
        """Allocate the host memory for a step's moves, listed in the program's order.

        Pinning memory may wait for the device, and so for a receive that was posted before.
        """
        taken: dict[tuple[int, int, int], _HostBuffer] = {}
        for whose, is_out, num_bytes in moves:
            if is_out:
                taken[whose] = self._pool.take(num_bytes)
            else:
                self._pool.give(taken.pop(whose))
        for buffer in taken.values():
            self._pool.give(buffer)

    def receive(self, buffers: Tensors, transfer: Transfer) -> _Moving:
        """Start copying back the bytes that were sent for the same stage and micro-batch."""
        stored = self._copies.pop(transfer.value[1:])
        done = self._back.copy(stored.parts, buffers, stored.done)
        stored.buffer.free = done
        self._pool.give(stored.buffer)
        return _Moving(done, buffers)


class _HostBuffers:
    """A pool of host buffers for reuse."""

    def __init__(self, make: Callable[[int], Tensor]) -> None:
        self._make = make
        self._free: list[_HostBuffer] = []

    def take(self, num_bytes: int) -> _HostBuffer:
        """Take the smallest buffer that is large enough.

        If there is none, a new one replaces one that is too small.
        """
        large = [buffer for buffer in self._free if buffer.memory.numel() >= num_bytes]
        if large:
            found = min(large, key=lambda buffer: buffer.memory.numel())
            self._free.remove(found)
            return found
        if self._free:
            self._free.pop()
        return _HostBuffer(self._make(num_bytes))

    def give(self, buffer: _HostBuffer) -> None:
        """Return a buffer to the pool."""
        self._free.append(buffer)


def _pinned(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def _beside_torch(num_bytes: int) -> Tensor:
    return torch.from_numpy(np.empty(num_bytes, dtype=np.uint8))
