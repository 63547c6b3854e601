"""Interfaces of the point-to-point channels between ranks, one per directed link.

Every send and receive starts at its place of the lowered program and never blocks there.
"""

from typing import Protocol

from synth.schedule.lowering.lower import Transfer

from .boundary import Tensors


class Pending(Protocol):
    """A transfer in flight."""

    def wait(self) -> Tensors:
        """Return the tensors once they may be read (received) or freed (sent).

        Raises:
            RuntimeError: the other rank is gone, or the time-out passed.
        """
        ...


class Transport(Protocol):
    """Starts transfers. Both ends of a transfer pass the same tuple of tensors."""

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start sending contiguous tensors, which must live until `wait`."""
        ...

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive into buffers."""
        ...


class Channels(Transport, Protocol):
    """The transports of one rank."""

    def abort(self) -> None:
        """Disconnect from all other ranks after a failure.

        Ranks that wait for this one fail, too. Nothing can be sent or received any more.
        """
        ...
