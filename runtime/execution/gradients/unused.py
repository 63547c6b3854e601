"""Parameters that no micro-batch of any rank used: they have no gradient, as in one process.

Collectives add up zeros where a rank has no gradient. If no rank has one, the zeros are removed
after the sum, because optimizers would otherwise apply weight decay and momentum to the parameter.

With weight passing, gradients are parts of flat buffers that exist before anyone uses a parameter.
These begin as -0.0: x + -0.0 is x for every x, so a sum which is -0.0 everywhere had no terms, or
none but such: the gradient of `y + 0.0 * p.sum()` is -0.0 where that of y is negative, and p then
counts as unused.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from .all_reduce import as_real


def begin_sums(buffers: Iterable[Tensor]) -> None:
    """Fill buffers with sums of no terms."""
    for buffer in buffers:
        as_real(buffer).fill_(-0.0)


def have_no_terms(sums: Sequence[Tensor]) -> list[bool]:
    """Find the contiguous sums to which nothing was added; waits for their device."""
    if not sums:
        return []
    flat = [as_real(each).view(-1) for each in sums]
    first = torch.cat([each[:1].float() for each in flat])
    if len(first) == len(flat):
        untouched = _are_negative_zeros(first).tolist()
    else:  # some are empty
        untouched = [True] * len(flat)
    return [
        looks_so and bool(_are_negative_zeros(each).all())
        for looks_so, each in zip(untouched, flat, strict=True)
    ]


def leave_out_without_terms(parameters: Iterable[Tensor]) -> None:
    """Remove the gradients to which nothing was added."""
    present = [(p, p.grad) for p in parameters if p.grad is not None]
    untouched = have_no_terms([gradient for _, gradient in present])
    for (parameter, _), is_untouched in zip(present, untouched, strict=True):
        if is_untouched:
            parameter.grad = None


def _are_negative_zeros(tensor: Tensor) -> Tensor:
    return (tensor == 0) & tensor.signbit()


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
        lacking = {number: p for number, p in enumerate(parameters) if not has[number]}
        counts = _counts(has, parameters[0][0].device)
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


def _counts(has: Sequence[bool], device: torch.device) -> Tensor:
    """Float32 ones and zeros on a device.

    On a CPU they are outside of torch's memory, which runs measure: gloo may hold them for a while.
    Elsewhere they are filled in, because the host would wait for a copy.
    """
    if device.type == "cpu":
        return torch.from_numpy(np.array(has, np.float32))
    counts = torch.ones(len(has), device=device)
    for number, there in enumerate(has):
        if not there:
            counts[number].zero_()
    return counts
