"""Lasso by parallel coordinate descent, the first example of the STRADS papers.

Minimises ½‖y − Xβ‖² + λ‖β‖₁. The rows of X are divided among the ranks, and each rank keeps the
residual of its rows. With r = y − Xβ and nⱼ = ‖xⱼ‖², the minimum along coordinate j is

    βⱼ ← S(xⱼᵀr + nⱼβⱼ, λ) / nⱼ,    S(z, λ) = sign(z) · max(|z| − λ, 0)

and xⱼᵀr is a sum over the rows, so push computes a rank's part of it and pull updates βⱼ.
"""

from typing import Any

import torch
from torch import Tensor

from synth.errors import SynthError

from ..execution.transport.rank_group import RankGroup
from .dependency import DependencyCheck
from .engine import ScheduledModel
from .sampling import Sampler
from .scheduler import DynamicScheduler


class Lasso(ScheduledModel):
    """One rank's rows of a Lasso problem, and all coefficients, in float64."""

    def __init__(
        self,
        rows: Tensor,
        targets: Tensor,
        penalty: float,
        group: RankGroup,
        *,
        sampler: Sampler,
        block_size: int,
        threshold: float | None,
        candidates: int | None = None,
    ) -> None:
        """Begin with all coefficients 0; all ranks call this at the same time.

        Args:
            rows: this rank's rows of X, [rows, features]; a rank may have none.
            targets: this rank's part of y, [rows].
            penalty: λ.
            group: the ranks.
            sampler: draws candidates.
            block_size: the largest number of coefficients that are updated in parallel.
            threshold: for the dependency check, the largest absolute correlation xⱼᵀxₖ/‖xⱼ‖‖xₖ‖
                among the features in flight; None: no check.
            candidates: the number drawn for a block, see `DynamicScheduler`.

        Raises:
            SynthError: the shapes do not fit, the penalty is negative, or a feature is 0 in all
                rows of all ranks.
        """
        if rows.ndim != 2 or targets.shape != rows.shape[:1]:
            raise SynthError(
                f"rows have shape {[*rows.shape]} and targets {[*targets.shape]}; give "
                f"[rows, features] and [rows]"
            )
        if penalty < 0:
            raise SynthError(f"the penalty is {penalty}; give 0 or more")
        self._rows = rows.to(torch.float64)
        self._targets = targets.to(torch.float64)
        self._penalty = penalty
        self._sums: Any = group.subgroup(range(group.size), purpose="strads-lasso")
        self._residual = self._targets.clone()
        self.coefficients = torch.zeros(rows.shape[1], dtype=torch.float64)
        """β, the same on every rank."""
        self._squares = self._summed((self._rows**2).sum(dim=0))
        empty = (self._squares == 0).nonzero().flatten().tolist()
        if empty:
            raise SynthError(
                f"feature {empty[0]} is 0 in all rows ({len(empty)} such features); leave it out"
            )
        check = None if threshold is None else DependencyCheck(self.correlation, threshold)
        self._scheduler = DynamicScheduler(sampler, block_size, check=check, candidates=candidates)

    def schedule(self, in_flight: Tensor) -> Tensor:
        """Choose coefficients by the sampler and the dependency check."""
        return self._scheduler.next_block(in_flight)

    def push(self, block: Tensor) -> Tensor:
        """Return this rank's part of xⱼᵀr for each coefficient of the block."""
        return self._rows[:, block].T @ self._residual

    def pull(self, block: Tensor, total: Tensor) -> Tensor:
        """Minimise along each coefficient of the block, from the residual that push has read."""
        before, squares = self.coefficients[block], self._squares[block]
        changes = _shrunk(total + squares * before, self._penalty) / squares - before
        self.coefficients[block] += changes
        self._residual -= self._rows[:, block] @ changes
        self._scheduler.changed(block, changes)
        return changes

    def correlation(self, some: Tensor, others: Tensor) -> Tensor:
        """Return xⱼᵀxₖ/‖xⱼ‖‖xₖ‖ for j in `some` (rows) and k in `others` (columns).

        All ranks call this at the same time.
        """
        products = self._summed(self._rows[:, some].T @ self._rows[:, others])
        norms = self._squares.sqrt()
        return products / (norms[some, None] * norms[others])

    def objective(self) -> float:
        """Return ½‖y − Xβ‖² + λ‖β‖₁ of the current β; all ranks call this at the same time."""
        return float(
            self._summed(self._residual.square().sum()) / 2
            + self._penalty * self.coefficients.abs().sum()
        )

    def duality_gap(self) -> float:
        """Return an upper bound on the objective's distance from the optimum.

        The dual is max ½‖y‖² − ½‖y − θ‖² with |xⱼᵀθ| ≤ λ for all j. The residual, scaled down until
        it satisfies the constraints, gives a dual value; no objective is below that (Kim, Koh et
        al. 2007, "An interior-point method for large-scale l1-regularized least squares"). All
        ranks call this at the same time.
        """
        products = self._summed(self._rows.T @ self._residual)
        largest = float(products.abs().max())
        scale = min(1.0, self._penalty / largest) if largest > 0 else 1.0
        theta = self._residual * scale
        dual = self._summed((self._targets**2).sum() - (self._targets - theta).square().sum()) / 2
        return self.objective() - float(dual)

    def _summed(self, part: Tensor) -> Tensor:
        """Add up a tensor over the ranks, and wait for the sum."""
        total = part.contiguous()
        self._sums.allreduce([total]).wait()
        return total


def _shrunk(values: Tensor, penalty: float) -> Tensor:
    """Soft thresholding."""
    return values.sign() * (values.abs() - penalty).clamp(min=0)
