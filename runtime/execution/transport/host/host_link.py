"""The link between a rank and its host's memory, for activations, weights and gradients.

The two directions run concurrently with each other and with compute; each makes one move after
another. A move back starts when it has been requested and the move out has ended:

    compute   | F0  | F1    | F2  | BW2      | BW0     |
    out             [== 0 ==][== 1 ==]
    back                                [== 0 ==]

The host's copies do not count as memory of any rank (`host_memory`); their buffers are reused in
each step. Weights that the host keeps (`host_stage`) come in the direction `back`, and their
accumulated gradients leave in the direction `out`. If ranks share the host's memory, what one of
them leaves there for another one's backward goes by the same two (`shared_host`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind

from ...base.boundary import Tensors
from .copy_lane import Lane, PendingCopy, StreamLane, ThreadLane
from .host_memory import HostMemory, as_bytes, host_memory
from .shared_host import SharedHost


class HostMove(NamedTuple):
    """Saved activations that leave for the host, or come back.

    Attributes:
        whose: their stage, micro-batch and replica.
        is_out: True if they leave.
    """

    whose: tuple[int, int, int]
    is_out: bool
    num_bytes: int


class HostedStage(Protocol):
    """A stage whose weights the host keeps, as the link uses it; see `weights.host_stage`."""

    @property
    def shared(self) -> SharedHost | None:
        """The memory that ranks share; None: the stage is this rank's alone."""
        ...

    def load(self, buffers: Tensors, lane: Lane) -> PendingCopy:
        """Start copying the weights into the buffers of a visit."""
        ...

    def store(self, sums: Tensors, value: Value, lane: Lane) -> PendingCopy:
        """Start copying a rank's gradient sum to its place."""
        ...


@dataclass(eq=False)
class _HostBuffer:
    """A buffer in the host's memory; it may be written again when `free` has ended."""

    memory: Tensor
    free: PendingCopy | None = None


@dataclass(eq=False)
class _HostCopy:
    """A move's copy in the host's memory, complete when `done` has ended."""

    buffer: _HostBuffer
    parts: Tensors
    done: PendingCopy


class _Moving:
    """A move in flight."""

    def __init__(self, done: PendingCopy, tensors: Tensors) -> None:
        self._done = done
        self._tensors = tensors

    def wait(self) -> Tensors:
        self._done.wait()
        return self._tensors


class HostLink:
    """Stores what is sent to the host until it is requested; implements `Transport`."""

    def __init__(
        self, device: torch.device, stages: Mapping[int, HostedStage] | None = None
    ) -> None:
        """Make the link of a rank that computes on a device.

        Args:
            device: the device of the tensors that move.
            stages: by number those whose state is in the host's memory; None: there are none.
        """
        on_cuda = device.type == "cuda"
        self._out: Lane = StreamLane(device) if on_cuda else ThreadLane("offload")
        self._back: Lane = StreamLane(device) if on_cuda else ThreadLane("reload")
        self._stages = stages or {}
        self._shared = next((stage.shared for stage in self._stages.values()), None)
        self._pool = _HostBuffers(host_memory(device))
        self._copies: dict[tuple[int, int, int], _HostCopy] = {}

    def send(self, tensors: Tensors, transfer: Transfer) -> _Moving:
        """Start copying to the host: rows of bytes of activations, or a sum of gradients."""
        kind, stage, *_ = transfer.value
        if kind == ValueKind.GRAD_ACC:
            return _Moving(self._stages[stage].store(tensors, transfer.value, self._out), tensors)
        if self._shared is not None:
            rows, value = as_bytes(tensors), transfer.value
            left = self._shared.leave(self._out, rows, self._place(transfer, rows), value)
            return _Moving(left, tensors)
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
        """Start copying back what was sent for the same stage and micro-batch, or weights.

        Where ranks share the host's memory, another one may have sent it, or not yet.
        """
        if transfer.value.kind == ValueKind.WEIGHTS:
            done = self._stages[transfer.value.stage].load(buffers, self._back)
            return _Moving(done, buffers)
        if self._shared is not None:
            rows, left = as_bytes(buffers), self._shared.ready(transfer.value)
            return _Moving(self._back.copy(self._place(transfer, rows), rows, left), buffers)
        stored = self._copies.pop(transfer.value[1:])
        done = self._back.copy(stored.parts, buffers, stored.done)
        stored.buffer.free = done
        self._pool.give(stored.buffer)
        return _Moving(done, buffers)

    def _place(self, transfer: Transfer, rows: Tensors) -> Tensors:
        """The memory that ranks share for a value, as rows of bytes."""
        assert self._shared is not None
        return self._shared.parts(transfer.value, [row.numel() for row in rows])


class _HostBuffers:
    """A pool of host buffers for reuse."""

    def __init__(self, make: HostMemory) -> None:
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
