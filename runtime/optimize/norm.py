"""The norm of all ranks' gradients, gathered asynchronously, and the decision on a step."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .multi_tensor import squared_norm


@dataclass(frozen=True)
class NormVerdict:
    """The consequence of the global norm for a step; the same numbers on every rank.

    `norm` is a float64 scalar. `scale` is the float32 scalar that clips (None: no clipping).
    `found_inf` is a float32 scalar: 1 if a gradient is not finite, and the step is to be skipped.
    """

    norm: Tensor
    scale: Tensor | None
    found_inf: Tensor

    def read(self) -> tuple[bool, bool]:
        """Return whether the step is to be skipped, and whether gradients are to be scaled.

        Waits for the device, once.
        """
        scale = torch.ones_like(self.found_inf) if self.scale is None else self.scale
        found_inf, factor = torch.stack([self.found_inf, scale]).tolist()
        return found_inf > 0, factor < 1.0


class GradientNorm:
    """Gathers each rank's sum of squares and judges by their sum.

    Sums are added in the order of the ranks, with each addition rounded by IEEE 754, so that all
    ranks reach the same decision on any hardware.
    """

    def __init__(self, clip_norm: float | None, device: torch.device, group: Any = None) -> None:
        """Prepare to gather.

        Args:
            clip_norm: gradients with a larger global norm are scaled down to it; None: never.
            group: a process group of all ranks of the pipeline, used for nothing else, so that no
                other collective waits behind a late rank; None: this process is alone.
        """
        self._clip_norm = clip_norm
        self._group = group
        size = 1 if group is None else group.size()
        self._own = torch.zeros(1, dtype=torch.float64, device=device)
        self._gathered = torch.zeros(size, dtype=torch.float64, device=device)
        self._places = list(torch.split(self._gathered, 1))
        self._work: dist.Work | None = None

    @torch.no_grad()
    def start(self, gradients: Iterable[Tensor]) -> None:
        """Contribute this rank's gradients; does not wait for the others."""
        self._own.copy_(squared_norm(gradients, self._own.device))
        if self._group is None:
            self._gathered.copy_(self._own)
        else:
            self._work = self._group.allgather([self._places], [self._own])

    def verdict(self) -> NormVerdict:
        """Wait for the others' contributions, and judge."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        squared = self._gathered[0]
        for other in self._gathered[1:]:
            squared = squared + other
        norm = squared.sqrt()
        found_inf = (~norm.isfinite()).float()
        if self._clip_norm is None:
            return NormVerdict(norm, None, found_inf)
        # As torch.nn.utils.clip_grad_norm_ has it.
        scale = (self._clip_norm / (norm + 1e-6)).clamp(max=1.0).float()
        return NormVerdict(norm, scale, found_inf)
