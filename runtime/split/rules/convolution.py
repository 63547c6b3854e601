"""The rule for convolutions: the two halves of one backward kernel, asked for one at a time."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rule import Call, Gradients, Rule, register

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
        """An input without a batch dimension gets one; padding that is uneven is autograd's."""
        if input.ndim == self.dimensions + 1:
            input = input.unsqueeze(0)
            unbatched = True
        else:
            unbatched = False
        if input.ndim != self.dimensions + 2 or not weight.requires_grad:
            return None
        around = self._padding(padding, weight, self._sizes(dilation))
        if around is None:
            return None
        sizes = (self._sizes(stride), around, self._sizes(dilation))
        return Call(input, (weight, bias), (*sizes, groups, unbatched))

    def _padding(
        self, padding: Size | str, weight: Tensor, dilation: list[int]
    ) -> list[int] | None:
        """On each side; None where one side of `same` gets more than the other."""
        if padding == "valid":
            return [0] * self.dimensions
        if not isinstance(padding, str):
            return self._sizes(padding)
        totals = [d * (window - 1) for d, window in zip(dilation, weight.shape[2:], strict=True)]
        return None if any(total % 2 for total in totals) else [total // 2 for total in totals]

    def _sizes(self, size: Size) -> list[int]:
        sizes = [size] if isinstance(size, int) else list(size)
        return sizes * self.dimensions if len(sizes) == 1 else sizes

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call."""
        function = type(self).function
        *sizes, unbatched = call.options
        output = function(call.input, call.weight(), call.parameter(1), *sizes)
        return output.squeeze(0) if unbatched else output, ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[N, in, *space]"""
        gradient = self._backward(grad, call, [True, False, False])[0]
        assert gradient is not None
        return gradient

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[out, in / groups, *window] and [out]"""
        return self._backward(grad, call, [False, *needs])[1:]

    def _backward(self, grad: Tensor, call: Call, wanted: list[bool]) -> Gradients:
        """Compute the wanted gradients of input, weight and bias by one kernel."""
        stride, padding, dilation, groups, _ = call.options
        grad = grad.reshape(-1, *grad.shape[-self.dimensions - 1 :])
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
