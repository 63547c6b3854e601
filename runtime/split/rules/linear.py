"""The rule for `F.linear`: y = x Wᵀ + b, with W of shape [out, in]."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rule import Call, Gradients, Rule, register


@register(F.linear, torch.ops.aten.linear, torch.ops.aten.linear.default)
class LinearRule(Rule):
    """x [..., in]; keeps x, as autograd does. The products are the ones autograd would call."""

    autocast = "cast"
    by_autograd = True
    reads_weights_in_w = False

    def bind(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call | None:
        """Names the input, the weight and the bias."""
        if not weight.requires_grad or weight.ndim != 2:
            return None
        if not (weight.is_leaf or weight.is_contiguous()):
            return None  # a part of a parameter, laid out such that autograd multiplies otherwise
        if bias is not None and bias.shape != weight.shape[:1]:
            return None
        return bind_product(input, weight, bias)

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call, in the two steps in which it multiplies a strided x."""
        if not was_strided(call):
            return F.linear(call.input, call.weight(), call.parameter(1)), ()
        output = unfolded(F.linear(call.input, call.weight()), call)
        bias = call.parameter(1)
        return output if bias is None else output + bias, ()

    def packed(self, call: Call) -> Tensor:
        """[rows, in]"""
        return rows(call.input)

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[..., in]"""
        return product_gradient(rows(grad), call.weight().t(), call.input)

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[out, in] and [out]"""
        weight = rows(grad).t().mm(rows(call.input)) if needs[0] else None
        return weight, bias_gradient(grad, call) if needs[1] else None


def rows(tensor: Tensor) -> Tensor:
    """[..., n] as [rows, n]"""
    return tensor.reshape(-1, tensor.shape[-1])


def unfolded(product: Tensor, call: Call) -> Tensor:
    """[rows, n] as [..., n], of a call whose input was strided."""
    return product.view(*call.options[0], product.shape[-1]) if was_strided(call) else product


def product_gradient(grad: Tensor, matrix: Tensor, x: Tensor) -> Tensor:
    """The gradient of x in x @ matrix, of rows; laid out column-major if x is, as by autograd."""
    if x.ndim == 2 and x.stride() == (1, x.shape[0]):
        return matrix.mm(grad.t()).t()
    return grad.mm(matrix.t()).view(x.shape)


def bias_gradient(grad: Tensor, call: Call) -> Tensor:
    """[n], summed as in autograd: over the product's rows, or over the sum's own shape."""
    return grad.sum_to_size(grad.shape[-1]) if was_strided(call) else rows(grad).sum(0)


def was_strided(call: Call) -> bool:
    """True if a product's input is the copied rows of a strided one."""
    return bool(call.options)


def bind_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Call | None:
    """A product of x [..., n] with a matrix; a vector is autograd's.

    Torch multiplies x as a matrix of rows, of which the rows of a strided x are a copy, kept in
    its stead; the bias is then a second step. Such a call's options are its leading dimensions.
    """
    if x.is_nested or x.ndim < 2:
        return None
    if x.ndim == 2 or x.is_contiguous():
        return Call(x, (weight, bias))
    return Call(rows(x), (weight, bias), (x.shape[:-1],))
