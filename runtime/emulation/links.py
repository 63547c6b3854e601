"""Real transfers, delayed to the pace of the plan's links if this machine is faster.

The two ends of a transfer share the host's clock; the first bytes of each message are the time of
its sending. A transfer starts when it was sent, its receive was posted and the previous one on the
link has ended. It takes the time in the plan, or longer if it really does.

    receiver: knows all three times.
    sender:   waits until its data is taken, and until the transfer would have ended had the receive
              been posted in time.

Weights may be read, and sent to several ranks at once. So their time of sending is a message of its
own beside them.

The threads of links that carry weights call this, too (`ordered_sends.py`): each link's sends come
from one thread, and several threads may wait for the same receive.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import ValueKind

from ..execution.base.boundary import Tensors
from ..execution.base.channels import Channels, Pending
from ..execution.transport.watched_channels import WatchedReceives
from .emulated_clock import EmulatedClock, after, now_ns
from .emulated_stage import STAMP_BYTES
from .pace import Pace

_Link = tuple[int, int]


class EmulatedLinks:
    """Passes messages on to real channels and delays them as long as the plan says."""

    def __init__(
        self,
        channels: Channels,
        device: EmulatedClock,
        pace: Pace,
        watched: WatchedReceives | None = None,
    ) -> None:
        """Delay messages.

        Args:
            device: the clock of this rank's device.
            pace: the times of transfers.
            watched: watches the real receives, for a rank that looks ahead.
        """
        self._channels = channels
        self.device = device
        self._pace = pace
        self._watched = watched
        self._arriving: dict[Transfer, _Arriving] = {}
        self._sending_until_ns: defaultdict[_Link, int] = defaultdict(int)
        self._receiving_until_ns: defaultdict[_Link, int] = defaultdict(int)
        self._open: defaultdict[_Link, deque[_Arriving]] = defaultdict(deque)
        self._settling: defaultdict[_Link, threading.Lock] = defaultdict(threading.Lock)

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Write the time into the message and send it."""
        message = _message(tensors, transfer)
        sent_ns = self.device.now_ns()
        _stamp(message)[:] = sent_ns, self.device.late_ns
        link = (transfer.source, transfer.target)
        start_ns = max(sent_ns, self._sending_until_ns[link])
        taken_us = self._pace.transfer_us(transfer, sends=True)
        self._sending_until_ns[link] = end_ns = after(start_ns, taken_us)
        return _Leaving(self._channels.send(message, transfer), self.device, end_ns)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive."""
        pending = self._channels.receive(_message(buffers, transfer), transfer)
        link = (transfer.source, transfer.target)
        posted_ns = self.device.now_ns()
        arriving = _Arriving(self, pending, transfer, posted_ns, self._settling[link])
        self._open[link].append(arriving)
        if self._watched is not None:
            self._arriving[transfer] = arriving
        return arriving

    def abort(self) -> None:
        """Disconnect from all other ranks."""
        self._channels.abort()

    def settle(self, last: "_Arriving") -> None:
        """Determine the end of a transfer, and of all earlier ones on its link.

        One that fails ends at once. Its error is raised where its tensors are read.
        """
        link = (last.transfer.source, last.transfer.target)
        while last.end_ns is None:
            # One by one: a thread that wants an earlier transfer need not wait for a later one.
            with last.settling:
                if last.end_ns is None:
                    self._settle(self._open[link].popleft(), link)

    def _settle(self, each: "_Arriving", link: _Link) -> None:
        arrived_ns = None if self._watched is None else self._watched.arrived_ns(each.transfer)
        try:
            sent_ns, each.sender_late_ns = _stamp(each.pending.wait()).tolist()
        except RuntimeError:
            each.end_ns = each.posted_ns
            return
        each.came_ns = now_ns() if arrived_ns is None else arrived_ns
        start_ns = max(sent_ns, each.posted_ns, self._receiving_until_ns[link])
        end_ns = after(start_ns, self._pace.transfer_us(each.transfer, sends=False))
        self._receiving_until_ns[link] = each.end_ns = end_ns

    def has_arrived(self, transfer: Transfer) -> bool:
        """True if a posted receive has ended by the device's time."""
        if transfer not in self._arriving:  # it was waited for
            return True
        end_ns = self._known_end_ns(transfer)
        return end_ns is not None and end_ns <= self.device.now_ns()

    def forget(self, transfer: Transfer) -> None:
        """A receive was waited for, and its tensors are the reader's."""
        self._arriving.pop(transfer, None)

    def wait_any(self, transfers: Sequence[Transfer]) -> None:
        """Return once one of the posted receives has ended by the device's time.

        A device that is late waits less, and so catches up.
        """
        assert self._watched is not None
        asked_ns = now_ns()
        while True:
            came = [t for t in transfers if self._known_end_ns(t) is not None]
            first = min(came, key=lambda t: self._arriving[t].end_ns or 0, default=None)
            left_ns = None if first is None else (self._arriving[first].end_ns or 0) - now_ns()
            if left_ns is not None and left_ns <= 0:
                break
            others = [t for t in transfers if t not in came]
            self._watched.wait_any(others, None if left_ns is None else left_ns / 1e9)
        assert first is not None
        arriving = self._arriving[first]
        self.device.resumed(
            arriving.end_ns or 0, asked_ns, arriving.came_ns, arriving.sender_late_ns
        )

    def _known_end_ns(self, transfer: Transfer) -> int | None:
        """The end of a posted receive by the plan's links; None: its message has not come."""
        assert self._watched is not None
        arriving = self._arriving[transfer]
        if arriving.end_ns is None and self._watched.has_arrived(transfer):
            self.settle(arriving)
        return arriving.end_ns


