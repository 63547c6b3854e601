"""Findings of a stage's first F, and listeners to the gradients that W delivers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from synth.errors import SynthError
from synth.runtime.split import Recorder, SplitTape, enter

ORDER = [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 2), ("W", 0), ("B", 1), ("W", 2), ("W", 1)]
Heard = list[tuple[str, Tensor]]


def run(recorder: Recorder, module: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """F, B and W of three micro-batches, interleaved; the gradients of the inputs."""
    recorder.look_for_listeners()
    tapes: dict[int, SplitTape] = {}
    outputs, boxes, found = {}, {}, {}
    for kind, j in ORDER:
        if kind == "F":
            tapes[j], (x, boxes[j]) = recorder.new_tape(), enter(inputs[j])
            outputs[j] = recorder.forward(tapes[j], module, x)
        elif kind == "B":
            recorder.backward_input(tapes[j], outputs.pop(j).pow(2).sum())
            found[j] = boxes[j].take()
        else:
            tapes[j].backward_weight()
    return [found[j] for j in range(3)]


def by_autograd(module: nn.Module, inputs: list[Tensor]) -> None:
    """The same, as ordinary backwards in the order of the Bs."""
    outputs = {j: module(x.requires_grad_()).pow(2).sum() for j, x in enumerate(inputs)}
    for j in (0, 2, 1):
        outputs[j].backward()


def draw(*shape: int) -> list[Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(j)) for j in range(3)]


def twins(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    mine = make()
    torch.manual_seed(0)
    return mine, make()


def assert_same_gradients(mine: nn.Module, theirs: nn.Module) -> None:
    for (name, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        assert a.grad is None or b.grad is None or torch.equal(a.grad, b.grad), name


def listen(module: nn.Module, kind: str, heard: Heard) -> list[Any]:
    """Hooks of a kind on every parameter, told (name, gradient); what must be kept alive."""
    kept = []
    for name, p in module.named_parameters():

        def hear(*_: Any, name: str = name, p: nn.Parameter = p) -> None:
            assert p.grad is not None
            heard.append((name, p.grad.clone()))

        if kind == "tensor":
            p.register_hook(lambda g, name=name: heard.append((name, g.clone())))
        elif kind == "post-accumulate":
            p.register_post_accumulate_grad_hook(hear)
        else:
            node = get_gradient_edge(p).node
            node.register_hook(hear)
            kept.append(node)
    return kept


class Block(nn.Module):
    """Rules in modules and outside of them, a norm, a parameter used in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.matrix, self.both = nn.Parameter(torch.randn(6, 6)), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.inner(x)) @ self.matrix)
        return self.both(x) + (x * self.both.weight.sum(0))


@pytest.mark.parametrize("kind", ["tensor", "post-accumulate", "node"])
def test_hooks_hear_of_each_gradient_once_and_whole(kind: str) -> None:
    mine, theirs = twins(Block)
    heard: Heard = []
    wanted: Heard = []
    kept = [listen(mine, kind, heard), listen(theirs, kind, wanted)]
    recorder = Recorder(mine)
    for _ in range(2):
        run(recorder, mine, draw(4, 6))
        by_autograd(theirs, draw(4, 6))
        assert_same_gradients(mine, theirs)
        for name, _ in mine.named_parameters():
            found = [gradient for other, gradient in heard if other == name]
            true = [gradient for other, gradient in wanted if other == name]
            assert len(found) == len(true) == 3
            assert all(map(torch.equal, found, true)) or kind == "tensor"
        heard.clear()
        wanted.clear()
    assert len(kept) == 2


def test_a_hook_that_changes_the_gradient_changes_it() -> None:
    mine, theirs = twins(lambda: nn.Linear(6, 6))
    for module in (mine, theirs):
        module.get_parameter("weight").register_hook(lambda g: g.clamp(-0.5, 0.5))
    recorder = Recorder(mine)
    for _ in range(2):
        run(recorder, mine, draw(4, 6))
        by_autograd(theirs, draw(4, 6))
    torch.testing.assert_close(mine.weight.grad, theirs.weight.grad, rtol=0, atol=0)


def test_a_parameter_without_listeners_is_deferred_though_it_is_used_in_two_ways() -> None:
    mine, recorder = (module := Block()), Recorder(module)
    for x in draw(4, 6):
        tape = recorder.new_tape()
        y = recorder.forward(tape, mine, x)
        recorder.backward_input(tape, y.sum())
        tape.backward_weight()
    assert any(p is mine.both.weight for p in tape.deferred)


def test_a_listened_parameter_used_in_a_new_way_is_refused() -> None:
    class Growing(nn.Linear):
        twice = False

        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y + self.weight.sum() if self.twice else y

    module = Growing(6, 6)
    module.weight.register_post_accumulate_grad_hook(lambda p: None)
    recorder = Recorder(module)
    run(recorder, module, draw(4, 6))
    module.twice = True
    with pytest.raises(SynthError, match="used in a new way"):
        run(recorder, module, draw(4, 6))


class Forces(nn.Module):
    """The gradient of an energy by its input, itself trained through."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return force + x


def test_a_stage_that_differentiates_in_its_forward_is_left_to_autograd() -> None:
    mine, theirs = twins(Forces)
    recorder = Recorder(mine)
    for _ in range(2):
        run(recorder, mine, draw(4, 6))
        by_autograd(theirs, draw(4, 6))
        assert_same_gradients(mine, theirs)


def test_a_stage_that_begins_to_differentiate_later_is_refused() -> None:
    class Later(Forces):
        starts = False

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.starts else self.energy(x)

    module = Later()
    recorder = Recorder(module)
    run(recorder, module, draw(4, 6))
    module.starts = True
    with pytest.raises(SynthError, match=r"calls torch\.autograd inside its forward"):
        run(recorder, module, draw(4, 6))


class _Recomputed(torch.autograd.Function):
    """Differentiates a product in its backward, as hand-written checkpoints do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            x, y = x.detach().requires_grad_(), None
            y = F.linear(x, weight)
            return torch.autograd.grad(y, (x, weight), gradient)


