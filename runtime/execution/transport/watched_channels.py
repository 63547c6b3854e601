"""Receives that report when they have arrived, for ranks that look ahead.

Transports only wait. Therefore a thread for each link with open receives waits for them, in their
order, and notes when they have arrived. It ends when none are left.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from synth.schedule.lowering.lower import Transfer

from ..base.boundary import Tensors
from ..base.channels import Channels, Pending


class Arrivals(Protocol):
    """Tells which of a rank's receives have arrived; those that were waited for have."""

    def has_arrived(self, transfer: Transfer) -> bool:
        """True if waiting for a posted receive would not block; also if it has failed."""
        ...

    def wait_any(self, transfers: Sequence[Transfer]) -> None:
        """Return once one of the posted receives has arrived; at once if one already has."""
        ...


class _WatchedReceive:
    """A receive that a thread waits for."""

    def __init__(self, pending: Pending, forget: Callable[[], None]) -> None:
        self._pending = pending
        self._forget = forget
        self._tensors: Tensors = ()
        self._error: BaseException | None = None
        self._over = threading.Event()
        self.arrived_ns: int | None = None

    def finish(self) -> None:
        """Wait for the transfer; called by the watching thread."""
        try:
            self._tensors = self._pending.wait()
        except BaseException as error:
            self._error = error
        self.arrived_ns = time.perf_counter_ns()
        self._over.set()

    def wait(self) -> Tensors:
        self._over.wait()
        self._forget()
        if self._error is not None:
            raise self._error
        return self._tensors


class WatchedReceives:
    """The open receives of a rank, by transfer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._by_transfer: dict[Transfer, _WatchedReceive] = {}
        self._by_source: defaultdict[int, deque[_WatchedReceive]] = defaultdict(deque)

    def watch(self, pending: Pending, transfer: Transfer) -> Pending:
        """Begin to watch a receive that was just posted."""
        receive = _WatchedReceive(pending, lambda: self._forget(transfer))
        with self._changed:
            self._by_transfer[transfer] = receive
            open_ones = self._by_source[transfer.source]
            open_ones.append(receive)
            if len(open_ones) == 1:
                name = f"receives from rank {transfer.source}"
                threading.Thread(
                    target=self._finish, args=(open_ones,), name=name, daemon=True
                ).start()
        return receive

    def has_arrived(self, transfer: Transfer) -> bool:
        """True if waiting for a posted receive would not block; also if it has failed."""
        return self.arrived_ns(transfer) is not None

    def arrived_ns(self, transfer: Transfer) -> int | None:
        """The host's monotonic time when a receive arrived; None: not yet. 0: it was waited for."""
        receive = self._by_transfer.get(transfer)
        return 0 if receive is None else receive.arrived_ns

    def wait_any(self, transfers: Sequence[Transfer], timeout_s: float | None = None) -> None:
        """Return once one of the posted receives has arrived, or the time has passed."""
        with self._changed:
            self._changed.wait_for(lambda: any(map(self.has_arrived, transfers)), timeout_s)

    def _finish(self, open_ones: deque[_WatchedReceive]) -> None:
        while open_ones:
            open_ones[0].finish()
            with self._changed:  # a receive that is posted now finds the thread or its end
                open_ones.popleft()
                self._changed.notify_all()
                if not open_ones:
                    return

    def _forget(self, transfer: Transfer) -> None:
        with self._changed:
            self._by_transfer.pop(transfer, None)


class WatchedChannels:
    """Channels between ranks whose receives are watched."""

    def __init__(self, channels: Channels, receives: WatchedReceives) -> None:
        self._channels = channels
        self._receives = receives

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start sending."""
        return self._channels.send(tensors, transfer)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive, and begin to watch it."""
        return self._receives.watch(self._channels.receive(buffers, transfer), transfer)

    def abort(self) -> None:
        """Disconnect from all other ranks; open receives fail."""
        self._channels.abort()
