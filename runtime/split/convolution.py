"""The rule for convolutions: the two halves of one backward kernel, asked for one at a time."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .rule import Call, Gradients, Rule, register

Size = int | Sequence[int]


class _ConvolutionRule(Rule):
    """x [N, in, *space], W [out, in / groups, *window]; keeps x, as autograd does."""

    autocast = "cast"
    by_autograd = True
    dimensions: ClassVar[int]
    function: ClassVar[Callable[..., Tensor]]

    def bind(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
    ) -> Call | None:
        """Padding by name and an unbatched input are autograd's."""
        unbatched = input.ndim != self.dimensions + 2
        if isinstance(padding, str) or unbatched or not weight.requires_grad:
            return None
        sizes = (self._sizes(stride), self._sizes(padding), self._sizes(dilation))
        return Call(input, (weight, bias), (*sizes, groups))

    def _sizes(self, size: Size) -> list[int]:
        sizes = [size] if isinstance(size, int) else list(size)
        return sizes * self.dimensions if len(sizes) == 1 else sizes

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call."""
        function = type(self).function
        return function(call.input, call.weight(), call.parameter(1), *call.options), ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[N, in, *space]"""
        gradient = self._backward(grad, call, [True, False, False])[0]
        assert gradient is not None
        return gradient

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[out, in / groups, *window] and [out]"""
        return self._backward(grad, call, [False, *needs])[1:]

    def _backward(self, grad: Tensor, call: Call, wanted: list[bool]) -> Gradients:
        """What is wanted of the gradients of input, weight and bias, by one kernel."""
        stride, padding, dilation, groups = call.options
        bias = call.parameters[1]
        return tuple(
            torch.ops.aten.convolution_backward(
                grad, call.input, call.weight(), None if bias is None else list(bias.shape),
                stride, padding, dilation, False, [0] * self.dimensions, groups, wanted,
            )
        )  # fmt: skip


@register(F.conv1d)
class Conv1dRule(_ConvolutionRule):
    """Over sequences."""

    dimensions, function = 1, F.conv1d


@register(F.conv2d)
class Conv2dRule(_ConvolutionRule):
    """Over images."""

    dimensions, function = 2, F.conv2d


@register(F.conv3d)
class Conv3dRule(_ConvolutionRule):
    """Over volumes."""

    dimensions, function = 3, F.conv3d
