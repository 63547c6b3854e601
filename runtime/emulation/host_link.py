"""The emulated link to a host's memory: a move takes the link's time, and nothing is copied.

Each direction serves one move after another. Activations may move back when they have moved out.
Weights, which the host keeps, come whenever they are asked for, and sums of gradients stay there.
"""

from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import ValueKind

from ..execution.base.boundary import Tensors
from ..execution.base.channels import Pending
from .emulated_clock import EmulatedClock, after


class EmulatedHostLink:
    """Implements `Transport` for transfers whose other end is the host."""

    def __init__(self, device: EmulatedClock) -> None:
        self._device = device
        self._out_until_ns = 0
        self._back_until_ns = 0
        self._away_ns: dict[tuple[int, int, int], int] = {}

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start a move when it is sent and the previous one has left."""
        start_ns = max(self._device.now_ns(), self._out_until_ns)
        self._out_until_ns = after(start_ns, transfer.duration_us)
        if transfer.value.kind == ValueKind.MOVED_OUT:
            self._away_ns[transfer.value[1:]] = self._out_until_ns
        return _Moving(self._device, self._out_until_ns, tensors)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Start a move when it is requested, has left, and the previous one has arrived."""
        is_weights = transfer.value.kind == ValueKind.WEIGHTS
        left_ns = 0 if is_weights else self._away_ns.pop(transfer.value[1:])
        start_ns = max(self._device.now_ns(), self._back_until_ns, left_ns)
        self._back_until_ns = after(start_ns, transfer.duration_us)
        return _Moving(self._device, self._back_until_ns, buffers)


class _Moving:
    """A move in flight, whose end is known."""

    def __init__(self, device: EmulatedClock, end_ns: int, tensors: Tensors) -> None:
        self._device = device
        self._end_ns = end_ns
        self._tensors = tensors

    def wait(self) -> Tensors:
        self._device.sleep_until(self._end_ns)
        return self._tensors
