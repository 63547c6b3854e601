"""One direction between a rank and its host's memory: copies one after another, asynchronously."""

import threading
import weakref
from queue import SimpleQueue
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .boundary import Tensors


class Done(Protocol):
    """The end of a copy."""

    def wait(self) -> None:
        """Return when the copy is over, or make the device's stream wait for it."""
        ...

    def settle(self) -> None:
        """Return when the copy is over, so that this thread may read and write both ends."""
        ...


class Lane(Protocol):
    """One direction: makes copies one after another, and the caller does not wait."""

    def copy(self, sources: Tensors, targets: Tensors, after: Done | None) -> Done:
        """Start a copy that begins when `after` is over; both tuples must live until it ends."""
        ...


class StreamLane:
    """Copies between a CUDA device and pinned memory, on a stream of the lane's own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, sources: Tensors, targets: Tensors, after: Done | None) -> Done:
        """Enqueue a copy behind the work of the compute stream, which may use the device's tensors.

        `wait` makes the compute stream wait for the copy.
        """
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
        """Make the device's current stream wait for the copy; the host does not wait."""
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def settle(self) -> None:
        """Let the host wait for the copy."""
        self._event.synchronize()


class ThreadLane:
    """Copies within the memory of a machine, by one thread."""

    def __init__(self, name: str) -> None:
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._orders,), name=name, daemon=True).start()
        weakref.finalize(self, self._orders.put, None)

    def copy(self, sources: Tensors, targets: Tensors, after: Done | None) -> Done:
        """Queue a copy."""
        order = _Order(list(zip(sources, targets, strict=True)), after)
        self._orders.put(order)
        return order


class _Order:
    """A queued copy.

    It drops the tensors before it reports its end, so that the waiting thread frees their memory.
    """

    def __init__(self, pairs: list[tuple[Tensor, Tensor]], after: Done | None) -> None:
        self._pairs = pairs
        self._after = after
        self._over = threading.Event()
        self._error: Exception | None = None

    def wait(self) -> None:
        """Return when the copy is done.

        Raises:
            Exception: the copy failed.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error

    def settle(self) -> None:
        """As `wait`."""
        self.wait()

    def carry_out(self) -> None:
        """Make the copy."""
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
        np.copyto(target.numpy(), source.numpy())  # releases the GIL


def _work(orders: "SimpleQueue[_Order | None]") -> None:
    while (order := orders.get()) is not None:
        order.carry_out()
