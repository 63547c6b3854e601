"""Point-to-point channels between ranks that are threads of one process."""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch

from synth.schedule.lowering.lower import Transfer

from ...base.boundary import Tensors
from ..thread_order import DeviceOrder, Source
from .exchange import Exchange, Exchanges, Parts


class _End(NamedTuple):
    """One rank's end of a transfer: the tensors that it sends, or the buffers that it posts."""

    transfer: Transfer
    tensors: Tensors
    ready: Source
    """Orders the calling thread's device after what made the tensors, or used their memory."""

    @classmethod
    def of(cls, transfer: Transfer, tensors: Tensors) -> Self:
        """Return the end whose tensors this thread's device has made."""
        return cls(transfer, tensors, _order(tensors).made(tensors))


class _Sent:
    """A message that was copied when its send started."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def wait(self) -> Tensors:
        return self._tensors


class _Sending:
    """A message that waits for its receive to be posted."""

    def __init__(self, exchange: Exchange, rank: int, timeout_s: float, tensors: Tensors) -> None:
        self._exchange, self._rank, self._timeout_s = exchange, rank, timeout_s
        self._tensors = tensors

    def wait(self) -> Tensors:
        copied: Source = self._exchange.wait(self._rank, self._timeout_s)
        copied()
        return self._tensors


class _Receiving(_Sending):
    """A receive; `wait` fills its buffers, so that no op reads them before."""

    def __init__(self, exchange: Exchange, rank: int, timeout_s: float, end: _End) -> None:
        """Receive into the buffers of an end, when what used their memory before is over."""
        super().__init__(exchange, rank, timeout_s, end.tensors)
        self._posted = end.ready

    @torch.no_grad()
    def wait(self) -> Tensors:
        came: Source = self._exchange.wait(self._rank, self._timeout_s)
        for buffer, tensor in zip(self._posted(), came(), strict=True):
            buffer.copy_(tensor)
            if tensor.is_cuda:  # it may have been made on another stream
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return self._tensors


class InProcessChannels:
    """One queue for each directed link; both ends start its transfers in the same order."""

    def __init__(
        self,
        exchanges: Exchanges,
        rank: int,
        timeout_s: float,
        eager_bytes: int,
        abort: Callable[[], None],
    ) -> None:
        """Make a rank's channels; messages up to `eager_bytes` do not wait for their receive."""
        self._exchanges, self._rank, self._timeout_s = exchanges, rank, timeout_s
        self._eager_bytes = eager_bytes
        self._abort = abort

    def send(self, tensors: Tensors, transfer: Transfer) -> _Sent | _Sending:
        """Start sending; tensors are read when the receive is posted, small ones now."""
        eager = sum(tensor.nbytes for tensor in tensors) <= self._eager_bytes
        given = tuple(tensor.detach().clone() for tensor in tensors) if eager else tensors
        exchange = self._join(_End.of(transfer, given), outlives=eager)
        return _Sent(tensors) if eager else _Sending(exchange, self._rank, self._timeout_s, tensors)

    def receive(self, buffers: Tensors, transfer: Transfer) -> _Receiving:
        """Post a receive into buffers."""
        end = _End.of(transfer, buffers)
        exchange = self._join(end, outlives=False)
        return _Receiving(exchange, self._rank, self._timeout_s, end)

    def abort(self) -> None:
        """Disconnect from all other ranks."""
        self._abort()

    def _join(self, end: _End, *, outlives: bool) -> Exchange:
        link = end.transfer.source, end.transfer.target
        return self._exchanges.join(link, link, self._rank, end, _carry, outlives=outlives)


def _order(tensors: Tensors) -> DeviceOrder:
    """The order among the threads that use tensors."""
    return DeviceOrder(tensors[0].device if tensors else torch.device("cpu"))


def _carry(ends: Parts) -> Parts:
    """Copy the sent tensors; the receiver's `wait` writes them to its buffers.

    Returns:
        The source of the copies for the receiver; for the sender one of nothing, which orders its
        device after them.
    """
    (_, source, target, *_), *_ = next(iter(ends.values()))
    sent, posted = ends[source], ends[target]
    if sent.transfer != posted.transfer:
        raise RuntimeError(f"{sent.transfer} is sent where {posted.transfer} is received")
    kinds = [[(tuple(t.shape), t.dtype) for t in end.tensors] for end in (sent, posted)]
    if kinds[0] != kinds[1]:
        raise RuntimeError(f"{sent.transfer}: {kinds[0]} is sent, {kinds[1]} is received")
    tensors, order = sent.ready(), _order(sent.tensors)
    copies = tuple(tensor.detach().clone() for tensor in tensors)
    for tensor in tensors:
        if tensor.is_cuda:  # it may have been made on another stream
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return {source: order.made(()), target: order.made(copies)}
