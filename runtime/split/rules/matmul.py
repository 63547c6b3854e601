"""The rules for x @ W and addmm(b, x, W), with W a matrix of shape [in, out]."""

from typing import Any

import torch
from torch import Tensor

from ..derived import is_target
from ..rule import Call, Gradients, Rule, register
from .experts import is_stack_for
from .linear import bias_gradient, bind_product, product_gradient, rows, unfolded


class _ProductRule(Rule):
    autocast = "cast"
    by_autograd = True
    reads_weights_in_w = False

    def packed(self, call: Call) -> Tensor:
        """[rows, in]; the input of a stack as it is."""
        return rows(call.input) if call.weight().ndim == 2 else call.input

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[..., in]"""
        return product_gradient(rows(grad), call.weight(), call.input)

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[in, out], with the layout of the matrix, and [out]"""
        weight = None
        if needs[0]:
            turned = _is_column_major(call.weight_form())
            weight = _matrix_gradient(rows(grad), rows(call.input), turned)
        return weight, bias_gradient(grad, call) if needs[1] else None


@register(torch.matmul, torch.Tensor.matmul, torch.ops.aten.matmul, torch.ops.aten.matmul.default)
class MatmulRule(_ProductRule):
    """x [..., in] @ W, W @ x, or x [b, n, in] @ W [b, in, out]; x @ y is autograd's."""

    def bind(self, input: Any, other: Any = None, **renamed: Any) -> Call | None:
        """Names the input and the matrix, where the matrix is trainable."""
        if renamed or not (isinstance(input, Tensor) and isinstance(other, Tensor)):
            return None
        if is_stack_for(input, other):
            return Call(input, (other,))
        if _is_matrix(other):
            return bind_product(input, other, None)
        if _is_matrix(input) and other.ndim > 1:
            return _bind_left(input, other)
        return None

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call, of a strided x that of its rows."""
        if not _is_left(call):
            return unfolded(torch.matmul(call.input, call.weight()), call), ()
        if not _is_folded(call):
            return call.weight().mm(call.input), ()
        product = unfolded(call.input.mm(call.weight().t()), call)
        return product.mT.clone(memory_format=torch.contiguous_format), ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[..., in]"""
        if _is_left(call):
            return self._input_of_left(grad, call)
        if call.weight().ndim == 3:
            return grad.bmm(call.weight().mT)
        return super().input_gradient(grad, call)

    def _input_of_left(self, grad: Tensor, call: Call) -> Tensor:
        if _is_folded(call):
            return rows(grad.mT).mm(call.weight())
        x = call.input
        return grad.t().mm(call.weight()).t() if _is_column_major(x) else call.weight().t().mm(grad)

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[in, out] or [b, in, out]; [out, in] of a matrix on the left"""
        if _is_left(call):
            return (self._left_gradient(grad, call),)
        if call.weight_form().ndim == 3:
            return (call.input.mT.bmm(grad),)
        return super().weight_gradients(grad, call, needs)

    def _left_gradient(self, grad: Tensor, call: Call) -> Tensor:
        x, turned = call.input, _is_column_major(call.weight_form())
        if _is_folded(call):
            return _matrix_gradient(rows(grad.mT), x, not turned).t()
        return x.mm(grad.t()).t() if turned else grad.mm(x.t())


@register(torch.mm, torch.Tensor.mm, torch.ops.aten.mm, torch.ops.aten.mm.default)
class MmRule(MatmulRule):
    """x [rows, in] @ W."""

    def bind(self, input: Any, other: Any = None, **renamed: Any) -> Call | None:
        """Names the input and the matrix; torch refuses other operands."""
        other = renamed.pop("mat2", other)
        if any(isinstance(x, Tensor) and x.ndim != 2 for x in (input, other)):
            return None
        return super().bind(input, other, **renamed)


@register(torch.addmm, torch.ops.aten.addmm, torch.ops.aten.addmm.default)
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
    """A trainable matrix, or the transpose of one: other layouts have kernels of their own."""
    if not isinstance(matrix, Tensor) or not matrix.requires_grad or matrix.ndim != 2:
        return False
    return (matrix.is_contiguous() or _is_column_major(matrix)) and is_target(matrix)


def _is_column_major(matrix: Tensor) -> bool:
    return matrix.stride() == (1, matrix.shape[0])


def _matrix_gradient(grad: Tensor, x: Tensor, is_column_major: bool) -> Tensor:
    """The gradient of the matrix in x @ matrix, by autograd's product for its layout."""
    return grad.t().mm(x).t() if is_column_major else x.t().mm(grad)


def _bind_left(matrix: Tensor, x: Tensor) -> Call:
    """W [out, in] @ x [..., in, n]; torch multiplies the rows of a transposed stack."""
    if x.ndim == 2:
        return Call(x, (matrix,), (None, "left"))
    turned = x.mT
    return Call(rows(turned), (matrix,), (turned.shape[:-1], "left"))


def _is_left(call: Call) -> bool:
    """True if the matrix is the product's left factor."""
    return len(call.options) == 2


def _is_folded(call: Call) -> bool:
    """True if the input is the rows of a transposed stack."""
    return call.options[0] is not None
