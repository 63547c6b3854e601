"""The transport of a rank whose neighbours are absent: what they would send is made up here.

Before a step the ranks tell each other what they need to know, for which the others are threads of
this process without data. From then on a rank is alone. A receive has arrived when it is posted,
or when the plan says, and a sum over ranks is this rank's part of it. The tensors have the shapes
and dtypes of a run, so memory and the times of ops do, too; their values are random.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ReduceOp, ReduceOptions

from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind

from ..execution.base.boundary import Tensors
from ..execution.transport.in_process.ranks import InProcessGroup
from ..execution.transport.thread_order import DeviceOrder
from .planned_arrivals import PlannedArrivals

# Standard deviations with which a network that trains keeps finite: activations as after a norm,
# gradients of a mean over many tokens, and weights as they are initialised.
_SPREAD = {ValueKind.GRAD: 1e-3, ValueKind.WEIGHTS: 0.02, ValueKind.GRAD_SUM: 1e-3}
_WEIGHTS = "weights"
_NORMAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64)


class AbsentRanks(InProcessGroup):
    """One rank's handle of a pipeline whose other ranks take no part in its steps."""

    arrivals: PlannedArrivals | None = None
    """The moments at which their messages arrive; None: at once. Set before a pipeline is made."""

    def renewed(self, timeout_s: float, noun: str = "rank") -> Self:
        """Return a group of the same ranks, with the same arrivals."""
        group = super().renewed(timeout_s, noun)
        group.arrivals = self.arrivals
        return group

    def channels(self) -> "AbsentChannels":  # type: ignore[override]  # of the same protocol
        """Open channels that lead nowhere."""
        return AbsentChannels(self.arrivals)

    def subgroup(
        self, ranks: Iterable[int], timeout: timedelta | None = None, purpose: str = ""
    ) -> Any:
        """Return the collectives of some ranks; None: this rank is not among them."""
        named = tuple(ranks)
        if self.rank not in named:
            return None
        return AbsentCollectives(named.index(self.rank), len(named), passes=purpose == _WEIGHTS)


class _Over:
    """A transfer or a collective that has ended."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def wait(self) -> Tensors:
        """Return its tensors at once."""
        return self._tensors


class _Arriving(_Over):
    """A receive, whose buffers are filled where a rank would wait for them."""

    def __init__(
        self,
        tensors: Tensors,
        fill: Callable[[Tensors], None],
        arrive: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(tensors)
        self._fill, self._arrive = fill, arrive
        # Another thread's stream may fill them.
        self._posted = DeviceOrder(tensors[0].device).made(tensors) if tensors else lambda: tensors

    def wait(self) -> Tensors:
        """Fill the buffers, and return them when they have arrived."""
        self._fill(self._posted())
        if self._arrive is not None:
            self._arrive()
        return self._tensors


class _Echoed(_Over):
    """The note of another rank, which makes the calls that this one makes."""

    def __init__(self, tensors: Tensors, channels: "AbsentChannels") -> None:
        super().__init__(tensors)
        self._channels = channels

    def wait(self) -> Tensors:
        for buffer, own in zip(self._tensors, self._channels.note, strict=True):
            buffer.copy_(own)
        return self._tensors


class AbsentChannels:
    """Channels of one rank: sends are dropped, and receives arrive at once or as planned."""

    def __init__(self, arrivals: PlannedArrivals | None) -> None:
        self._arrivals = arrivals
        self._away: dict[Value, list[npt.NDArray[np.uint8]]] = {}
        self.note: Tensors = ()
        """The last note on a call that this rank has sent."""

    def send(self, tensors: Tensors, transfer: Transfer) -> _Over:
        """Drop tensors, which are held until `wait` as those of any send.

        Saved activations that another rank is to keep are copied, to memory that no meter counts.
        """
        if _is_note(transfer):
            self.note = tensors
        elif transfer.value.kind == ValueKind.MOVED_OUT:
            back = transfer.value._replace(kind=ValueKind.MOVED_BACK)
            self._away[back] = [np.array(tensor.cpu().numpy()) for tensor in tensors]
        return _Over(tensors)

    def receive(self, buffers: Tensors, transfer: Transfer) -> _Over:
        """Post a receive into buffers."""
        if _is_note(transfer):
            return _Echoed(buffers, self)
        away = self._away.pop(transfer.value, None)
        if away is None:
            fill = partial(_make_up, spread=_SPREAD.get(transfer.value.kind, 1.0))
        else:
            fill = partial(_bring_back, away)
        if self._arrivals is None:
            return _Arriving(buffers, fill)
        return _Arriving(buffers, fill, partial(self._arrivals.wait_for, transfer))

    def abort(self) -> None:
        """Do nothing: nobody waits."""


class AbsentCollectives:
    """Collectives of which this rank's part is the whole, with the methods of a process group."""

    def __init__(self, rank: int, size: int, *, passes: bool) -> None:
        """Make the group.

        Args:
            rank: the index of this rank in it.
            passes: True if broadcasts bring weights, else they copy what is equal already.
        """
        self._rank, self._size, self._passes = rank, size, passes

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def rank(self) -> int:
        """The index of this rank in the group."""
        return self._rank

    def allreduce(self, tensors: list[Tensor], op: Any = ReduceOp.SUM) -> _Over:
        """Leave the tensors as they are."""
        return _Over(tuple(tensors))

    def allreduce_coalesced(self, tensors: list[Tensor]) -> _Over:
        """Leave the tensors as they are."""
        return _Over(tuple(tensors))

    def reduce(self, tensors: list[Tensor], options: ReduceOptions) -> _Over:
        """Leave the tensors as they are."""
        return _Over(tuple(tensors))

    def broadcast(self, tensors: list[Tensor], options: BroadcastOptions) -> _Over:
        """Make up the weights of another rank; leave anything else as it is."""
        if self._passes and options.rootRank != self._rank:
            spread = _SPREAD[ValueKind.WEIGHTS]
            return _Arriving(tuple(tensors), partial(_make_up, spread=spread))
        return _Over(tuple(tensors))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> _Over:
        """Give every rank this rank's tensor."""
        for output in outputs[0]:
            output.copy_(inputs[0])
        return _Over(tuple(outputs[0]))


def _is_note(transfer: Transfer) -> bool:
    return transfer.value.stage < 0


@torch.no_grad()
def _make_up(tensors: Tensors, *, spread: float) -> None:
    """Fill with normal numbers; flags with True, as masks let pass, and integers with zeros."""
    for tensor in tensors:
        if tensor.dtype in _NORMAL:
            tensor.normal_(std=spread)
        else:
            tensor.fill_(tensor.dtype == torch.bool)


def _bring_back(away: list[npt.NDArray[np.uint8]], buffers: Tensors) -> None:
    for buffer, kept in zip(buffers, away, strict=True):
        buffer.copy_(torch.from_numpy(kept))
