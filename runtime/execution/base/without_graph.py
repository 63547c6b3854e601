"""Forwards with graphs, without one by the kernels of those with one, and without data."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from synth.errors import SynthError


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


class AutocastRefused(TorchFunctionMode):
    """Raises where a module turns autocast on, which does not reach the meta device."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, if no kind of device has autocast."""
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise NotImplementedError("autocast does not reach the meta device")
        return function(*args, **(kwargs or {}))


def check_graphs() -> None:
    """Check that each micro-batch gets a graph of its own here.

    Raises:
        SynthError: autograd is off, or parametrizations are cached.
    """
    if not torch.is_grad_enabled():
        raise SynthError(
            "a step needs autograd, which is off here (torch.no_grad or inference_mode): call step "
            "outside of it, or evaluate"
        )
    if parametrize._cache_enabled:
        raise SynthError(
            "within parametrize.cached() micro-batches would share what parametrizations compute, "
            "of which each needs its own graph: call step outside of it"
        )
