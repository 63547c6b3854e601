"""In-place all-gathers and reduce-scatters of flat buffers, with an equal share for each rank.

NCCL has both. Gloo's own allocate a copy of the buffer, which plans do not count, so on gloo a
broadcast or a reduction of each share replaces them; the planned bytes are the same.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor
from torch.distributed import BroadcastOptions, ReduceOptions

from ..base.boundary import Tensors
from ..gradients.all_reduce import as_real
from .flat_layout import share
from .kept_protocol import StartedCollective

# A thread of gloo's holds a tensor for some milliseconds, on a busy machine until the thread gets
# a processor. What holds one for longer is not gloo.
_LONGEST_HOLD_S = 10.0
# A share's attribute and the argument of `sys.getrefcount`.
_OWN_REFERENCES = 2


def start_all_gather(group: Any, buffers: Sequence[Tensor]) -> list[Any]:
    """Start an all-gather into buffers that contain this rank's share; all ranks call this.

    Returns:
        The collectives to wait for.
    """

    def of_share(part: Tensor, root: int) -> Any:
        options = BroadcastOptions()
        options.rootRank = root
        return group.broadcast([part], options)

    return _start(group, buffers, lambda buffer, own: group._allgather_base(buffer, own), of_share)


def start_reduce_scatter(group: Any, buffers: Sequence[Tensor]) -> list[Any]:
    """Start a reduce-scatter: this rank's share becomes the sum; other shares become undefined.

    Returns:
        The collectives to wait for.
    """

    def of_share(part: Tensor, root: int) -> Any:
        options = ReduceOptions()
        options.rootRank = root
        return group.reduce([part], options)

    return _start(
        group, buffers, lambda buffer, own: group._reduce_scatter_base(own, buffer), of_share
    )


def _start(
    group: Any,
    buffers: Sequence[Tensor],
    of_whole: Callable[[Tensor, Tensor], Any],
    of_share: Callable[[Tensor, int], Any],
) -> list[Any]:
    """Start NCCL's collective of each whole buffer, or one of each share."""
    works = []
    for buffer in map(as_real, buffers):
        parts = [share([buffer], root, group.size())[0] for root in range(group.size())]
        if _is_nccl(group):
            works.append(of_whole(buffer, parts[group.rank()]))
        else:
            works += [
                ShareCollective(of_share(part, root), part) for root, part in enumerate(parts)
            ]
    return works


class ShareCollective:
    """A collective of a share, which ends once its transport has let go of the share.

    Gloo's thread lets go right after the collective, but may be preempted before that. The buffer
    would be freed later than the plan says then.
    """

    _waits_for_release: ClassVar[bool] = True
    """False once something that is not gloo, such as a debugger, has kept a share."""

    def __init__(self, work: Any, part: Tensor) -> None:
        self._work = work
        self._part: Any = part  # its count of references has no public name

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            RuntimeError: another rank is gone, or the time-out passed.
        """
        self._work.wait()
        self._work = None
        limit = time.monotonic() + _LONGEST_HOLD_S
        while ShareCollective._waits_for_release and self._is_held():
            ShareCollective._waits_for_release = time.monotonic() < limit
            time.sleep(0)  # the thread needs the processor

    def _is_held(self) -> bool:
        """True if the transport has a reference to the share.

        The first reference of C++ owns one of Python's, which it gives up after its own.
        """
        return self._part._use_count() > 1 or sys.getrefcount(self._part) > _OWN_REFERENCES


class PendingCollective:
    """A collective in flight into some buffers."""

    def __init__(
        self,
        started: StartedCollective,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Take over the works; `waiting` returns the context of the wait, which records it."""
        self._buffers, self._works, self._waiting = started.buffers, [*started.works], waiting

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
