"""A model that cannot be replayed exactly is refused, with its line; else the pieces are exact."""

import random
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import synth
from synth.errors import SynthError
from synth.families import generate
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.models.cut import cut_model
from synth.runtime.models.cut.check import chained
from synth.runtime.profiling.profile_model import profile_layers
from synth.schedule.files.plan_file import Plan

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
Y = X.flip(0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.aux = nn.Linear(4, 4), None

    def forward(self, x: Any) -> Tensor:
        y: Tensor = torch.tanh(self.linear(x.h if isinstance(x, Held) else x))
        self.aux = y.mean()  # type: ignore[assignment]
        return y


@dataclass
class Held:
    h: Tensor


class Sharing(nn.Module):
    """A block that shares tensors in containers of its arguments with those after it."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.linear, self.place = nn.Linear(4, 4), place

    def forward(self, x: Tensor, skips: Any, *, state: Any) -> Tensor:
        y: Tensor = torch.tanh(self.linear(x))
        skipped, seen = skips
        if self.place < 2:
            skipped.append(y)
        else:
            y = y + skipped.pop()
        state["sum"] = state.get("sum", 0.0) + y.mean()
        state["last"] = (y, *state.get("last", ()))[:2]
        seen.setdefault("places", []).append(self.place)
        return y * len(seen["places"])


class SharingModel(nn.Module):
    """Blocks that are given the same containers, one of which is no `dict`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Sharing(place) for place in range(4))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        skips: tuple[list[Tensor], dict[str, Any]] = ([], {})
        state = UserDict[str, Any]()
        for block in self.blocks:
            x = block(x, skips, state=state)
        assert not skips[0]
        return F.mse_loss(x * state["sum"] + state["last"][1], target)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


