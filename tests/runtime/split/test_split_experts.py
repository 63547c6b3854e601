"""Mixtures of experts: parts of stacked parameters and grouped products wait for W."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from synth.runtime.split import Recorder, SplitTape
from tests.runtime.split.test_recorder import (
    assert_same_gradients,
    by_autograd,
    draw,
    listen,
    run,
    twins,
)

WIDTH, HIDDEN, EXPERTS = 8, 16, 3


class Routed(nn.Module):
    """Rows go to the expert that a router prefers, weighted by how much it does."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, 2 * HIDDEN, WIDTH) / WIDTH)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        share = self.router(x).softmax(-1)
        best = share.argmax(-1)
        order = best.argsort()
        counts = torch.bincount(best, minlength=EXPERTS)
        y = self.experts(x[order], counts)
        return torch.zeros_like(x).index_add(0, order, y) * share.amax(-1, keepdim=True) + x

    def experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        raise NotImplementedError


class ByIndex(Routed):
    """Experts as in Mixtral: each expert's matrices are parts of a stack."""

    def experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        found = []
        for e, part in enumerate(rows.split(counts.tolist())):
            gate, up = F.linear(part, self.up[e]).chunk(2, -1)
            found.append(F.linear(F.silu(gate) * up, self.down[e]))
        return torch.cat(found)


class Unbound(Routed):
    """The parts by one call, of which several have no row."""

    def experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        parts = zip(rows.split(counts.tolist()), self.up.unbind(), self.down.unbind(), strict=True)
        found = []
        for part, up, down in parts:
            gate, value = (part @ up.view(2 * HIDDEN, WIDTH).mT).chunk(2, -1)
            found.append(F.linear(F.silu(gate) * value, down))
        return torch.cat(found)


class Grouped(Routed):
    """Two grouped products, on stacks that are transposed for them."""

    def experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        ends = counts.cumsum(0).to(torch.int32)
        gate, up = torch._grouped_mm(rows, self.up.mT, offs=ends).chunk(2, -1)
        return torch._grouped_mm(F.silu(gate) * up, self.down.mT, offs=ends)


class Dense(Routed):
    """Every expert takes every row: batched products and einsum."""

    def experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        y = torch.bmm(rows.expand(EXPERTS, *rows.shape), self.up.mT)
        y = F.silu(y[..., :HIDDEN]) * y[..., HIDDEN:]
        return torch.einsum("enh,edh->nd", y, self.down)


class Stacked(nn.Module):
    """`matmul` of stacks, both in and out of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, WIDTH, HIDDEN))
        self.second = nn.Parameter(torch.randn(3, HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x.view(3, -1, WIDTH) @ self.first)
        return torch.matmul(y, self.second).view(x.shape)


class Summed(nn.Module):
    """Two equations that sum a stack up, so that its gradients are expanded ones."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Parameter(torch.randn(3, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(torch.einsum("nd,edf->nf", x, self.stack))
        return torch.einsum("nd,edf->nf", y, self.stack)


class Shared(nn.Module):
    """One part is used twice, and the whole once more without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Parameter(torch.randn(2, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(torch.tanh(F.linear(x, self.stack[1])), self.stack[1])
        return F.linear(y, self.stack[0]) + self.stack.sum()


CASES: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "by index": (ByIndex, 1.0),
    "unbound": (Unbound, 0.3),  # a transposed part is autograd's
    "grouped": (Grouped, 1.0),
    "dense": (Dense, 1.0),
    "stacked": (Stacked, 1.0),
    "summed": (Summed, 1.0),
    "shared": (Shared, 1.0),
}


def deferred_share(recorder: Recorder, module: nn.Module, x: Tensor) -> float:
    tape = recorder.new_tape()
    recorder.backward_input(tape, recorder.forward(tape, module, x).sum())
    return sum(p.numel() for p in tape.deferred) / sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("listening", [None, "node", "post-accumulate"])
@pytest.mark.parametrize("name", CASES)
def test_experts_have_autograds_gradients(name: str, listening: str | None) -> None:
    make, _ = CASES[name]
    mine, theirs = twins(make)
    heard: list[tuple[str, Tensor]] = []
    kept = listen(mine, listening, heard) if listening else []
    recorder = Recorder(mine)
    for _ in range(2):
        run(recorder, mine, draw(12, WIDTH))
        by_autograd(theirs, draw(12, WIDTH))
        if name == "shared":  # summed in another order
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad)
        else:
            assert_same_gradients(mine, theirs)
    if listening:
        count = len(list(mine.parameters()))
        assert len(heard) == 2 * 3 * count and len(kept) in (0, count)


@pytest.mark.parametrize("name", CASES)
def test_the_gradients_of_experts_wait_for_w(name: str) -> None:
    make, least = CASES[name]
    module = make()
    recorder = Recorder(module)
    run(recorder, module, draw(12, WIDTH))
    assert deferred_share(recorder, module, draw(12, WIDTH)[0]) >= 0.95 * least


def test_a_part_with_hooks_of_its_own_is_left_to_autograd() -> None:
    weight, seen = nn.Parameter(torch.randn(2, 4, 4)), []

    def forward(x: Tensor) -> Tensor:
        part = weight[0]
        part.register_hook(lambda g: seen.append(g))
        return F.linear(x, part)

    tape = SplitTape()
    tape.backward_input(tape.forward(forward, torch.randn(3, 4)).sum())
    assert seen and not tape.pending


@pytest.mark.parametrize("part", ["expanded", "strided"])
def test_what_is_not_a_plain_part_is_left_to_autograd(part: str) -> None:
    weight = nn.Parameter(torch.randn(4, 1) if part == "expanded" else torch.randn(4, 8))
    forms: dict[str, Any] = {
        "expanded": lambda: weight.expand(4, 4),
        "strided": lambda: weight[:, :4],
    }
    tape = SplitTape()
    y = tape.forward(lambda: F.linear(torch.randn(3, 4), forms[part]()))
    tape.backward_input(y.sum())
    assert not tape.pending and weight.grad is not None


def test_float64_gradients_of_einsum_agree_with_finite_differences() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(2, 3, 4, dtype=torch.float64))
    x = torch.randn(5, 3, dtype=torch.float64)
    tape = SplitTape()
    y = tape.forward(lambda: torch.einsum("nd,edh->neh", x, weight).sin().sum())
    tape.backward_input(y)
    assert tape.pending == 1
    tape.backward_weight()
    assert weight.grad is not None
    step = torch.zeros_like(weight)
    step[1, 2, 3] = 1e-6

    def value(w: Tensor) -> Tensor:
        return torch.einsum("nd,edh->neh", x, w).sin().sum()

    slope = (value(weight + step) - value(weight - step)) / 2e-6
    torch.testing.assert_close(weight.grad[1, 2, 3], slope.detach(), rtol=1e-6, atol=1e-8)
