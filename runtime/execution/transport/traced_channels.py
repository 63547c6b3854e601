"""Channels that record when a transfer's ends were ready and how long each had to wait."""

from synth.schedule.lowering.lower import Transfer

from ..base.boundary import Tensors
from ..base.channels import Channels, Pending
from ..base.clock import OpClock


class TracedChannels:
    """Passes everything on to other channels, unknown to the executor."""

    def __init__(self, channels: Channels, clock: OpClock) -> None:
        self._channels = channels
        self._clock = clock

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start sending."""
        self._clock.ready(transfer)
        return self._traced(self._channels.send(tensors, transfer), transfer)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive."""
        self._clock.ready(transfer)
        return self._traced(self._channels.receive(buffers, transfer), transfer)

    @property
    def untraced(self) -> Channels:
        """The channels without records."""
        return self._channels

    def traced(self, pending: Pending, transfer: Transfer) -> Pending:
        """Record that a transfer of the untraced channels is ready, and the wait for it."""
        self._clock.ready(transfer)
        return self._traced(pending, transfer)

    def abort(self) -> None:
        """Disconnect from all other ranks."""
        self._channels.abort()

    def _traced(self, pending: Pending, transfer: Transfer) -> Pending:
        return _Traced(pending, transfer, self._clock) if self._clock.recording else pending


class _Traced:
    """A transfer in flight whose wait is recorded."""

    __slots__ = ("_clock", "_pending", "_transfer")

    def __init__(self, pending: Pending, transfer: Transfer, clock: OpClock) -> None:
        self._pending = pending
        self._transfer = transfer
        self._clock = clock

    def wait(self) -> Tensors:
        with self._clock.wait(self._transfer):
            return self._pending.wait()
