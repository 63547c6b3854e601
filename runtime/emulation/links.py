"""Real transfers, delayed to the pace of the plan's links if this machine is faster.

The two ends of a transfer share the host's clock; the first bytes of each message are the time of
its sending. A transfer starts when it was sent, its receive was posted and the previous one on the
link has ended. It takes the time in the plan, or longer if it really does.

    receiver: knows all three times.
    sender:   waits until its data is taken, and until the transfer would have ended had the receive
              been posted in time.
"""

from collections import defaultdict, deque

import numpy as np
import numpy.typing as npt

from synth.schedule.lowering.lower import Transfer

from ..execution.stage.boundary import Tensors
from ..execution.transport.channels import Channels, Pending
from .device_time import DeviceTime, after, now_ns
from .stage import STAMP_BYTES

_Link = tuple[int, int]


class EmulatedLinks:
    """Passes messages on to real channels and delays them as long as the plan says."""

    def __init__(self, channels: Channels, device: DeviceTime) -> None:
        self._channels = channels
        self.device = device
        self._sending_until_ns: defaultdict[_Link, int] = defaultdict(int)
        self._receiving_until_ns: defaultdict[_Link, int] = defaultdict(int)
        self._open: defaultdict[_Link, deque[_Arriving]] = defaultdict(deque)

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Write the time into the message and send it."""
        sent_ns = self.device.now_ns()
        _stamp(tensors)[:] = sent_ns, self.device.late_ns
        link = (transfer.source, transfer.target)
        start_ns = max(sent_ns, self._sending_until_ns[link])
        self._sending_until_ns[link] = end_ns = after(start_ns, transfer.duration_us)
        return _Leaving(self._channels.send(tensors, transfer), self.device, end_ns)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive."""
        pending = self._channels.receive(buffers, transfer)
        arriving = _Arriving(self, pending, transfer, self.device.now_ns())
        self._open[transfer.source, transfer.target].append(arriving)
        return arriving

    def abort(self) -> None:
        """Disconnect from all other ranks."""
        self._channels.abort()

    def settle(self, last: "_Arriving") -> None:
        """Determine the end of a transfer, and of all earlier ones on its link."""
        link = (last.transfer.source, last.transfer.target)
        while last.end_ns is None:
            each = self._open[link].popleft()
            sent_ns, each.sender_late_ns = _stamp(each.pending.wait()).tolist()
            start_ns = max(sent_ns, each.posted_ns, self._receiving_until_ns[link])
            each.end_ns = after(start_ns, each.transfer.duration_us)
            self._receiving_until_ns[link] = each.end_ns


def _stamp(tensors: Tensors) -> npt.NDArray[np.int64]:
    """The time stamp of a message, as a numpy view, because torch would allocate memory."""
    stamp: npt.NDArray[np.int64] = tensors[0].numpy()[:STAMP_BYTES].view(np.int64)
    return stamp


class _Leaving:
    """A message in flight, seen by its sender."""

    def __init__(self, pending: Pending, device: DeviceTime, end_ns: int) -> None:
        self._pending = pending
        self._device = device
        self._end_ns = end_ns

    def wait(self) -> Tensors:
        tensors = self._pending.wait()
        self._device.sleep_until(self._end_ns)
        return tensors


class _Arriving:
    """A message in flight, seen by its receiver; `end_ns` is known when it has arrived."""

    def __init__(
        self, links: EmulatedLinks, pending: Pending, transfer: Transfer, posted_ns: int
    ) -> None:
        self._links = links
        self.pending = _Once(pending)
        self.transfer = transfer
        self.posted_ns = posted_ns
        self.sender_late_ns = 0
        self.end_ns: int | None = None

    def wait(self) -> Tensors:
        asked_ns = now_ns()
        self._links.settle(self)
        assert self.end_ns is not None
        self._links.device.arrived(self.end_ns, asked_ns, self.sender_late_ns)
        return self.pending.wait()


class _Once:
    """A receive whose second wait returns at once; gloo allows only one wait."""

    def __init__(self, pending: Pending) -> None:
        self._pending: Pending | None = pending
        self._tensors: Tensors = ()

    def wait(self) -> Tensors:
        if self._pending is not None:
            self._tensors = self._pending.wait()
            self._pending = None
        return self._tensors
