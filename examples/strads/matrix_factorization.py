"""Matrix factorization by cyclic coordinate descent, with a static schedule.

Minimises ½ Σ (aᵢⱼ − wᵢᵀhⱼ)² + ½λ(‖W‖² + ‖H‖²) over the observed entries. The rows of A and W are
divided among the ranks, and each has all of H. A block is one factor of H, all hⱼₖ of a k: given W
they do not depend on each other, so a static schedule needs no check (CCD++, Yu et al. 2012).
"""

from typing import Any

import torch
from torch import Tensor

from synth.runtime.execution.transport.rank_group import RankGroup
from synth.runtime.strads import ScheduledModel, StaticScheduler


class MatrixFactorization(ScheduledModel):
    """One rank's rows of A, [rows, columns] with a mask of what is observed, and all of H."""

    def __init__(
        self,
        rows: Tensor,
        is_observed: Tensor,
        penalty: float,
        group: RankGroup,
        *,
        num_factors: int,
        seed: int,
    ) -> None:
        """Begin with W = 0 and a random H, equal on all ranks.

        Args:
            rows: this rank's rows.
            is_observed: of the same shape.
            penalty: λ, above 0.
            group: the ranks.
            num_factors: the columns of W and H.
            seed: equal on all ranks.
        """
        self._penalty = penalty
        self._mask = is_observed.to(rows.dtype)
        self._sums: Any = group.subgroup(range(group.size), purpose="strads-factors")
        draw = torch.Generator().manual_seed(seed)
        self.columns = torch.randn(num_factors, rows.shape[1], generator=draw, dtype=rows.dtype)
        """H, [factors, columns]; parameter k · columns + j is that of factor k and column j."""
        self.rows = torch.zeros(num_factors, rows.shape[0], dtype=rows.dtype)
        """This rank's part of W, [factors, rows]."""
        self._residual = self._mask * rows
        numbers = torch.arange(self.columns.numel()).reshape(num_factors, -1)
        self._scheduler = StaticScheduler([*numbers])

    def schedule(self, in_flight: Tensor) -> Tensor:
        """Choose the next factor."""
        return self._scheduler.next_block(in_flight)

    def push(self, block: Tensor) -> Tensor:
        """Minimise along this rank's part of the factor of W; return the sums for that of H."""
        factor = self._factor(block)
        column, row = self.columns[factor], self.rows[factor]
        with_factor = self._residual + self._mask * torch.outer(row, column)
        row = (with_factor @ column) / (self._penalty + self._mask @ column**2)
        self.rows[factor] = row
        self._residual = with_factor - self._mask * torch.outer(row, column)
        return torch.stack([row @ with_factor, row**2 @ self._mask])

    def pull(self, block: Tensor, total: Tensor) -> Tensor:
        """Minimise along each entry of the factor of H."""
        factor = self._factor(block)
        changes = total[0] / (self._penalty + total[1]) - self.columns[factor]
        self.columns[factor] += changes
        self._residual -= self._mask * torch.outer(self.rows[factor], changes)
        return changes

    def objective(self) -> float:
        """Return the objective; all ranks call this at the same time."""
        own = self._residual.square().sum() + self._penalty * self.rows.square().sum()
        self._sums.allreduce([own]).wait()
        return float(own + self._penalty * self.columns.square().sum()) / 2

    def _factor(self, block: Tensor) -> int:
        return int(block[0]) // self.columns.shape[1]
