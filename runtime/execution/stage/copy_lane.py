"""One direction of a rank's way to its host: copies one after the other, while the rank goes on."""

import threading
import weakref
from queue import SimpleQueue
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

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


class StreamLane:
    """Copies between a CUDA device and pinned memory, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, sources: Tensors, targets: Tensors, after: Done | None) -> Done:
        """Enqueue behind all that the compute stream was given so far, which may use the device's
        end of the copy; there `wait` orders it again."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            if after is not None:
                after.wait()
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
        return _StreamDone(self._device, stream.record_event())


class _StreamDone:
    """A copy on another stream."""

    def __init__(self, device: torch.device, event: torch.cuda.Event) -> None:
        self._device = device
        self._event = event

    def wait(self) -> None:
        """The device's current stream goes on behind the copy; the host does not wait."""
        torch.cuda.current_stream(self._device).wait_event(self._event)


class ThreadLane:
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
