"""Layers of low precision whose weight gradients are not those of plain products."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max


class Float8Mlp(nn.Module):
    """Width to four times the width and back by float8 products, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4 * width, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(width, 4 * width) / (4 * width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        hidden = F.gelu(_Float8Product.apply(x.flatten(0, -2), self.up))
        y: Tensor = _Float8Product.apply(hidden, self.down)
        return x + y.view(x.shape)


class _Float8Product(torch.autograd.Function):
    """x [rows, in] and W [out, in], scaled as a whole; the backward's products are float8's too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return _product(gradient, weight), _product(gradient.t(), x)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y, of float8 by rows and by columns, in the dtype of x."""
    (a, of_a), (b, of_b) = _quantised(x.contiguous()), _quantised(y.t().contiguous())
    return torch._scaled_mm(a, b.t(), of_a, of_b, out_dtype=x.dtype)


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax().float().clamp(min=1e-12) / LARGEST
    return (x / scale).to(FLOAT8), scale


class RoutedExperts(nn.Module):
    """A mixture of gated experts in one stack each, routed by a gate, cast to bfloat16 in F."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.gate = nn.Parameter(torch.randn(count, 2 * width, width) / width**0.5)
        self.up = nn.Parameter(torch.randn(count, 2 * width, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(count, width, 2 * width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        rows = x.flatten(0, -2)
        score, expert = self.router(rows).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        ends = torch.bincount(expert, minlength=len(self.up)).cumsum(0).int()
        routed = rows[order].bfloat16()
        gate, up, down = (w.bfloat16().mT for w in (self.gate, self.up, self.down))
        hidden = F.silu(torch._grouped_mm(routed, gate, offs=ends))
        hidden = hidden * torch._grouped_mm(routed, up, offs=ends)
        y = torch._grouped_mm(hidden, down, offs=ends).type_as(x) * score[order, None]
        return x + torch.zeros_like(rows).index_add(0, order, y).view(x.shape)
