"""Forwards without a graph by the kernels of forwards with one."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch


class _FusedKernels:
    """PyTorch's switch of fused attention; it is the process's, of which ranks may be threads."""

    def __init__(self) -> None:
        self._counting, self._num_within, self._was_on = Lock(), 0, True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Leave them out within the block; what was before is so again after the last one."""
        switch = torch.backends.mha
        with self._counting:
            if not self._num_within:
                self._was_on = switch.get_fastpath_enabled()
                switch.set_fastpath_enabled(False)
            self._num_within += 1
        try:
            yield
        finally:
            with self._counting:
                self._num_within -= 1
                if not self._num_within:
                    switch.set_fastpath_enabled(self._was_on)


_fused_kernels = _FusedKernels()


@contextmanager
def without_graph() -> Iterator[None]:
    """Build no graph within the block, and compute as where one is built.

    In evaluation mode PyTorch's encoder and its attention have a kernel of their own for forwards
    without a graph. It rounds otherwise, its operations are not counted, and under autocast it
    fails on the CPU.
    """
    with _fused_kernels.off(), torch.no_grad():
        yield
