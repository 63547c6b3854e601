"""The rules for products with a stack of matrices, one for each expert or batch entry."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..derived import leaves_of
from ..rule import Call, Gradients, Rule, register


@register(torch.bmm, torch.Tensor.bmm, torch.ops.aten.bmm, torch.ops.aten.bmm.default)
class BatchedProductRule(Rule):
    """x [b, n, in] @ W [b, in, out], entry by entry."""

    autocast = "cast"
    by_autograd = True
    reads_weights_in_w = False

    def bind(self, input: Any, mat2: Any, *, out: Tensor | None = None) -> Call | None:
        """Names the input and the stack, where the stack is trainable."""
        if out is not None or not isinstance(input, Tensor) or not is_stack_for(input, mat2):
            return None
        return Call(input, (mat2,))

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call."""
        return torch.bmm(call.input, call.weight()), ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[b, n, in]"""
        return grad.bmm(call.weight().mT)

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[b, in, out]"""
        return (call.input.mT.bmm(grad),)


class GroupedProductRule(Rule):
    """x [n, in] whose rows are grouped, each group multiplied by its own of W [groups, in, out].

    The offsets say where groups end.
    """

    autocast = "leave"
    by_autograd = True
    reads_weights_in_w = False

    def bind(
        self,
        mat_a: Any,
        mat_b: Any,
        offs: Tensor | None = None,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Call | None:
        """Names the input and the stack; with a bias or another dtype it is autograd's."""
        if bias is not None or out_dtype is not None or offs is None or not _is_stack(mat_b):
            return None
        return Call(mat_a, (mat_b,), (offs,)) if mat_a.ndim == 2 else None

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call."""
        return torch._grouped_mm(call.input, call.weight(), offs=call.options[0]), ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """[n, in]"""
        return torch._grouped_mm(grad, call.weight().mT, offs=call.options[0])

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[groups, in, out], with the layout of W."""
        x, offs = call.input, call.options[0]
        if call.weight_form().stride(-1) == 1:
            return (torch._grouped_mm(x.t(), grad, offs=offs),)
        return (torch._grouped_mm(grad.t(), x, offs=offs).mT,)


# Torch 2.8 has none of them on CPU, later ones both.
_GROUPED = [f for f in (getattr(torch, "_grouped_mm", None), getattr(F, "grouped_mm", None)) if f]
if _GROUPED:
    register(*_GROUPED)(GroupedProductRule)


class _RepeatedProductRule(Rule):
    """A product of two operands of which one is a trainable leaf, as mixtures of experts have it.

    Torch makes of it permutations and one product, which W repeats, to have its gradient.
    """

    by_autograd = True
    function: ClassVar[Callable[..., Tensor]]

    def _bind(self, operands: tuple[Any, ...], *options: Any) -> Call | None:
        """Names the trainable operand, the other one, and their places."""
        if not all(isinstance(operand, Tensor) for operand in operands):
            return None
        leaves = [o.requires_grad and (o.is_leaf or bool(leaves_of(o))) for o in operands]
        if sum(leaves) != 1:
            return None
        place = leaves.index(True)
        return Call(operands[1 - place], (operands[place],), (place, *options))

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The replaced call; its output is no view, which a later layer could change in place."""
        output = self._product(call, call.input, call.weight())
        return torch.ops.aten._unsafe_view(
            output, output.shape
        ) if output._is_view() else output, ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """The gradient, of the other operand's shape."""
        with torch.enable_grad():
            x = call.input.detach().requires_grad_()
            return torch.autograd.grad(self._product(call, x, call.weight()), x, grad)[0]

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """The gradient, of the leaf's shape."""
        with torch.enable_grad():
            weight = call.weight().detach().requires_grad_()
            return torch.autograd.grad(self._product(call, call.input, weight), weight, grad)

    def _product(self, call: Call, x: Tensor, weight: Tensor) -> Tensor:
        place, *options = call.options
        return type(self).function(*((weight, x) if place == 0 else (x, weight)), *options)


@register(torch.einsum)
class EinsumRule(_RepeatedProductRule):
    """A product along an equation."""

    def bind(self, equation: Any, *operands: Any) -> Call | None:
        """Equations of two operands; others are autograd's."""
        is_product = isinstance(equation, str) and len(operands) == 2
        return self._bind(operands, equation) if is_product else None

    @staticmethod
    def function(x: Tensor, y: Tensor, equation: str) -> Tensor:
        """The product."""
        return torch.einsum(equation, x, y)


@register(torch.tensordot)
class TensordotRule(_RepeatedProductRule):
    """A product along dimensions."""

    function = torch.tensordot

    def bind(self, a: Any, b: Any, dims: Any = 2, out: Tensor | None = None) -> Call | None:
        """Names the operands."""
        return self._bind((a, b), dims) if out is None else None


@register(torch.inner, torch.Tensor.inner)
class InnerRule(_RepeatedProductRule):
    """A product along the last dimensions."""

    function = torch.inner

    def bind(self, input: Any, other: Any, *, out: Tensor | None = None) -> Call | None:
        """Names the operands."""
        return self._bind((input, other)) if out is None else None


@register(torch.mv, torch.Tensor.mv, torch.ops.aten.mv, torch.ops.aten.mv.default)
class MvRule(_RepeatedProductRule):
    """A matrix times a vector."""

    function = torch.mv

    def bind(self, input: Any, vec: Any, *, out: Tensor | None = None) -> Call | None:
        """Names the operands; a constant vector is a norm's, of a computed weight."""
        if out is not None or not (isinstance(vec, Tensor) and vec.requires_grad):
            return None
        return self._bind((input, vec))


def is_stack_for(x: Tensor, stack: Any) -> bool:
    """True if x [b, n, in] is multiplied by a trainable stack [b, in, out]."""
    return x.ndim == 3 and _is_stack(stack) and len(x) == len(stack)


def _is_stack(stack: Any) -> bool:
    """A trainable stack of row-major matrices, or of the transposes of such."""
    if not isinstance(stack, Tensor) or not stack.requires_grad or stack.ndim != 3:
        return False
    return stack.is_contiguous() or stack.mT.is_contiguous()
