"""Sends of directed links that start as soon as their values are there, while the rank computes.

A rank that relays weights hands them on when they have arrived, which may be in the middle of an op
of its own. So each link that carries weights has a thread. It starts the link's sends in the order
of the plan, each once its value is there, and waits for nothing else:

    rank's thread | RECV w | op a     | op b     | op c, reads w | SENT w
    arrival            [=====]
    link's thread             | SEND w

On CUDA the thread orders streams instead of waiting: it has a stream of its own, which waits for
the arrival (or for the op that made the value), and on which the link's communicator is called.
"""

import threading
from collections.abc import Iterable, Mapping

from synth.schedule.lowering.lower import Transfer

from ..base.boundary import Tensors
from ..base.channels import Channels, Pending, Transport
from .thread_order import Source, ThreadOrder
from .traced_channels import TracedChannels

Link = tuple[int, int]


def receive_shared(
    channels: Channels, buffers: Tensors, transfer: Transfer, order: ThreadOrder
) -> tuple[Source, Pending]:
    """Post a receive that several threads wait for.

    Returns:
        The source of its tensors for other threads, and for this one the receive, whose wait is
        recorded.
    """
    if isinstance(channels, TracedChannels):
        source, pending = order.shared(channels.untraced.receive(buffers, transfer))
        return source, channels.traced(pending, transfer)
    return order.shared(channels.receive(buffers, transfer))


class OrderedSend:
    """One transfer of a link in a step."""

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.released = threading.Event()
        self.source: Source | None = None
        self._started = threading.Event()
        self._pending: Pending | None = None
        self._error: str | None = None

    def release(self, source: Source) -> None:
        """Let the link send it, when its turn has come."""
        self.source = source
        self.released.set()

    def start(self, transport: Transport) -> None:
        """Start sending; called by the link's thread.

        It holds nothing of the tensors when others learn of it, so that they are freed where the
        program says.
        """
        assert self.source is not None
        tensors = self.source()
        self.source = None
        self._pending = transport.send(tensors, self.transfer)
        del tensors
        self._started.set()

    def fail(self, error: str) -> None:
        """Let whoever waits raise an error."""
        if not self._started.is_set():
            self._error = error
            self._started.set()

    def wait(self) -> Tensors:
        """Return once the tensors have been sent.

        Raises:
            RuntimeError: another rank is gone, or the time-out passed.
        """
        self._started.wait()
        if self._error is not None:
            raise RuntimeError(self._error)
        assert self._pending is not None
        pending, self._pending = self._pending, None
        return pending.wait()


class OrderedSends:
    """The links from one rank that carry weights, during one step at a time."""

    def __init__(
        self, transport: Transport, transfers: Iterable[Transfer], order: ThreadOrder
    ) -> None:
        """Prepare.

        Args:
            transport: starts the sends, each link's from a thread of its own.
            transfers: all of these links, each link's in its order.
            order: among these threads and the rank's own.
        """
        self._transport, self._order = transport, order
        self._by_link: dict[Link, list[Transfer]] = {}
        for transfer in transfers:
            link = transfer.source, transfer.target
            self._by_link.setdefault(link, []).append(transfer)
        self._sends: Mapping[Transfer, OrderedSend] = {}
        self._threads: list[threading.Thread] = []
        self._ends = False

    def carries(self, transfer: Transfer) -> bool:
        """True if the transfer's link is one of these."""
        return (transfer.source, transfer.target) in self._by_link

    def begin(self) -> None:
        """Begin a step."""
        self._ends = False
        self._sends = {t: OrderedSend(t) for each in self._by_link.values() for t in each}
        self._threads = [
            threading.Thread(target=self._run, args=(link,), name=f"link {link}", daemon=True)
            for link in self._by_link
        ]
        for thread in self._threads:
            thread.start()

    def release(self, transfer: Transfer, source: Source) -> None:
        """Let a transfer be sent once its turn has come and `source` returns.

        The source is called on the link's thread. Values that are there already are passed as
        `made`.
        """
        self._sends[transfer].release(source)

    def made(self, tensors: Tensors) -> Source:
        """The source of tensors that this thread has made, or let its device make."""
        return self._order.made(tensors)

    def sent(self, transfer: Transfer) -> OrderedSend:
        """The transfer in flight, to wait for."""
        return self._sends[transfer]

    def end(self) -> None:
        """End a step, in which all transfers have been waited for."""
        for thread in self._threads:
            thread.join()
        self._threads, self._sends = [], {}

    def abort(self) -> None:
        """End the threads after a failure; the channels have been aborted, or will be."""
        self._ends = True
        for send in self._sends.values():
            send.fail("this rank has disconnected")
            send.released.set()
        self._threads, self._sends = [], {}

    def _run(self, link: Link) -> None:
        sends = [self._sends[transfer] for transfer in self._by_link[link]]
        with self._order.on_thread(link):
            for number, send in enumerate(sends):
                send.released.wait()
                if self._ends:
                    return
                try:
                    send.start(self._transport)
                except Exception as error:
                    for other in sends[number:]:
                        other.fail(str(error))
                    return
