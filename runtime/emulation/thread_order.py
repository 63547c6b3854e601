"""The order among the threads of an emulated device: each goes on from the moments of the others.

A link that sends while the rank computes is not late because the rank is. Its sends carry the
moment at which their values were made, or at which they had arrived by the plan's links.
"""

from contextlib import AbstractContextManager, nullcontext

from ..execution.base.boundary import Tensors
from ..execution.base.channels import Pending
from ..execution.transport.thread_order import Source
from .emulated_clock import EmulatedClock


class EmulatedOrder:
    """Implements `ThreadOrder` for receives of `EmulatedLinks`, which any thread may wait for."""

    def __init__(self, device: EmulatedClock) -> None:
        self._device = device

    def made(self, tensors: Tensors) -> Source:
        """The source of tensors that this thread has made."""
        moment_ns = self._device.now_ns()

        def follow() -> Tensors:
            self._device.follow(moment_ns)
            return tensors

        return follow

    def shared(self, pending: Pending) -> tuple[Source, Pending]:
        """See `ThreadOrder`; each thread waits by its own time."""

        def arrive() -> Tensors:
            self._device.rewind()
            return pending.wait()

        return arrive, pending

    def on_thread(self, link: tuple[int, int]) -> AbstractContextManager[object]:
        """Nothing is needed: a new thread is not late."""
        return nullcontext()
