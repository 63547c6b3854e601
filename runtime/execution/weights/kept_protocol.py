"""The interfaces through which the executor uses stages with weight passing."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from synth.schedule.lowering.collectives import Collective

from ..base.boundary import Tensors
from ..transport.host.shared_host import SharedHost
from .flat_layout import ParameterLayout


class StartedCollective(NamedTuple):
    """A collective that has been started.

    Attributes:
        buffers: those that it fills or adds up, in place.
        works: to wait for; none if there is only one rank.
    """

    buffers: Tensors
    works: Sequence[Any]


class WeightsProtocol(Protocol):
    """A stage's parameters, which are views of the buffers that an op reads or adds to."""

    @property
    def layout(self) -> ParameterLayout:
        """The buffers of the weights and of the gradients."""
        ...

    @property
    def kept(self) -> Tensors | None:
        """The buffers that stay on this rank; None: there are none between visits."""
        ...

    @property
    def trained(self) -> Sequence[Tensor]:
        """The parameters that are trained."""
        ...

    def attached(self, buffers: Tensors, *, saving: bool) -> AbstractContextManager[None]:
        """Enter a context in which ops read the buffers of a visit; `saving` in a forward."""
        ...

    def in_backward(self) -> AbstractContextManager[None]:
        """Enter a context for a backward, whose hooks must not change parameters."""
        ...

    def accumulating(
        self, buffers: Tensors, *, stand_ins: bool = False
    ) -> AbstractContextManager[None]:
        """Enter a context in which backwards add to a sum; `stand_ins` if they read weights."""
        ...

    def capture_gradients(self, found: dict[int, Tensor]) -> AbstractContextManager[None]:
        """Enter a context in which the gradients of a B are put into `found`, by index."""
        ...


class KeptProtocol(Protocol):
    """The part of a `KeptStage` that the executor uses."""

    @property
    def weights(self) -> WeightsProtocol:
        """The stage's parameters."""
        ...

    @property
    def totals(self) -> Tensors | None:
        """The whole gradients, if they are kept here (ZeRO-1)."""
        ...

    @property
    def shared_host(self) -> SharedHost | None:
        """The host's memory that ranks share, the same for all stages; None: they share none."""
        ...

    def begin(self) -> None:
        """Begin a step."""
        ...

    def synchronize(self) -> None:
        """Wait until nothing reads the weights that the host keeps."""
        ...

    def start_all_gather(self, collective: Collective) -> StartedCollective:
        """Start filling the buffers of a visit from the shares of the stage's homes."""
        ...

    def start_reduce_scatter(self, collective: Collective, sums: Tensors) -> StartedCollective:
        """Start adding up the homes' sums, of which each home gets its share."""
        ...

    def add(self, sums: Tensors) -> None:
        """Add the gradient of a step to the one that STEP uses."""
        ...

    def add_from_below(self, total: Tensors, sums: Tensors) -> None:
        """Add the sum of a rank below on the tree to the total of this one."""
        ...

    def add_arrived(self) -> None:
        """Add the sums that have left for the host; wait until its weights may be updated."""
        ...

    def leave_out_unused(self) -> None:
        """Remove the complete gradients of parameters that no op has used."""
        ...

    def clear_other_shares(self) -> None:
        """Zero the part of the kept gradients that other homes have taken over."""
        ...
