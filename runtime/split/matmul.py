"""The rules for x @ W and addmm(b, x, W), with W a matrix of shape [in, out]."""

from typing import Any

import torch
from torch import Tensor

from .experts import is_stack_for
from .linear import bias_gradient, bind_product, product_gradient, rows, unfolded
from .rule import Call, Gradients, Rule, register


class _ProductRule(Rule):
    autocast = "cast"
    by_autograd = True

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[..., in]"""
        return product_gradient(rows(grad), call.weight(), call.input)

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[in, out] and [out]"""
        weight = rows(call.input).t().mm(rows(grad)) if needs[0] else None
        return weight, bias_gradient(grad, call) if needs[1] else None


@register(torch.matmul, torch.Tensor.matmul)
class MatmulRule(_ProductRule):
    """x [..., in] @ W, or x [b, n, in] @ W [b, in, out]; x @ y and W @ x are autograd's."""

    def bind(self, input: Any, other: Any = None, **renamed: Any) -> Call | None:
        """Names the input and the matrix, where the matrix is trainable."""
        if renamed or not isinstance(input, Tensor):
            return None
        if is_stack_for(input, other):
            return Call(input, (other,))
        if not _is_matrix(other):
            return None
        return bind_product(input, other, None)

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call, of a strided x that of its rows."""
        return unfolded(torch.matmul(call.input, call.weight()), call), ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[..., in]"""
        if call.weight().ndim == 3:
            return grad.bmm(call.weight().mT)
        return super().input_gradient(grad, call)

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[in, out], or [b, in, out]"""
        if call.weight().ndim == 3:
            return (call.input.mT.bmm(grad),)
        return super().weight_gradients(grad, call, needs)


@register(torch.mm, torch.Tensor.mm)
class MmRule(MatmulRule):
    """x [rows, in] @ W."""

    def bind(self, input: Any, other: Any = None, **renamed: Any) -> Call | None:
        """Names the input and the matrix; what is no product of matrices is torch's to refuse."""
        if isinstance(input, Tensor) and input.ndim != 2:
            return None
        return super().bind(input, renamed.pop("mat2", other), **renamed)


@register(torch.addmm)
class AddmmRule(_ProductRule):
    """b + x W with x [rows, in]: the `Conv1D` of the first GPT-2s."""

    def bind(
        self, input: Any, mat1: Any, mat2: Any, *legacy: Any, beta: Any = 1, alpha: Any = 1,
        out: Tensor | None = None,
    ) -> Call | None:  # fmt: skip
        """Names the input, the matrix and the bias; scaled products are autograd's."""
        if legacy or out is not None or (beta, alpha) != (1, 1) or not _is_matrix(mat2):
            return None
        if input.shape != mat2.shape[1:] or mat1.ndim != 2:
            return None
        return bind_product(mat1, mat2, input)

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call."""
        bias = call.parameter(1)
        assert bias is not None
        return torch.addmm(bias, call.input, call.weight()), ()


def _is_matrix(matrix: Any) -> bool:
    """A row-major, trainable matrix: other layouts have kernels of their own in autograd."""
    if not isinstance(matrix, Tensor) or not matrix.requires_grad:
        return False
    return matrix.ndim == 2 and matrix.is_contiguous()