def _message(tensors: Tensors, transfer: Transfer) -> Tensors:
    """The tensors with a place for the time stamp; torch would count memory for a new one."""
    if transfer.value.kind != ValueKind.WEIGHTS:
        return tensors
    return (torch.from_numpy(np.empty(STAMP_BYTES, dtype=np.uint8)), *tensors)


def _stamp(tensors: Tensors) -> npt.NDArray[np.int64]:
    """The time stamp of a message, as a numpy view, because torch would allocate memory."""
    stamp: npt.NDArray[np.int64] = tensors[0].numpy()[:STAMP_BYTES].view(np.int64)
    return stamp


class _Leaving:
    """A message in flight, seen by its sender."""

    def __init__(self, pending: Pending, device: EmulatedClock, end_ns: int) -> None:
        self._pending = pending
        self._device = device
        self._end_ns = end_ns

    def wait(self) -> Tensors:
        tensors = self._pending.wait()
        self._device.sleep_until(self._end_ns)
        return tensors


class _Arriving:
    """A message in flight, seen by its receiver.

    `end_ns`, by the device's time, and `came_ns`, by the host's clock, are known when it has
    arrived. `settling` is held by the thread that finds them out.
    """

    def __init__(
        self,
        links: EmulatedLinks,
        pending: Pending,
        transfer: Transfer,
        posted_ns: int,
        settling: threading.Lock,
    ) -> None:
        self._links = links
        self.pending = _Once(pending)
        self.transfer = transfer
        self.posted_ns = posted_ns
        self.settling = settling
        self.sender_late_ns = 0
        self.came_ns = 0
        self.end_ns: int | None = None

    def wait(self) -> Tensors:
        asked_ns = now_ns()
        self._links.settle(self)
        assert self.end_ns is not None
        self._links.device.arrived(self.end_ns, asked_ns, self.sender_late_ns)
        self._links.forget(self.transfer)
        message = self.pending.wait()
        return message[1:] if self.transfer.value.kind == ValueKind.WEIGHTS else message


class _Once:
    """A receive whose second wait ends at once, as the first one did; gloo allows only one wait."""

    def __init__(self, pending: Pending) -> None:
        self._pending: Pending | None = pending
        self._tensors: Tensors = ()
        self._error: RuntimeError | None = None

    def wait(self) -> Tensors:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                self._tensors = pending.wait()
            except RuntimeError as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._tensors
