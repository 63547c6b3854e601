"""The order in which parameters become candidates for an update: by priority, or round robin."""

from typing import Protocol

import torch
from torch import Tensor

from synth.errors import SynthError

# The share of the mean change that every parameter has as its least weight. A hundredth is the
# factor of the released scheduler (BW_TUNE_FACTOR): what has settled is looked at now and then.
FLOOR_SHARE = 0.01


class Sampler(Protocol):
    """Draws candidates. Samplers with equal seeds and equal calls draw the same on every rank."""

    def draw(self, count: int, in_flight: Tensor) -> Tensor:
        """Return up to `count` distinct parameters that are not in flight, preferred ones first."""
        ...

    def scheduled(self, block: Tensor) -> None:
        """Note that these of the candidates were dispatched."""
        ...

    def changed(self, block: Tensor, changes: Tensor) -> None:
        """Note the changes of a block's parameters."""
        ...


class PrioritySampler:
    """Draws parameters that changed by most, the dynamic schedule for Lasso of Lee et al. 2014.

    Parameter j is drawn with a probability proportional to |its last change| + floor, without
    replacement. Parameters that were never updated come before all others, in random order.
    Candidates stay in the order in which they were drawn. Sorted by their changes, as in the
    released scheduler, those that did not change would only be reached if a block needs all
    candidates, and would practically never be updated.
    """

    def __init__(
        self, num_parameters: int, *, seed: int = 0, floor_share: float = FLOOR_SHARE
    ) -> None:
        """Begin with no parameter updated.

        Args:
            num_parameters: the number of parameters of the model.
            seed: equal on all ranks.
            floor_share: the floor, as a share of the mean of all last changes that are not 0.

        Raises:
            SynthError: the floor is not positive, so a parameter might never be drawn again.
        """
        if not floor_share > 0:
            raise SynthError(
                f"floor_share is {floor_share}; it must be positive, or parameters that did not "
                f"change once are never updated again"
            )
        self._floor_share = floor_share
        self._generator = torch.Generator().manual_seed(seed)
        self._size = torch.zeros(num_parameters, dtype=torch.float64)
        self._is_new = torch.ones(num_parameters, dtype=torch.bool)

    def draw(self, count: int, in_flight: Tensor) -> Tensor:
        """Return candidates, those never updated first."""
        is_free = torch.ones_like(self._is_new)
        is_free[in_flight] = False
        new = (self._is_new & is_free).nonzero().flatten()
        order = torch.randperm(len(new), generator=self._generator)
        chosen = new[order[:count]]
        others = ~self._is_new & is_free
        missing = min(count - len(chosen), int(others.sum()))
        if missing <= 0:
            return chosen
        weights = torch.where(others, self._weights(), 0.0)
        drawn = torch.multinomial(weights, missing, generator=self._generator)
        return torch.cat([chosen, drawn])

    def scheduled(self, block: Tensor) -> None:
        """Do nothing: a candidate that was not dispatched keeps its weight."""

    def changed(self, block: Tensor, changes: Tensor) -> None:
        """Remember the sizes of the changes."""
        self._size[block] = changes.abs().to(torch.float64)
        self._is_new[block] = False

    def _weights(self) -> Tensor:
        """The weights in units of the largest change, so that their sum is finite."""
        largest = self._size.max()
        if largest == 0:
            return torch.ones_like(self._size)
        weights = self._size / largest
        return weights + self._floor_share * weights[weights > 0].mean()


class RoundRobinSampler:
    """Goes through all parameters in turn; a candidate that was not dispatched stays ahead."""

    def __init__(self, num_parameters: int) -> None:
        """Begin with parameter 0."""
        self._queue = torch.arange(num_parameters)

    def draw(self, count: int, in_flight: Tensor) -> Tensor:
        """Return the parameters that have waited longest."""
        return self._queue[~torch.isin(self._queue, in_flight)][:count]

    def scheduled(self, block: Tensor) -> None:
        """Move the dispatched parameters to the end of the queue."""
        waiting = self._queue[~torch.isin(self._queue, block)]
        self._queue = torch.cat([waiting, block])

    def changed(self, block: Tensor, changes: Tensor) -> None:
        """Do nothing: the order is fixed."""
