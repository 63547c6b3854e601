"""Ranks of tests as threads of this process, where a pool has processes."""

import pickle
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks

_LOCAL = threading.local()


class RankThreads:
    """Runs `function(rank, world_size, *arguments)` on threads; as `GlooPool` does on processes.

    Each rank has a copy of the arguments. The function gives its pipelines `group=group_here()`.
    """

    def __init__(self, eager_bytes: int = 0, timeout_s: float = 120.0) -> None:
        self._eager_bytes, self._timeout_s = eager_bytes, timeout_s

    def run(self, function: Any, world_size: int, *arguments: Any) -> list[Any]:
        """Run a function on every rank and return the results in rank order."""
        packed = pickle.dumps(arguments)

        def on_rank(group: InProcessGroup) -> Any:
            _LOCAL.group = group
            return function(group.rank, world_size, *pickle.loads(packed))

        return run_ranks(
            world_size, on_rank, timeout_s=self._timeout_s, eager_bytes=self._eager_bytes
        )


def group_here() -> InProcessGroup | None:
    """The group of a rank that is a thread; None for a process."""
    return getattr(_LOCAL, "group", None)


@torch.no_grad()
def draw_weights(modules: Sequence[nn.Module], seed: int) -> None:
    """Set all parameters from a generator of their own: threads draw from one global one."""
    draw = torch.Generator().manual_seed(seed)
    for parameter in (p for module in modules for p in module.parameters()):
        parameter.copy_(0.4 * torch.randn(parameter.shape, generator=draw))
