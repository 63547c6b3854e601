"""Transfers of torch.distributed, without copies of the tensors."""

from collections.abc import Sequence

import torch.distributed as dist

from ..base.boundary import Tensors


class DirectTransfer:
    """A transfer of torch.distributed, directly from or to the caller's tensors."""

    def __init__(self, works: Sequence[dist.Work], tensors: Tensors) -> None:
        self._works = works
        self._tensors = tensors

    def wait(self) -> Tensors:
        """Return the tensors once all works have ended."""
        for work in self._works:
            work.wait()
        return self._tensors
