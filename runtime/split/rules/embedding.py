"""The rule for `F.embedding`: rows of a table, whose gradient is all W."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rule import Call, Gradients, Rule, register


@register(F.embedding)
class EmbeddingRule(Rule):
    """Keeps the indices, as autograd does; B has nothing to compute."""

    autocast = "ignore"
    reads_weights_in_w = False

    def bind(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Call | None:
        """A table that is renormalised in place, or has sparse gradients, is autograd's."""
        if max_norm is not None or sparse or not -len(weight) <= (padding_idx or 0) < len(weight):
            return None
        padding = -1 if padding_idx is None else padding_idx % len(weight)
        return Call(input, (weight,), (padding, scale_grad_by_freq))

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Exactly the replaced call."""
        return torch.embedding(call.weight(), call.input, *call.options), ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """Never asked for: indices have no gradient."""
        raise NotImplementedError("indices have no gradient")

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """[vocabulary, width]"""
        count = len(call.weight_form())
        return (torch.ops.aten.embedding_dense_backward(grad, call.input, count, *call.options),)
