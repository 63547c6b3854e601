"""Ways to build and to run modules: checkpointing, parametrizations, precisions, hooks, transforms."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from tests.runtime.zoo.case import Case, Weights, Wrapped, normal

D = 8
SEQUENCE = normal(3, 4, D)
ROWS = normal(4, D)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))


def checkpointed(module: nn.Module, reentrant: bool) -> nn.Module:
    return Wrapped(module, lambda m, x: checkpoint(m, x, use_reentrant=reentrant))


def checkpointing(build: Callable[[], nn.Module], reentrant: bool) -> Callable[[], nn.Module]:
    """Make the function that builds a module and checkpoints it."""
    return lambda: checkpointed(build(), reentrant)


def partly_checkpointed(reentrant: bool) -> nn.Module:
    """A function of two layers is checkpointed, of which one is used outside as well."""

    def inner(m: Any, x: Tensor) -> Tensor:
        return m[2](torch.tanh(m[0](x)))

    def call(m: Any, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(inner, m, x, use_reentrant=reentrant)
        return m[0](y)

    return Wrapped(mlp(), call)


TWO_BACKWARDS = "autograd adds up two backwards, one inside the other, one after the other"
CHECKPOINTS = [
    *(Case(f"checkpoint{s}", checkpointing(mlp, r), SEQUENCE, 1.0) for r, s in ((False, ""), (True, ", reentrant"))),
    *(Case(f"checkpoint with dropout{s}", checkpointing(lambda: nn.Sequential(mlp(), nn.Dropout(0.5)), r), SEQUENCE, 1.0) for r, s in ((False, ""), (True, ", reentrant"))),
    Case("checkpoint of a function", lambda: partly_checkpointed(False), SEQUENCE, 1.0),
    Case("checkpoint of a function, reentrant", lambda: partly_checkpointed(True), SEQUENCE, 1.0, reason=TWO_BACKWARDS),
    *(Case(f"checkpointed attention{s}", checkpointing(lambda: nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), r), SEQUENCE, 0.9) for r, s in ((False, ""), (True, ", reentrant"))),
    Case("checkpoint in a checkpoint", lambda: checkpointed(nn.Sequential(checkpointed(mlp(), False), nn.Linear(D, D)), False), SEQUENCE, 1.0),
]  # fmt: skip


def pruned() -> nn.Module:
    module = nn.Linear(D, D)
    prune.random_unstructured(module, "weight", 0.5)
    return nn.Sequential(module, nn.Tanh(), nn.Linear(D, D))


def old_weight_norm() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(D, D)), nn.Tanh(), nn.Linear(D, D))


def old_spectral_norm() -> nn.Module:
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(D, D)), nn.Tanh(), nn.Linear(D, D))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


def symmetric() -> nn.Module:
    module = nn.Linear(D, D)
    parametrize.register_parametrization(module, "weight", Symmetric())
    return module


class Lora(nn.Module):
    """A frozen layer and a trained product of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(D, D).requires_grad_(False)
        self.down, self.up = nn.Linear(D, 2, bias=False), nn.Linear(2, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) / 2


