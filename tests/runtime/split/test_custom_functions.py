"""Custom autograd functions whose backward does other things than to return two products."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.runtime.split import Recorder
from synth.runtime.state.tensor_numbers import digest_of


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, flag: bool) -> Tensor:
        assert isinstance(weight, nn.Parameter) and vars(weight)["main_grad"] == "there"
        ctx.save_for_backward(x, weight)
        ctx.flag = flag
        return x @ weight.t()


class Out(Product):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        found = torch.full_like(weight, float("nan"))
        torch.mm(g.t(), x, out=found)
        return g @ weight, found, None


class InPlace(Product):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return g @ weight, torch.zeros_like(weight).addmm_(g.t(), x), None


class ByItself(Product):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        found = g.t() @ x
        if weight.grad is None:
            weight.grad = found
        else:
            weight.grad.add_(found)
        return g @ weight, None, None


class OnFlag(Product):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        found = g.t() @ x
        if ctx.flag:
            found = torch.full_like(weight, 1e3).copy_(found)
        return g @ weight, found, None


class OfRows(Product):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        between = g @ torch.eye(4)
        return g @ weight, between.t() @ x / between.shape[0], None


class Overwriting(Product):
    """Uses the memory of a factor again, which autograd does not see."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        g = g.clone()
        found = g @ weight, g.t() @ x, None
        g.data.zero_()
        return found


class OfChosenRows(Product):
    """Multiplies rows that numbers choose, and divides by their count."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        chosen = torch.mm(g[x[:, 0] > 0], torch.eye(4))
        return g @ weight, g.t() @ x + chosen.sum(0) / (1 + len(chosen)), None


class ByVjp(Product):
    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x, None


class Model(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.first = function, nn.Linear(4, 4)
        self.weights = nn.ParameterList(torch.randn(4, 4) for _ in range(2))
        for weight in self.weights:
            weight.main_grad = "there"

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for place, weight in enumerate(self.weights):
            x = self.function.apply(x, weight, place == 0)
        return x.square().sum()


def gradients(model: nn.Module) -> list[Tensor | None]:
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def assert_splits(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    for x in inputs:
        model(x).backward()
    wanted = gradients(model)
    recorder = Recorder(model)
    tapes = []
    for x in inputs:
        tape = recorder.new_tape()
        tapes.append((tape, recorder.forward(tape, model, x)))
    for tape, loss in tapes:
        recorder.backward_input(tape, loss)
        tape.backward_weight()
    torch.testing.assert_close(gradients(model), wanted)


@pytest.mark.parametrize(
    "function", [Out, InPlace, ByItself, OnFlag, OfRows, OfChosenRows, Overwriting, ByVjp]
)
def test_gradients_are_autograds_whatever_a_backward_does(function: Any) -> None:
    torch.manual_seed(0)
    assert_splits(Model(function), [torch.randn(rows, 4) for rows in (4, 4, 3, 2)])


class OfTwo(torch.autograd.Function):
    """A product with the sum of two weights, whose gradients are one tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(x, first + second)
        return x @ (first + second)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, both = ctx.saved_tensors
        found = x.t() @ g
        return g @ both.t(), found, found


class Expanded(Product):
    """Gives a gradient whose rows are one memory."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return g @ weight, torch.mm(g.t(), x).sum(0).expand(4, 4), None


class OneMemory(Model):
    """The gradients of two weights are one tensor."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = OfTwo.apply(self.first(x), *self.weights)
        return found.square().sum()


class ExpandedTwice(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = Expanded.apply(x, self.weights[0], True).tanh()
        return x.square().sum()


@pytest.mark.parametrize("model", [OneMemory, ExpandedTwice])
def test_gradients_that_share_memory_add_up_apart(model: type[Model]) -> None:
    torch.manual_seed(0)
    assert_splits(model(Expanded), [torch.randn(rows, 4) for rows in (4, 4, 3)])


def test_factors_are_compared_by_numbers_at_the_first_of_many_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = []

    def digest(flat: Tensor) -> int:
        digests.append(digest_of(flat))
        return digests[-1]

    monkeypatch.setattr("synth.runtime.split.late_products.digest_of", digest)
    counts = []
    for lengths in [(4,), (4, 3, 2, 5)]:
        assert_splits(OneMemory(Expanded), [torch.randn(rows, 4) for rows in lengths])
        counts.append(len(digests))
        digests.clear()
    assert counts[0] == counts[1] > 0


def test_a_function_without_a_graph_runs_its_forward_once() -> None:
    runs = []

    class NoGraph(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, flag: bool) -> Tensor:
            runs.append(flag)
            found = x @ weight.t()
            ctx.mark_non_differentiable(found)
            return found

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return None, None, None

    model = Model(NoGraph)
    recorder, x = Recorder(model), torch.randn(3, 4)
    for count in (1, 2):
        recorder.forward(recorder.new_tape(), model, x)
        assert runs.count(True) == count
