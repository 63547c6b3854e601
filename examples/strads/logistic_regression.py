"""Sparse logistic regression by parallel coordinate descent.

Minimises Σ log(1 + exp(−yᵢ xᵢᵀβ)) + λ‖β‖₁ with yᵢ = ±1. The rows are divided among the ranks. The
curvature along coordinate j is at most ‖xⱼ‖²/4, so with g the gradient of the loss each step

    βⱼ ← S(βⱼ − 4 gⱼ/‖xⱼ‖², 4 λ/‖xⱼ‖²),    S(z, t) = sign(z) · max(|z| − t, 0)

decreases the objective (Bradley et al. 2011, Shotgun, section 2).
"""

from typing import Any

import torch
from torch import Tensor

from synth.runtime.execution.transport.rank_group import RankGroup
from synth.runtime.strads import DependencyCheck, DynamicScheduler, ScheduledModel
from synth.runtime.strads.sampling import Sampler


class LogisticRegression(ScheduledModel):
    """One rank's rows, [rows, features] and labels ±1, and all coefficients."""

    def __init__(
        self,
        rows: Tensor,
        labels: Tensor,
        penalty: float,
        group: RankGroup,
        *,
        sampler: Sampler,
        block_size: int,
        threshold: float | None,
    ) -> None:
        """Begin with all coefficients 0; the arguments are those of `Lasso`."""
        self._rows, self._labels, self._penalty = rows, labels, penalty
        self._sums: Any = group.subgroup(range(group.size), purpose="strads-logistic")
        self._margins = torch.zeros_like(labels)
        self.coefficients = torch.zeros(rows.shape[1], dtype=rows.dtype)
        self._squares = self._summed((rows**2).sum(dim=0))
        check = None if threshold is None else DependencyCheck(self._correlation, threshold)
        self._scheduler = DynamicScheduler(sampler, block_size, check=check)

    def schedule(self, in_flight: Tensor) -> Tensor:
        """Choose coefficients by the sampler and the dependency check."""
        return self._scheduler.next_block(in_flight)

    def push(self, block: Tensor) -> Tensor:
        """Return this rank's part of the gradient of the block's coefficients."""
        slopes = -self._labels * torch.sigmoid(-self._labels * self._margins)
        return self._rows[:, block].T @ slopes

    def pull(self, block: Tensor, total: Tensor) -> Tensor:
        """Take the step of each coefficient of the block."""
        before, bound = self.coefficients[block], self._squares[block] / 4
        moved = before - total / bound
        after = moved.sign() * (moved.abs() - self._penalty / bound).clamp(min=0)
        changes = after - before
        self.coefficients[block] = after
        self._margins += self._rows[:, block] @ changes
        self._scheduler.changed(block, changes)
        return changes

    def objective(self) -> float:
        """Return the objective; all ranks call this at the same time."""
        loss = torch.nn.functional.softplus(-self._labels * self._margins).sum()
        return float(self._summed(loss) + self._penalty * self.coefficients.abs().sum())

    def _correlation(self, some: Tensor, others: Tensor) -> Tensor:
        products = self._summed(self._rows[:, some].T @ self._rows[:, others])
        norms = self._squares.sqrt()
        return products / (norms[some, None] * norms[others])

    def _summed(self, part: Tensor) -> Tensor:
        total = part.contiguous()
        self._sums.allreduce([total]).wait()
        return total
