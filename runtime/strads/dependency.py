"""The dependency check: parameters whose updates interfere are not updated at the same time."""

from collections.abc import Callable

import torch
from torch import Tensor

from synth.errors import SynthError


class DependencyCheck:
    """Keeps candidates that are pairwise nearly independent (Lee et al. 2014; Kim et al. 2016).

    The released scheduler checks the candidates of one block against each other. Here those in
    flight count, too: an update that has not been pulled interferes like one of the same block.
    """

    def __init__(self, correlation: Callable[[Tensor, Tensor], Tensor], threshold: float) -> None:
        """Prepare a check.

        Args:
            correlation: returns the correlations of some parameters (rows) with others (columns),
                the same on every rank.
            threshold: the largest absolute correlation of two parameters that are updated at the
                same time; the released Lasso takes 0.1.

        Raises:
            SynthError: the threshold is negative.
        """
        if threshold < 0:
            raise SynthError(
                f"the threshold is {threshold}; correlations are compared by size, so "
                f"give 0 or more (1 or more allows all pairs)"
            )
        self._correlation = correlation
        self._threshold = threshold

    def keep(self, candidates: Tensor, in_flight: Tensor, most: int) -> Tensor:
        """Go through the candidates in order and keep each that fits to all kept and in flight.

        Args:
            candidates: parameters, preferred ones first.
            in_flight: the parameters in flight.
            most: the largest number to keep.
        """
        found = self._correlation(candidates, torch.cat([in_flight, candidates])).abs()
        interferes = found > self._threshold
        is_free = ~interferes[:, : len(in_flight)].any(dim=1)
        between = interferes[:, len(in_flight) :]
        kept: list[int] = []
        while len(kept) < most and is_free.any():
            first = int(is_free.nonzero()[0])
            kept.append(first)
            is_free &= ~between[:, first]
            is_free[first] = False
        return candidates[kept]