class Tied(nn.Module):
    """One module, and one parameter, at two places."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(D, D)
        self.layers = nn.Sequential(shared, nn.Tanh(), shared)
        self.other = nn.Linear(D, D)
        self.other.weight = shared.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.layers(x))


PARAMETERS = [
    Case("weight norm", lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(D, D)), nn.Linear(D, D)), SEQUENCE, 0.4),
    Case("weight norm, old", old_weight_norm, SEQUENCE, 0.4),
    Case("spectral norm", lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(D, D)), nn.Linear(D, D)), SEQUENCE, 0.4),
    Case("spectral norm, old", old_spectral_norm, SEQUENCE, 0.4),
    Case("orthogonal", lambda: parametrizations.orthogonal(nn.Linear(D, D)), SEQUENCE),
    Case("symmetric", symmetric, SEQUENCE),
    Case("pruned", pruned, SEQUENCE, 0.4),
    Case("lora", Lora, SEQUENCE, 1.0),
    Case("tied in a stage", Tied, SEQUENCE, 1.0),
    Case("frozen", lambda: nn.Sequential(nn.Linear(D, D).requires_grad_(False), nn.Linear(D, D)), SEQUENCE, 1.0),
    Case("unused", lambda: Wrapped(mlp(), lambda m, x: m[0](x)), SEQUENCE, 0.4),
    Case("complex linear", lambda: nn.Linear(D, D, dtype=torch.complex64), normal(4, D, dtype=torch.complex64)),
    Case("complex product", lambda: Weights(lambda w, x: x @ w, torch.complex64, (D, D)), normal(4, D, dtype=torch.complex64)),
    Case("complex convolution", lambda: nn.Conv1d(4, 4, 3, dtype=torch.complex64), normal(2, 4, 6, dtype=torch.complex64)),
    Case("complex weight of a real input", lambda: Weights(lambda w, x: (x.to(torch.complex64) @ w).abs(), torch.complex64, (D, D)), ROWS),
    Case("float64", lambda: mlp().double(), normal(3, 4, D, dtype=torch.float64), 1.0),
    Case("bfloat16", lambda: mlp().bfloat16(), normal(3, 4, D, dtype=torch.bfloat16), 1.0),
    Case("float16", lambda: mlp().half(), normal(3, 4, D, dtype=torch.float16), 1.0),
]  # fmt: skip


def under_autocast(module: nn.Module) -> nn.Module:
    def call(m: nn.Module, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return m(x)

    return Wrapped(module, call)


SHARED_CAST = "autocast casts a shared parameter once, and autograd then adds up in bfloat16"
AUTOCAST = [
    Case("autocast", lambda: under_autocast(mlp()), SEQUENCE, 1.0),
    Case("autocast, encoder layer", lambda: under_autocast(nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)), SEQUENCE, 0.9),
    Case("autocast, checkpoint", lambda: under_autocast(checkpointed(mlp(), False)), SEQUENCE, 1.0),
    Case("autocast, convolution", lambda: under_autocast(nn.Conv1d(4, 4, 3)), normal(2, 4, 6), 1.0),
    Case("autocast, transposed weight", lambda: under_autocast(Weights(lambda w, v, x: w @ torch.tanh(x @ v.T).mT, torch.float32, (3, 6), (6, D))), SEQUENCE, 1.0),
    Case("autocast, tied", lambda: under_autocast(Tied()), SEQUENCE, 1.0, reason=SHARED_CAST),
]  # fmt: skip


def tensor_hooks(module: nn.Module) -> Any:
    for p in module.parameters():
        p.register_hook(lambda g: g * 2)


def post_accumulate_hooks(module: nn.Module) -> Any:
    def scale(p: Tensor) -> None:
        assert p.grad is not None
        p.grad.mul_(0.5)

    for p in module.parameters():
        p.register_post_accumulate_grad_hook(scale)


def node_hooks(module: nn.Module) -> Any:
    """Hooks as in Megatron-LM: the gradient moves to another buffer."""
    nodes = []
    for p in module.parameters():
        p.main_grad = torch.zeros_like(p)  # type: ignore[attr-defined]

        def move(*_: Any, p: Any = p) -> None:
            p.main_grad.mul_(0.9).add_(p.grad)
            p.grad = None

        node = get_gradient_edge(p).node
        node.register_hook(move)
        nodes.append(node)
    return nodes


def module_hooks(module: nn.Module) -> Any:
    module[0].register_forward_hook(lambda m, i, o: o * 2)  # type: ignore[index]
    module[2].register_forward_pre_hook(lambda m, i: (i[0] + 1,))  # type: ignore[index]
    module[0].register_full_backward_hook(lambda m, i, o: (i[0] * 3,))  # type: ignore[index]
    module[2].register_full_backward_pre_hook(lambda m, o: (o[0] * 0.5,))  # type: ignore[index]


HOOKS = [
    Case("tensor hooks", mlp, SEQUENCE, 1.0, prepare=tensor_hooks),
    Case("post-accumulate hooks", mlp, SEQUENCE, 1.0, prepare=post_accumulate_hooks),
    Case("node hooks", mlp, SEQUENCE, 1.0, prepare=node_hooks),
    Case("node hooks, tied", Tied, SEQUENCE, 1.0, prepare=node_hooks),
    Case("node hooks, transposed weight", lambda: Weights(lambda w, x: x @ w.T, torch.float32, (6, D)), SEQUENCE, 1.0, prepare=node_hooks),
    Case("node hooks, encoder layer", lambda: nn.TransformerEncoderLayer(D, 2, 16), SEQUENCE, 0.9, prepare=node_hooks),
    Case("module hooks", mlp, SEQUENCE, 1.0, prepare=module_hooks),
]  # fmt: skip


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


PARTLY = "a part of the sum is autograd's"


class OwnGradients(torch.autograd.Function):
    """Differentiates by the weight in its backward, as hand-written checkpoints do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = F.linear(x, weight)
            return torch.autograd.grad(y, (x, weight), gradient)


