"""One direction of a host link: a queue of asynchronous copies."""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ...base.boundary import Tensors


class PendingCopy(Protocol):
    """A copy in flight."""

    def wait(self) -> None:
        """Return when the copy has ended, or make the device's stream wait for it."""
        ...

    def synchronize(self) -> None:
        """Return when the copy has ended, so that this thread may read and write both ends."""
        ...


class Lane(Protocol):
    """One direction of a host link, which makes copies one after another in the background."""

    def copy(self, sources: Tensors, targets: Tensors, after: PendingCopy | None) -> PendingCopy:
        """Queue a copy that begins when `after` has ended; both tuples must live until its end."""
        ...


class StreamLane:
    """Copies between a CUDA device and pinned memory, on a stream of the lane's own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, sources: Tensors, targets: Tensors, after: PendingCopy | None) -> PendingCopy:
        """Enqueue a copy after the work of the compute stream, which may use the device's tensors.

        `wait` makes the compute stream wait for the copy.
        """
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            if after is not None:
                after.wait()
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
        return _StreamCopy(self._device, stream.record_event())


class _StreamCopy:
    """A copy on another stream."""

    def __init__(self, device: torch.device, event: torch.cuda.Event) -> None:
        self._device = device
        self._event = event

    def wait(self) -> None:
        """Make the device's current stream wait for the copy; the host does not wait."""
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def synchronize(self) -> None:
        """Let the host wait for the copy."""
        self._event.synchronize()


class ThreadLane:
    """Copies within the memory of a machine, by one thread."""

    def __init__(self, name: str) -> None:
        self._orders: SimpleQueue[_QueuedCopy | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._orders,), name=name, daemon=True).start()
        weakref.finalize(self, self._orders.put, None)

    def copy(
        self,
        sources: Tensors,
        targets: Tensors,
        after: PendingCopy | None,
        then: Callable[[], None] | None = None,
    ) -> PendingCopy:
        """Queue a copy; `then` is called after it."""
        order = _QueuedCopy(list(zip(sources, targets, strict=True)), after, then)
        self._orders.put(order)
        return order


class _QueuedCopy:
    """A queued copy.

    It drops the tensors before it reports its end, so that the waiting thread frees their memory.
    """

    def __init__(
        self,
        pairs: list[tuple[Tensor, Tensor]],
        after: PendingCopy | None,
        then: Callable[[], None] | None,
    ) -> None:
        self._pairs = pairs
        self._after, self._then = after, then
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

    def synchronize(self) -> None:
        """Like `wait`."""
        self.wait()

    def carry_out(self) -> None:
        """Make the copy."""
        try:
            if self._after is not None:
                self._after.wait()
            _copy(self._pairs)
            if self._then is not None:
                self._then()
        except Exception as error:
            self._error = error
        self._pairs, self._after, self._then = [], None, None
        self._over.set()


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for source, target in pairs:
        np.copyto(target.numpy(), source.numpy())  # releases the GIL


def _work(orders: SimpleQueue[_QueuedCopy | None]) -> None:
    while (order := orders.get()) is not None:
        order.carry_out()
