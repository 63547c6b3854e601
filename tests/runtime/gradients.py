"""Gradients that a test expects to be there."""

from torch import Tensor


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