def test_a_function_that_differentiates_in_its_backward_is_left_to_autograd() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = _Recomputed.apply(self.first(x), self.weight)
            return y

    mine, theirs = twins(Own)
    recorder = Recorder(mine)
    for _ in range(2):
        run(recorder, mine, draw(4, 6))
        by_autograd(theirs, draw(4, 6))
        assert_same_gradients(mine, theirs)


def test_a_forward_that_is_patched_later_is_respected_and_stays() -> None:
    mine, theirs = twins(lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)))
    recorder = Recorder(mine)
    run(recorder, mine, draw(4, 6))
    by_autograd(theirs, draw(4, 6))

    def doubled(linear: nn.Linear, x: Tensor) -> Tensor:
        return 2 * F.linear(x, linear.weight, linear.bias)

    for module in (mine, theirs):
        patched = module[0]  # type: ignore[index]
        patched.forward = doubled.__get__(patched)
    run(recorder, mine, draw(4, 6))
    by_autograd(theirs, draw(4, 6))
    assert_same_gradients(mine, theirs)
    assert mine[0].forward.__func__ is doubled  # type: ignore[index]
    assert "forward" not in vars(mine[2])  # type: ignore[index]


def test_a_class_that_is_patched_later_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = twins(lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)))
    recorder = Recorder(mine)
    run(recorder, mine, draw(4, 6))
    by_autograd(theirs, draw(4, 6))
    own = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda linear, x: 2 * own(linear, x))
    run(recorder, mine, draw(4, 6))
    by_autograd(theirs, draw(4, 6))
    assert_same_gradients(mine, theirs)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler asks every tensor for it
@pytest.mark.parametrize("part", ["whole", "inner", "method", "function"])
def test_a_compiled_region_is_left_to_autograd(part: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
            self.middle: Any = nn.Sequential(nn.Linear(6, 6), nn.GELU())
            if part == "inner":
                self.middle = torch.compile(self.middle, backend="aot_eager")
            if part == "method":
                self.middle.compile(backend="aot_eager")
            self.run = self.inner
            if part == "function":
                self.run = torch.compile(self.inner, backend="aot_eager")

        def inner(self, x: Tensor) -> Tensor:
            y: Tensor = self.middle(x)
            return F.linear(y, self.last.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.run(self.first(x)))

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    mine, theirs = twins(Model)
    stage: Any = torch.compile(mine, backend="aot_eager") if part == "whole" else mine
    recorder = Recorder(stage)
    for _ in range(3):
        run(recorder, stage, draw(4, 6))
        by_autograd(theirs, draw(4, 6))
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs <= 5, "a region is compiled again for each micro-batch"


class Gate(nn.Module):
    """Calls a function that has a rule by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Attending(nn.Module):
    """Self-attention, and attention to keys and values of other widths."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True)
        self.outer = nn.MultiheadAttention(6, 2, batch_first=True, kdim=3, vdim=6)
        self.gate = Gate()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x, x, x, need_weights=False)[0]
        z, weights = self.outer(y, y[..., :3], y)
        return self.gate(z + weights.sum()) * torch.special.expit(x)


def test_only_the_module_with_calls_that_have_a_rule_is_intercepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import synth.runtime.split.interception as interception
    from synth.runtime.split.rule import rule_for

    model = Attending()
    recorder = Recorder(model)
    run(recorder, model, draw(2, 3, 6))
    seen = []

    def noting(function: Any) -> Any:
        seen.append(function)
        return rule_for(function)

    monkeypatch.setattr(interception, "rule_for", noting)
    run(recorder, model, draw(2, 3, 6))
    assert set(seen) == {F.linear}


@pytest.mark.parametrize("intercepted", [False, True])
def test_the_projections_of_attention_wait_for_w(
    monkeypatch: pytest.MonkeyPatch, intercepted: bool
) -> None:
    if intercepted:  # as where torch's functions are not as expected
        monkeypatch.setattr("synth.runtime.split.recorder.can_record", lambda: False)
    mine, theirs = twins(Attending)
    recorder = Recorder(mine)
    for _ in range(2):
        run(recorder, mine, draw(2, 3, 6))
        by_autograd(theirs, draw(2, 3, 6))
        assert_same_gradients(mine, theirs)
    tape = recorder.new_tape()
    y = recorder.forward(tape, mine, draw(2, 3, 6)[0])
    recorder.backward_input(tape, y.sum())
    deferred = {id(p) for p in tape.deferred}
    assert deferred == {id(p) for p in mine.parameters()}


def test_a_subclass_of_linear_is_recorded_as_linear_is() -> None:
    class Named(nn.Linear):
        pass

    module = nn.Sequential(Named(4, 4), nn.Tanh(), Named(4, 4))
    recorder = Recorder(module)
    tape = recorder.new_tape()
    recorder.backward_input(tape, recorder.forward(tape, module, torch.randn(2, 4)).sum())
    kinds = {type(forward).__name__ for forward in recorder._forwards}
    assert kinds == {"RecordedLinear"} and len(tape.deferred) == 4
