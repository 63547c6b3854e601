"""Parameters that no micro-batch of any rank used: they have no gradient, as in one process.

Collectives add up zeros where a rank has no gradient. If no rank has one, the zeros are removed
after the sum, because optimizers would otherwise apply weight decay and momentum to the parameter.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class UnusedParameters:
    """This rank's parameters without a gradient, until it is known whether other ranks have one."""

    def __init__(self) -> None:
        self._lacking: list[tuple[Tensor, dict[int, Sequence[Tensor]]]] = []

    def count(self, parameters: Sequence[Sequence[Tensor]]) -> Tensor:
        """Count who has a gradient; called before zeros take the place of those that are missing.

        Args:
            parameters: tuples of parameters, each with one gradient that its parameters share.

        Returns:
            Float32, 1 for each tuple that has a gradient here; to be added up over the ranks by
            the time of `leave_out`. It may be divided, too.
        """
        has = [any(p.grad is not None for p in sharing) for sharing in parameters]
        counts = torch.tensor(has, dtype=torch.float32, device=parameters[0][0].device)
        lacking = {number: p for number, p in enumerate(parameters) if not has[number]}
        if lacking:
            self._lacking.append((counts, lacking))
        return counts

    def leave_out(self) -> None:
        """Remove the gradients that no rank had, once all sums are complete."""
        for counts, lacking in self._lacking:
            for number, count in enumerate(counts.tolist()):
                for parameter in () if count else lacking.get(number, ()):
                    parameter.grad = None
        self._lacking.clear()
