"""A rank's way to its host's memory and back, for saved activations that are offloaded.

The two directions work beside each other and beside compute, each on one move after the other. A
move that comes back starts when it has been asked for and has left:

    compute   | F0  | F1    | F2  | BW2      | BW0     |
    out             [== 0 ==][== 1 ==]
    back                                [== 0 ==]

What is copied to belongs to no rank's memory: on CUDA it is pinned, on CPU it lies outside of
PyTorch's allocator, as there the host's memory is the rank's own. It is used again from step to
step.
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
        is_out: True where they leave.
        num_bytes: of all of them.
    """

    whose: tuple[int, int, int]
    is_out: bool
    num_bytes: int


@dataclass(eq=False)
class _Room:
    """Bytes of the host's memory; `free` is over when they may be written again."""

    memory: Tensor
    free: Done | None = None


@dataclass(eq=False)
class _Kept:
    """A move's copy in the host's memory, there when `done` is over."""

    room: _Room
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
    """Keeps what is sent to the host until it is asked for; meets `Transport`."""

    def __init__(self, device: torch.device) -> None:
        """For a rank that computes on a device."""
        on_cuda = device.type == "cuda"
        self._out: Lane = StreamLane(device) if on_cuda else ThreadLane("offload")
        self._back: Lane = StreamLane(device) if on_cuda else ThreadLane("reload")
        self._rooms = _Rooms(_pinned if on_cuda else _beside_torch)
        self._kept: dict[tuple[int, int, int], _Kept] = {}

    def send(self, tensors: Tensors, transfer: Transfer) -> _Moving:
        """Start copying rows of bytes to the host."""
        whose = transfer.value[1:]
        if whose in self._kept:  # of an iteration that was called back
            self._rooms.give(self._kept.pop(whose).room)
        sizes = [t.numel() for t in tensors]
        room = self._rooms.take(sum(sizes))
        parts = torch.split(room.memory[: sum(sizes)], sizes)
        done = self._out.copy(tensors, parts, room.free)
        self._kept[whose] = _Kept(room, parts, done)
        return _Moving(done, tensors)

    def reserve(self, moves: Iterable[HostMove]) -> None:
        """Allocate the memory that a step's moves take, listed in the program's order.

        To pin memory may wait for the device, and so for a receive that was posted before.
        """
        taken: dict[tuple[int, int, int], _Room] = {}
        for whose, is_out, num_bytes in moves:
            if is_out:
                taken[whose] = self._rooms.take(num_bytes)
            else:
                self._rooms.give(taken.pop(whose))
        for room in taken.values():
            self._rooms.give(room)

    def receive(self, buffers: Tensors, transfer: Transfer) -> _Moving:
        """Start copying back into buffers what was sent of the same stage and micro-batch."""
        kept = self._kept.pop(transfer.value[1:])
        done = self._back.copy(kept.parts, buffers, kept.done)
        kept.room.free = done
        self._rooms.give(kept.room)
        return _Moving(done, buffers)


class _Rooms:
    """Memory of the host that was used before and may be used again."""

    def __init__(self, make: Callable[[int], Tensor]) -> None:
        self._make = make
        self._free: list[_Room] = []

    def take(self, num_bytes: int) -> _Room:
        """The smallest that is large enough; a new one takes the place of one that is too small."""
        large = [room for room in self._free if room.memory.numel() >= num_bytes]
        if large:
            found = min(large, key=lambda room: room.memory.numel())
            self._free.remove(found)
            return found
        if self._free:
            self._free.pop()
        return _Room(self._make(num_bytes))

    def give(self, room: _Room) -> None:
        """It will be free."""
        self._free.append(room)


def _pinned(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def _beside_torch(num_bytes: int) -> Tensor:
    return torch.from_numpy(np.empty(num_bytes, dtype=np.uint8))
