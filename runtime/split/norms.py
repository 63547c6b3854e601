"""The rules for norms: one kernel yields both gradients, so W only adds what B computed.

To put the computation off would mean to hold two tensors of an activation's size each, where the
results are a few vectors of the layer's width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .rule import Call, Gradients, Rule, register


class _NormRule(Rule):
    # Under autocast the dtypes differ by device and version; autograd's gradient, added in B,
    # then costs no more than ours.
    autocast = "leave"
    deferred = False

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """Of the input's shape."""
        gradient, _ = self.gradients(grad, call, True, (False,) * len(call.parameters))
        assert gradient is not None
        return gradient

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """Of the normalised shape."""
        return self.gradients(grad, call, False, needs)[1]


@register(F.layer_norm)
class LayerNormRule(_NormRule):
    """Keeps x and, per row, its mean and the reciprocal of its deviation, as autograd does."""

    def bind(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Call | None:
        """Names the input, the weight and the bias."""
        return Call(input, (weight, bias), (list(normalized_shape), eps))

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What `F.layer_norm` calls, with the statistics it hides."""
        shape, eps = call.options
        weight, bias = call.parameters
        output, mean, scale = torch.native_layer_norm(call.input, shape, weight, bias, eps)
        return output, (mean, scale)

    def gradients(
        self, grad: Tensor, call: Call, needs_input: bool, needs: tuple[bool, ...]
    ) -> tuple[Tensor | None, Gradients]:
        """All three by one kernel."""
        gradients = torch.ops.aten.native_layer_norm_backward(
            grad, call.input, call.options[0], *call.extras, *call.parameters, [needs_input, *needs]
        )
        return gradients[0], tuple(gradients[1:])


@register(F.rms_norm)
class RmsNormRule(_NormRule):
    """As `LayerNormRule`, where torch has a kernel for it; elsewhere it is many small operations,
    which autograd does."""

    def bind(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Call | None:
        """Names the input and the weight."""
        if not (input.is_cuda and hasattr(torch.ops.aten, "_fused_rms_norm_backward")):
            return None
        return Call(input, (weight,), (list(normalized_shape), eps))

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What `F.rms_norm` calls, with the statistic it hides."""
        shape, eps = call.options
        output, scale = torch.ops.aten._fused_rms_norm(call.input, shape, call.parameters[0], eps)
        return output, (scale,)

    def gradients(
        self, grad: Tensor, call: Call, needs_input: bool, needs: tuple[bool, ...]
    ) -> tuple[Tensor | None, Gradients]:
        """Both by one kernel."""
        gradients = torch.ops.aten._fused_rms_norm_backward(
            grad, call.input, call.options[0], *call.extras, call.parameters[0],
            [needs_input, *needs],
        )  # fmt: skip
        return gradients[0], tuple(gradients[1:])
