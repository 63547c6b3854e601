"""All-gathers and reduce-scatters of flat buffers, of which each rank has an equal share, in place.

NCCL has both. Gloo's own allocate a copy of the buffer, which plans do not count, so there a
broadcast or a reduction of each share takes their place; the bytes sent are the same.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import BroadcastOptions, ReduceOptions

from ..gradients.all_reduce import as_real
from ..stage.boundary import Tensors
from .flat_layout import share


def start_all_gather(group: Any, buffers: Sequence[Tensor]) -> list[Any]:
    """Start filling buffers in which this rank's own share is there; all ranks call this.

    Returns:
        The collectives to wait for.
    """
    works = []
    for buffer in map(as_real, buffers):
        if _is_nccl(group):
            own = share([buffer], group.rank(), group.size())[0]
            works.append(group._allgather_base(buffer, own))
            continue
        for root in range(group.size()):
            options = BroadcastOptions()
            options.rootRank = root
            part = share([buffer], root, group.size())[0]
            works.append(group.broadcast([part], options))
    return works


def start_reduce_scatter(group: Any, buffers: Sequence[Tensor]) -> list[Any]:
    """Start adding up this rank's share of all ranks' buffers; the other shares become garbage.

    Returns:
        The collectives to wait for.
    """
    works = []
    for buffer in map(as_real, buffers):
        if _is_nccl(group):
            own = share([buffer], group.rank(), group.size())[0]
            works.append(group._reduce_scatter_base(own, buffer))
            continue
        for root in range(group.size()):
            options = ReduceOptions()
            options.rootRank = root
            part = share([buffer], root, group.size())[0]
            works.append(group.reduce([part], options))
    return works


class Collecting:
    """A collective in flight into some buffers."""

    def __init__(
        self,
        works: Sequence[Any],
        buffers: Tensors,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Take over the works; `waiting` returns the context of the wait, which records it."""
        self._works, self._buffers, self._waiting = list(works), buffers, waiting

    def wait(self) -> Tensors:
        """Return the buffers once they may be read.

        Raises:
            RuntimeError: another rank is gone, or the time-out passed.
        """
        with self._waiting():
            for work in self._works:
                work.wait()
        self._works.clear()
        return self._buffers


def _is_nccl(group: Any) -> bool:
    nccl = getattr(dist, "ProcessGroupNCCL", None)
    return nccl is not None and isinstance(group, nccl)


def spread_from_first(group: Any, buffers: Sequence[Tensor]) -> None:
    """Copy the buffers of the group's first rank to all; all ranks call this."""
    with torch.no_grad():
        for buffer in map(as_real, buffers):
            options = BroadcastOptions()
            options.rootRank = 0
            group.broadcast([buffer], options).wait()
