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

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from synth.schedule.lower import Transfer

from .boundary import Tensors


class Done(Protocol):
    """Tells when a copy is over."""

    def wait(self) -> None:
        """Return, or order the device's stream, when it is."""
        ...


class Lane(Protocol):
    """One direction: makes copies one after the other, and the caller does not wait."""

    def copy(self, sources: Tensors, targets: Tensors, after: Done | None) -> Done:
        """Start one, which begins when `after` is over; both rows must live until it is."""
        ...


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
    """Keeps what is sent to the host until it is asked for; meets `Channels`."""

    def __init__(self, device: torch.device) -> None:
        """For a rank that computes on a device."""
        on_cuda = device.type == "cuda"
        self._out: Lane = _StreamLane(device) if on_cuda else _ThreadLane("offload")
        self._back: Lane = _StreamLane(device) if on_cuda else _ThreadLane("reload")
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


class _StreamLane:
    """Copies between a CUDA device and pinned memory, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, sources: Tensors, targets: Tensors, after: Done | None) -> Done:
        """Enqueue behind all that the compute stream was given so far, which may use the device's
        end of the copy; there `wait` orders it again."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            if after is not None:
                after.wait()
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
        return _StreamDone(stream.record_event())


class _StreamDone:
    """A copy on another stream."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        """The stream that is current goes on behind the copy; the host does not wait."""
        self._event.wait()


class _ThreadLane:
    """Copies within the memory of a machine, by a thread of its own."""

    def __init__(self, name: str) -> None:
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._orders,), name=name, daemon=True).start()
        weakref.finalize(self, self._orders.put, None)

    def copy(self, sources: Tensors, targets: Tensors, after: Done | None) -> Done:
        """Order it."""
        order = _Order(list(zip(sources, targets, strict=True)), after)
        self._orders.put(order)
        return order


class _Order:
    """A copy to be made; it lets go of the tensors before it says that it is over, so that their
    memory is freed by whoever waited for it."""

    def __init__(self, pairs: list[tuple[Tensor, Tensor]], after: Done | None) -> None:
        self._pairs = pairs
        self._after = after
        self._over = threading.Event()
        self._error: Exception | None = None

    def wait(self) -> None:
        """Return when it has been made.

        Raises:
            Exception: what went wrong.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error

    def carry_out(self) -> None:
        """Make it."""
        try:
            if self._after is not None:
                self._after.wait()
            _copy(self._pairs)
        except Exception as error:
            self._error = error
        self._pairs, self._after = [], None
        self._over.set()


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for source, target in pairs:
        np.copyto(target.numpy(), source.numpy())  # other threads of Python go on meanwhile


def _work(orders: "SimpleQueue[_Order | None]") -> None:
    while (order := orders.get()) is not None:
        order.carry_out()
