"""Channels between ranks, joined with the link to this rank's host memory."""

from collections.abc import Iterable

from synth.costs.costs import HOST
from synth.schedule.lowering.lower import Transfer

from ...base.boundary import Tensors
from ...base.channels import Channels, Pending, Transport
from .host_link import HostLink, HostMove


class WithHost:
    """Channels between ranks, and the link to this rank's host."""

    def __init__(self, between: Channels, host: Transport) -> None:
        self._between = between
        self._host = host

    def reserve(self, moves: Iterable[HostMove]) -> None:
        """Allocate the host memory for the moves of a step."""
        if isinstance(self._host, HostLink):
            self._host.reserve(moves)

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start sending, to a rank or to the host."""
        return self._transport(transfer).send(tensors, transfer)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive, from a rank or from the host."""
        return self._transport(transfer).receive(buffers, transfer)

    def abort(self) -> None:
        """Disconnect from the other ranks; the host waits for no rank."""
        self._between.abort()

    def _transport(self, transfer: Transfer) -> Transport:
        return self._host if HOST in (transfer.source, transfer.target) else self._between