class EarlyGradients(torch.autograd.Function):
    """Differentiates by the weight in its forward, as fused losses do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            loss = F.linear(x, weight).pow(2).mean()
            ctx.save_for_backward(*torch.autograd.grad(loss, (x, weight)))
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(g * gradient for g in ctx.saved_tensors)


def tangent(m: nn.Module, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        y = m(forward_ad.make_dual(x, torch.ones_like(x)))
        found: Tensor = forward_ad.unpack_dual(y).tangent
        return found


class Experts(nn.Module):
    """Every expert takes every row; their shares are a router's."""

    def __init__(self, experts: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.router, self.stack = nn.Linear(D, 3), nn.Parameter(torch.randn(3, D, D) / 2)
        self._experts = experts

    def forward(self, x: Tensor) -> Tensor:
        y = self._experts(x, self.stack)  # [rows, expert, D]
        return (y * self.router(x).softmax(-1)[..., None]).sum(-2)


def grouped(x: Tensor, stack: Tensor) -> Tensor:
    ends = torch.arange(1, 4, dtype=torch.int32) * len(x)
    y = torch._grouped_mm(x.repeat(3, 1), stack, offs=ends)
    return y.view(3, *x.shape).transpose(0, 1)


EXPERTS = [
    Case("experts, a loop", lambda: Experts(lambda x, w: torch.stack([F.linear(x, w[e]) for e in range(3)], -2)), ROWS, 1.0),
    Case("experts, chunks", lambda: Experts(lambda x, w: torch.stack([x @ part[0] for part in w.chunk(3)], -2)), ROWS, 1.0),
    Case("experts, bmm", lambda: Experts(lambda x, w: torch.bmm(x.expand(3, *x.shape), w).transpose(0, 1)), ROWS, 1.0),
    Case("experts, einsum", lambda: Experts(lambda x, w: torch.einsum("nd,edf->nef", x, w)), ROWS, 1.0),
    Case("experts, grouped_mm", lambda: Experts(grouped), ROWS, 1.0),
    Case("experts, gathered", lambda: Experts(lambda x, w: torch.bmm(w[[0, 2, 1, 0]], x[..., None]).mT.expand(-1, 3, -1)), ROWS),
]  # fmt: skip


class Forces(nn.Module):
    """Forces of an energy, differentiated through."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return force


class Penalty(nn.Module):
    """A gradient penalty beside an ordinary output, one side of it detached."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        probe = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(probe).sum(), probe, create_graph=True)
        return self.net(x), (slope.norm() - 1) ** 2


TRANSFORMS = [
    Case("own function", lambda: nn.Sequential(nn.Linear(D, D), Wrapped(nn.Identity(), lambda m, x: Square.apply(x)), nn.Linear(D, D)), SEQUENCE, 1.0),
    Case("own function, weight in its backward", lambda: Wrapped(mlp(), lambda m, x: OwnGradients.apply(m(x), m[0].weight)), SEQUENCE, reason=PARTLY),
    Case("own function, weight in its forward", lambda: Wrapped(mlp(), lambda m, x: EarlyGradients.apply(m(x), m[0].weight)), SEQUENCE),
    Case("forces", Forces, SEQUENCE),
    Case("gradient penalty", Penalty, SEQUENCE),
    Case("vmap", lambda: Wrapped(mlp(), lambda m, x: torch.func.vmap(m)(x)), SEQUENCE),
    Case("vmap and more", lambda: Wrapped(mlp(), lambda m, x: m[0](x)[..., :D] + torch.func.vmap(m)(x)), SEQUENCE, 0.0, reason=PARTLY),
    Case("jvp", lambda: Wrapped(mlp(), lambda m, x: torch.func.jvp(m, (x,), (torch.ones_like(x),))[1]), SEQUENCE),
    Case("forward-mode differentiation", lambda: Wrapped(mlp(), tangent), SEQUENCE),
    Case("functional grad", lambda: Wrapped(mlp(), lambda m, x: torch.func.grad(lambda t: m(t).pow(2).sum())(x)), SEQUENCE),
    Case("functional call", lambda: Wrapped(mlp(), lambda m, x: torch.func.functional_call(m, {n: p * 2 for n, p in m.named_parameters()}, x)), SEQUENCE),
    Case("nested tensors", lambda: Wrapped(nn.Linear(D, D), lambda m, x: m(torch.nested.as_nested_tensor([x[0], x[1, :2]], layout=torch.jagged)).values()), SEQUENCE),
    Case("no grad inside", lambda: Wrapped(mlp(), lambda m, x: m(x) + m[0](x).detach()[..., :D]), SEQUENCE, 1.0),
    Case("in-place views", lambda: Wrapped(mlp(), lambda m, x: m(x).transpose(0, 1).mul_(2)), SEQUENCE, 1.0),
    Case("parts of outputs", lambda: Wrapped(mlp(), lambda m, x: {"a": m(x)[:, :2], "b": (m[0](x).chunk(2, -1)[1], x * 2)}), SEQUENCE, 1.0),
    Case("index add", lambda: Wrapped(mlp(), lambda m, x: torch.zeros(3, D).index_add(0, torch.tensor([0, 2, 0, 1]), m(x))), ROWS, 1.0),
]  # fmt: skip


def compiled_inside(method: bool) -> nn.Module:
    inner = between_linear()
    if not method:
        compiled: Any = torch.compile(inner, backend="aot_eager")
        return nn.Sequential(nn.Linear(D, D), compiled)
    inner.compile(backend="aot_eager")
    return nn.Sequential(nn.Linear(D, D), inner)


def between_linear() -> nn.Module:
    return Wrapped(mlp(), lambda m, x: torch.tanh(m(x)))


ROUNDING = "a compiled region may round otherwise"
COMPILED = [
    Case("compiled", lambda: torch.compile(between_linear(), backend="aot_eager"), SEQUENCE, reason=ROUNDING),  # type: ignore[arg-type, return-value]
    Case("compiled, checkpointed", lambda: checkpointed(compiled_inside(False), False), SEQUENCE, 0.15, reason=ROUNDING),
    Case("compiled by its method, checkpointed", lambda: checkpointed(compiled_inside(True), False), SEQUENCE, 0.15, reason=ROUNDING),
    Case("compiled, checkpointed, reentrant", lambda: checkpointed(compiled_inside(True), True), SEQUENCE, 0.15, reason=ROUNDING),
]  # fmt: skip

CASES = [*EXPERTS, *COMPILED, *CHECKPOINTS, *PARAMETERS, *AUTOCAST, *HOOKS, *TRANSFORMS]
