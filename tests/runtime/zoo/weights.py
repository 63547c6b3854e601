"""Weights computed in the forward, and custom autograd functions of weights."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.runtime.zoo.case import Case, Weights, normal

D = 16
SEQUENCE = normal(3, 4, D)
FLOAT8 = torch.float8_e4m3fn


class Rounded(torch.autograd.Function):
    """Fake quantisation with a straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Asks(torch.autograd.Function):
    """Computes the gradients that it is asked for, of a product scaled by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.scale = scale
        return x @ weight.t() * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradient * ctx.scale
        of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = gradient.flatten(0, -2).t() @ x.flatten(0, -2)
        return of_x, of_weight, None


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().max().float().clamp(min=1e-12) / 448
    return (x / scale).to(FLOAT8), scale


def scaled_product(x: Tensor, y: Tensor) -> Tensor:
    """x [n, k] @ y [k, m], of float8 by rows and by columns."""
    (a, of_a), (b, of_b) = quantised(x), quantised(y.t().contiguous())
    return torch._scaled_mm(a, b.t(), of_a, of_b, out_dtype=torch.float32)


class Float8(torch.autograd.Function):
    """Float8 products with a bias; all gradients always, in the style with `setup_context`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (scaled_product(x.flatten(0, -2), weight.t()) + bias).view(*x.shape[:-1], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        of_weight = scaled_product(rows.t(), x.flatten(0, -2))
        return scaled_product(rows, weight).view(x.shape), of_weight, rows.sum(0)


early = Asks.apply  # bound before any F


def grouped_behind_casts(up: Tensor, down: Tensor, x: Tensor) -> Tensor:
    """Two experts, held in float32 and multiplied in bfloat16."""
    offsets = torch.tensor([5, 12], dtype=torch.int32)
    rows = x.flatten(0, 1).bfloat16()
    hidden = torch._grouped_mm(rows, up.bfloat16(), offs=offsets)
    return torch._grouped_mm(torch.tanh(hidden), down.bfloat16().mT, offs=offsets)


def own(call: Any, *shapes: tuple[int, ...]) -> Any:
    return lambda: Weights(call, torch.float32, *(shapes or ((D, D), (D, D))))


def in_bfloat16(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
    return F.linear(torch.tanh(F.linear(x.bfloat16(), w.bfloat16())), v.bfloat16())


def asking(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
    y: Tensor = early(torch.tanh(Asks.apply(x, w, 3.0)), v, 2.0)
    return y


def normalised() -> nn.Module:
    norms = torch.nn.utils.parametrizations
    first, last = norms.weight_norm(nn.Linear(D, D)), norms.spectral_norm(nn.Linear(D, D))
    return nn.Sequential(first, nn.Tanh(), last)


def shared_on_the_way(w: Tensor, x: Tensor) -> Tensor:
    positive = w.exp()
    return F.linear(x, positive * positive) + positive.sum()


class Named(nn.Linear):
    """A subclass that computes as its parent."""


class Nested(nn.Module):
    """A linear layer on sequences of several lengths."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.linear, self._layout = nn.Linear(D, D), layout

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.nested.as_nested_tensor([x[0], x[1, :2]], layout=self._layout)
        return torch.cat(list(self.linear(parts).unbind()))


def chosen(w: Tensor, x: Tensor) -> Tensor:
    y: Tensor = torch.cond(x.sum() > 0, lambda x, w: x @ w, lambda x, w: x @ w * 2, (x, w))
    return y


CASES = [
    Case("subclass of linear", lambda: Named(D, D), SEQUENCE, 1.0),
    Case("nested, strided", lambda: Nested(torch.strided), SEQUENCE),
    Case("nested, jagged", lambda: Nested(torch.jagged), SEQUENCE),
    Case("chosen by torch.cond", own(chosen, (D, D)), SEQUENCE),
    Case("tensordot", own(lambda w, x: torch.tensordot(x, w, dims=([2], [1])), (D, D)), SEQUENCE, 1.0),
    Case("inner", own(torch.inner, (D, D)), normal(4, D), 1.0),
    Case("mv", own(torch.mv, (D, D)), normal(D), 1.0),
    Case("aten's mm", own(lambda w, x: torch.ops.aten.mm.default(x, w), (D, D)), normal(4, D), 1.0),
    Case("aten's addmm", own(lambda w, b, x: torch.ops.aten.addmm(b, x, w), (D, D), (D,)), normal(4, D), 1.0),
    Case("aten's linear", own(lambda w, x: torch.ops.aten.linear.default(x, w), (D, D)), SEQUENCE, 1.0),
    Case("weights cast in the forward", own(in_bfloat16), SEQUENCE, 1.0),
    Case("cast and checkpointed", own(lambda w, v, x: checkpoint(in_bfloat16, w, v, x, use_reentrant=False)), SEQUENCE, 1.0),
    Case("cast and checkpointed, reentrant", own(lambda w, v, x: checkpoint(lambda x: in_bfloat16(w, v, x), x, use_reentrant=True)), SEQUENCE, 1.0),
    Case("cast stack, by index", own(lambda w, x: (lambda c: F.linear(torch.tanh(F.linear(x.bfloat16(), c[0])), c[1]))(w.bfloat16()), (2, D, D)), SEQUENCE, 1.0),
    Case("grouped products behind casts", own(grouped_behind_casts, (2, D, 2 * D), (2, D, 2 * D)), SEQUENCE, 1.0),
    Case("fake-quantised weights", own(lambda w, v, x: F.linear(torch.tanh(F.linear(x, Rounded.apply(w))), v.clamp(-0.5, 0.5))), SEQUENCE, 1.0),
    Case("fake-quantised and checkpointed", own(lambda w, x: checkpoint(lambda x: F.linear(x, w.clamp(-0.5, 0.5)), x, use_reentrant=False), (D, D)), SEQUENCE),
    Case("normalised weights", normalised, SEQUENCE, 0.9),
    Case("computed weight, shared on the way", own(shared_on_the_way, (D, D)), SEQUENCE),
    Case("computed weight with a penalty", own(lambda w, x: F.linear(x, w.exp()) + w.exp().sum(), (D, D)), SEQUENCE),
    Case("own function that asks", own(asking), SEQUENCE, 1.0),
    Case("own function of cast weights", own(lambda w, v, x: asking(w.bfloat16(), v.bfloat16(), x.bfloat16())), SEQUENCE, 1.0),
    Case("own function, checkpointed", own(lambda w, v, x: checkpoint(asking, w, v, x, use_reentrant=False)), SEQUENCE, 1.0),
    Case("own function, checkpointed and reentrant", own(lambda w, v, x: checkpoint(lambda x: asking(w, v, x), x, use_reentrant=True)), SEQUENCE, 1.0),
    Case("own float8 function", own(lambda w, b, x: Float8.apply(x, w, b), (D, D), (D,)), normal(4, 4, D), 0.85),
]  # fmt: skip
