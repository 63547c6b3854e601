"""The order among the threads of a rank that use the same tensors.

The rank's own thread makes and reads values; the threads of links send them (`ordered_sends.py`).
On CPU a thread has made a tensor when its call returns, and has received one when its wait returns.
On CUDA the host does not wait: each thread's stream waits for the events of the others.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from ..base.boundary import Tensors
from ..base.channels import Pending

Source = Callable[[], Tensors]
"""Returns tensors once the calling thread may use them."""


class ThreadOrder(Protocol):
    """Lets a thread use what another one has made or receives."""

    def made(self, tensors: Tensors) -> Source:
        """The source, for another thread, of tensors that this one has made."""
        ...

    def shared(self, pending: Pending) -> tuple[Source, Pending]:
        """Share a receive: its source for other threads, and the receive for this one."""
        ...

    def on_thread(self, link: tuple[int, int]) -> AbstractContextManager[Any]:
        """The context in which the thread of a link sends."""
        ...


class DeviceOrder:
    """The order on a device of torch's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[tuple[int, int], Any] = {}

    def made(self, tensors: Tensors) -> Source:
        """The source of tensors that this thread has made, or let its device make."""
        if self._device.type != "cuda":
            return lambda: tensors
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))

        def ready() -> Tensors:
            torch.cuda.current_stream(self._device).wait_event(event)
            return tensors

        return ready

    def shared(self, pending: Pending) -> tuple[Source, Pending]:
        """See `ThreadOrder`: whichever thread asks first waits for the receive."""
        arrival = _Arrival(pending, self._device)
        return arrival.wait, arrival

    def on_thread(self, link: tuple[int, int]) -> AbstractContextManager[Any]:
        """On CUDA a stream of the link's own, the same one in every step.

        PyTorch has 32 streams, which it hands out in turn. New ones in every step would soon be
        those of communicators, and a send would wait for a collective.
        """
        if self._device.type != "cuda":
            return nullcontext()
        if link not in self._streams:
            self._streams[link] = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._streams[link])


class _Arrival:
    """A receive whose tensors several threads wait for."""

    def __init__(self, pending: Pending, device: torch.device) -> None:
        """Share a receive into tensors of a device."""
        self._pending: Pending | None = pending
        self._device = device
        self._there: Any = None
        self._lock = threading.Lock()
        self._tensors: Tensors | None = None
        self._error: str | None = None

    def wait(self) -> Tensors:
        """Return the tensors once they may be read, on CUDA by this thread's stream.

        Raises:
            RuntimeError: the other rank is gone, or the time-out passed.
        """
        with self._lock:
            if self._error is not None:
                raise RuntimeError(self._error)
            if self._pending is not None:
                self._wait_once(self._pending)
            elif self._there is not None:
                torch.cuda.current_stream(self._device).wait_event(self._there)
            assert self._tensors is not None
            return self._tensors

    def _wait_once(self, pending: Pending) -> None:
        try:
            self._tensors = pending.wait()
        except Exception as error:
            self._error = str(error)
            raise
        self._pending = None
        if self._device.type == "cuda":
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record(torch.cuda.current_stream(self._device))