class Model(nn.Module):
    """Two blocks with code of a test between them."""

    def __init__(self, between: Callable[["Model", Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.between = between
        self.count: Tensor
        self.register_buffer("count", torch.ones(4))
        self.table: Tensor
        self.register_buffer("table", torch.ones(4), persistent=False)
        self.calls = 0
        self.draw = torch.Generator()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        y = self.blocks[0](x)
        return F.mse_loss(self.blocks[1](self.between(self, x, y)), target)


def sliced(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return y + y[:, : (x > 0).sum().clamp(1, 3)].sum()


def written(model: Model, x: Tensor, y: Tensor) -> Tensor:
    w = torch.zeros(2, 4)
    w[:, :3].copy_(y[:, :3])
    return y + w


def changed(model: Model, x: Tensor, y: Tensor) -> Tensor:
    k = torch.ones(4)
    y = y * k
    k += 0.5
    return y * k


def cast(model: Model, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (y @ y.T @ y).float()


def counted(model: Model, x: Tensor, y: Tensor) -> Tensor:
    model.calls += 1
    return y * model.calls


def scheduled(model: Model, x: Tensor, y: Tensor) -> Tensor:
    model.calls += 1
    return y if model.calls < 100 else y * 2


def updated(model: Model, x: Tensor, y: Tensor) -> Tensor:
    model.table.mul_(0.9)
    return y * model.table


def averaged(model: Model, x: Tensor, y: Tensor) -> Tensor:
    model.count.lerp_(y.detach().mean(0), 0.1)
    return y * model.count


def branched(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return y * 2 if torch.rand(()) < 0.5 else y


def halved(model: Model, x: Tensor, y: Tensor) -> Tensor:
    model.table = model.table * 0.5
    return y * model.table


def replaced(model: Model, x: Tensor, y: Tensor) -> Tensor:
    model.table = torch.full((4,), float(x.shape[0]))
    return y * model.table


def overwritten(model: Model, x: Tensor, y: Tensor) -> Tensor:
    model.table.copy_(torch.full((4,), float(x.shape[0])))
    return y * model.table


def aux_of(block: Any) -> Any:
    return block.aux


def hooked(model: Model, x: Tensor, y: Tensor) -> Tensor:
    y.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return y


def with_other_parameters(model: Model, x: Tensor, y: Tensor) -> Any:
    halved = {name: p * 0.5 for name, p in model.blocks[0].named_parameters()}
    return torch.func.functional_call(model.blocks[0], halved, (y,))


class Auxiliary(Model):
    """Adds what each block has left in an attribute; equal blocks are recorded by one run."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = super().forward(x, target) + sum(map(aux_of, self.blocks))
        return loss


LENGTHS = torch.tensor([5, 2])

REFUSED: dict[str, tuple[Callable[[Model, Tensor, Tensor], Any], str]] = {
    "a size from data": (lambda m, x, y: y / (x > 0).nonzero().shape[0], "reads numbers"),
    "a slice from data": (sliced, "reads numbers"),
    "a mask from data": (lambda m, x, y: y + y[x > 0].sum(), "reads numbers"),
    "a branch on a draw": (branched, "reads numbers"),
    "python's draws": (lambda m, x, y: y * random.random(), "of Python or NumPy"),
    "a generator": (
        lambda m, x, y: y + torch.randn(4, generator=m.draw),
        "do not compute what the whole model does",
    ),
    "a count that matters later": (scheduled, "changes the number calls in each forward"),
    "an attribute of a block": (
        lambda m, x, y: y + aux_of(m.blocks[0]),
        "cannot be followed",
    ),
    "a data class": (lambda m, x, y: Held(y), r"a Held .* or register .*register_dataclass\(Held"),
    "a constant that changes": (changed, "is changed in place afterwards"),
    "a part that is written": (written, "cannot be followed"),
    "a count of calls": (counted, "do not compute what the whole model does"),
    "a buffer that changes": (updated, "changes the buffer table"),
    "an average": (averaged, "buffer"),
    "a buffer that is replaced": (halved, "do not compute what the whole model does"),
    "a saved buffer that is overwritten": (
        lambda m, x, y: y * m.count.copy_(torch.ones(4)),
        "changes a parameter, a buffer or a constant in place",
    ),
    "a gradient": (lambda m, x, y: torch.autograd.grad(y.sum(), x)[0], "computes gradients"),
    "other parameters": (with_other_parameters, "with other parameters than its own"),
    "vmap": (lambda m, x, y: torch.vmap(m.blocks[0])(y), "a transform of torch.func, such as vmap"),
    "a hook": (hooked, r"hooks a gradient by register_hook \(at .*test_exact"),
    "no number": (lambda m, x, y: y * float("nan"), "the loss of the whole model is nan"),
}
EQUAL: dict[str, Callable[[Model, Tensor, Tensor], Any]] = {
    "noise": lambda m, x, y: y + torch.randn(y.shape),
    "checkpoint": lambda m, x, y: checkpoint(lambda z: z.sin(), y, use_reentrant=True),
    "autograd function": lambda m, x, y: Scaled.apply(y),
    "a view in place": lambda m, x, y: F.relu((z := y * 1)[..., :2], inplace=True).sum() + z,
    "a buffer": lambda m, x, y: y * m.count * m.table,
    "autocast": cast,
    "a table that is replaced by constants": replaced,
    "a table that is overwritten by constants": overwritten,
}


def test_tensors_that_blocks_put_into_containers_travel_to_later_ones() -> None:
    pieces = cut_model(SharingModel(), X, Y, check=True)
    assert [len(piece.returned) for piece in pieces] == [4, 6, 5, 3, 1]


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_blocks_may_be_compiled(is_wrapped: bool) -> None:
    model = Model(lambda m, x, y: y)
    for place, block in enumerate(model.blocks):
        if is_wrapped:
            compiled: Any = torch.compile(block, backend="aot_eager")
            model.blocks[place] = compiled
        else:
            block.compile(backend="aot_eager")
    pieces = cut_model(model, X, Y, check=True)
    assert [piece.name for piece in pieces][:2] == ["blocks.0", "blocks.1"]


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_blocks_may_be_scripted() -> None:
    scripted = [torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh())) for _ in range(2)]
    pieces = cut_model(nn.Sequential(nn.Linear(4, 4), *scripted), X, torch.tensor([1, 2]))
    assert len(pieces) == 4
    profile = profile_layers(pieces, X, torch.tensor([1, 2]), warmup=0, iterations=1)
    plan = Plan.of(profile, [1, 3], generate("1f1b", 2, 2))

    def loss(group: Any) -> Any:
        pipeline = synth.Pipeline(plan, pieces, group=group, timeout_s=60)
        return pipeline.step(pipeline.split(X.repeat(2, 1), targets=torch.tensor([1, 2, 1, 2])))

    expected = chained(pieces, X, torch.tensor([1, 2]))
    assert run_ranks(2, loss)[1] == pytest.approx(expected.item())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_exactly_is_refused(name: str) -> None:
    between, message = REFUSED[name]
    with pytest.raises(SynthError, match=message):
        cut_model(Model(between), X, Y)


def test_attributes_of_equal_blocks_are_refused() -> None:
    with pytest.raises(SynthError, match="cannot be followed, such as a module's attribute"):
        cut_model(Auxiliary(lambda m, x, y: y), X, Y)


class Embeds(nn.Module):
    """Embeds sorted numbers, and refuses others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, sparse=True)

    def forward(self, lengths: Tensor) -> Tensor:
        if lengths.tolist() != sorted(lengths.tolist(), reverse=True):
            raise ValueError("the lengths are not sorted")
        found: Tensor = self.table(lengths)
        return found


def test_a_model_that_refuses_other_inputs_is_compared_with_the_given_ones() -> None:
    pieces = cut_model(nn.Sequential(Embeds(), Block(), Block()), LENGTHS, torch.tensor([1, 2]))
    assert len(pieces) == 4
    model = nn.Sequential(Embeds(), Block(), Block())
    with pytest.raises(ValueError, match="the lengths are not sorted"):
        cut_model(model, LENGTHS.flip(0), torch.tensor([1, 2]))


@pytest.mark.parametrize("name", EQUAL)
def test_what_can_be_replayed_is_equal(name: str) -> None:
    pieces = cut_model(Model(EQUAL[name]), X, Y, check=True)
    assert len(pieces) > 1


def test_another_form_of_the_inputs_is_refused() -> None:
    pieces = cut_model(Model(lambda m, x, y: y), X, Y)
    for given in (torch.zeros(4, 4), X.double()):
        with pytest.raises(SynthError, match=r"is given .* and was cut for \[2, 4\] float32"):
            pieces[0](given)
    with pytest.raises(SynthError, match="and was cut for"):
        pieces[-1](X)


def test_a_dropout_outside_of_modules_keeps_its_mode() -> None:
    pieces = cut_model(Model(lambda m, x, y: F.dropout(y, 0.5, m.training)), X, Y)
    chained(pieces, X, Y)
    for piece in pieces:
        piece.eval()
    with pytest.raises(SynthError, match="was recorded in another mode"):
        chained(pieces, X, Y)


def test_a_dictionary_of_one_input_is_refused() -> None:
    with pytest.raises(
        SynthError, match=r"dictionary of x as its first .* give a lone input as it"
    ):
        cut_model(Model(lambda m, x, y: y), {"x": X}, Y)


class WithAuxiliary(Model):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        y = self.blocks[1](self.blocks[0](x))
        return y, y.mean()


def test_a_scalar_beside_others_is_no_loss_without_targets() -> None:
    with pytest.raises(SynthError, match="a scalar beside 1 others, without the targets"):
        cut_model(WithAuxiliary(lambda m, x, y: y), X, torch.zeros(2, dtype=torch.long))


class WithTwoTargets(Model):
    def forward(self, x: Tensor, y: Any = None, targets: Any = None) -> Tensor:
        return super().forward(x, targets)


def test_targets_that_fit_two_parameters_are_refused() -> None:
    with pytest.raises(SynthError, match=r"y and targets .* unknown which are the targets"):
        cut_model(WithTwoTargets(lambda m, x, y: y), X, Y)


class Scalars(nn.Module):
    """A model that fails on a number, which has no length."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("of the model's own")


def test_an_error_of_the_model_is_not_hidden_where_its_input_has_no_length() -> None:
    with pytest.raises(Exception, match="of the model's own"):
        cut_model(Scalars(), torch.tensor(1.0), Y)
