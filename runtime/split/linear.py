"""The rule for `F.linear`: y = x Wᵀ + b, with W of shape [out, in]."""

import torch.nn.functional as F
from torch import Tensor

from .rule import Call, Gradients, Rule, register


@register(F.linear)
class LinearRule(Rule):
    """x [..., in]; keeps x, as autograd does. The products are the ones autograd would call."""

    autocast = "cast"
    by_autograd = True

    def bind(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call | None:
        """Names the input, the weight and the bias."""
        if not weight.requires_grad or weight.ndim != 2:
            return None
        if bias is not None and bias.shape != weight.shape[:1]:
            return None
        return bind_product(input, weight, bias)

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call."""
        return F.linear(call.input, call.weight(), call.parameter(1)), ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[..., in]"""
        return rows(grad).mm(call.weight()).view(call.input.shape)

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[out, in] and [out]"""
        grad = rows(grad)
        weight = grad.t().mm(rows(call.input)) if needs[0] else None
        return weight, grad.sum(0) if needs[1] else None


def rows(tensor: Tensor) -> Tensor:
    """[..., n] as [rows, n]"""
    return tensor.reshape(-1, tensor.shape[-1])


def bind_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Call | None:
    """A product of x [..., n] with a matrix; None for the layouts only autograd gets bit-equal.

    Torch multiplies x as a matrix of rows, of which the rows of a strided x are a copy, kept in
    its stead; the bias is then a second step, and its gradient autograd's.
    """
    if x.ndim < 2 or _is_column_major(x):
        return None
    if x.ndim == 2 or x.is_contiguous():
        return Call(x, (weight, bias))

    def finish(product: Tensor) -> Tensor:
        output = product.view(*x.shape[:-1], product.shape[-1])
        return output if bias is None else output + bias.to(product.dtype)

    return Call(rows(x), (weight, None), finish=finish)


def _is_column_major(x: Tensor) -> bool:
    return x.ndim == 2 and x.stride() == (1, x.shape[0]) and not x.is_contiguous()
