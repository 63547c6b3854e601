"""The split backward: B then W is, bit for bit, what autograd computes at once."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import wrap_torch_function
from torch.utils.checkpoint import checkpoint

from synth.errors import SynthError
from synth.runtime.split import Call, Recorder, Rule, SplitTape, enter, register, rules
from synth.runtime.split.rule import rule_for
from synth.system.discovery import import_modules

Fn = Callable[..., Tensor]
MICRO_BATCHES = 3


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield


class Product(nn.Module):
    """x @ W, or addmm as in the first GPT-2s."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.weight, self.bias = nn.Parameter(torch.randn(12, 7)), nn.Parameter(torch.randn(7))

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "addmm":
            return torch.addmm(self.bias, x.flatten(0, -2), self.weight)
        if self.form == "mm":
            return x.flatten(0, -2).mm(self.weight) + self.bias
        return x @ self.weight + self.bias


class Through(nn.Module):
    """A layer behind some change of its input's layout."""

    def __init__(self, change: Fn, layer: nn.Module) -> None:
        super().__init__()
        self.change, self.layer = change, layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.change(x))


def layers() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    def swap(x: Tensor) -> Tensor:
        return x.transpose(0, 1)

    return {
        "linear": (lambda: nn.Linear(12, 7), (4, 33, 12)),
        "linear without bias": (lambda: nn.Linear(12, 7, bias=False), (4, 33, 12)),
        "linear of a matrix": (lambda: nn.Linear(12, 7), (33, 12)),
        "linear of a vector": (lambda: nn.Linear(12, 7), (12,)),
        "linear, one row": (lambda: nn.Linear(12, 1), (1, 12)),
        "linear, one column": (lambda: nn.Linear(1, 7), (9, 1)),
        "linear of four dimensions": (lambda: nn.Linear(12, 7), (2, 4, 33, 12)),
        "linear, strided": (lambda: Through(swap, nn.Linear(12, 7)), (4, 33, 12)),
        "linear, strided, no bias": (
            lambda: Through(swap, nn.Linear(12, 7, bias=False)),
            (4, 33, 12),
        ),
        "linear, column-major": (lambda: Through(swap, nn.Linear(12, 7)), (12, 33)),
        "linear, a slice": (lambda: Through(lambda x: x[:, 0], nn.Linear(12, 7)), (9, 3, 12)),
        "matmul": (lambda: Product("@"), (4, 33, 12)),
        "mm": (lambda: Product("mm"), (4, 33, 12)),
        "addmm": (lambda: Product("addmm"), (4, 33, 12)),
        "matmul, strided": (lambda: Through(swap, Product("@")), (4, 33, 12)),
        "matmul, column-major": (lambda: Through(swap, Product("@")), (12, 33)),
        "addmm, column-major": (lambda: Through(swap, Product("addmm")), (12, 33)),
        "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 19)),
        "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2), (2, 4, 9, 9)),
        "conv2d, same": (lambda: nn.Conv2d(4, 6, 3, padding="same", bias=False), (2, 4, 9, 9)),
        "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 5, 5, 5)),
        "layer norm": (lambda: nn.LayerNorm(12), (4, 33, 12)),
        "layer norm without bias": (lambda: nn.LayerNorm(12, bias=False), (4, 33, 12)),
        "layer norm without weights": (
            lambda: nn.Sequential(nn.LayerNorm(12, elementwise_affine=False), nn.Linear(12, 7)),
            (4, 33, 12),
        ),
        "rms norm": (lambda: nn.RMSNorm(12), (4, 33, 12)),
        "attention": (lambda: Attention(), (4, 9, 12)),
        "mlp": (lambda: nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)), (4, 9, 12)),
    }


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def by_autograd(module: Fn, inputs: list[Tensor]) -> list[Tensor | None]:
    """Ordinary forward and backward of every micro-batch; the inputs' gradients."""
    found = []
    for x in inputs:
        x = x.clone().requires_grad_(x.is_floating_point())
        y = module(x)
        y.backward(weigh(y))
        found.append(x.grad)
    return found


def by_split(module: Fn, inputs: list[Tensor]) -> list[Tensor | None]:
    """The same by F, B and W; all Fs first, and each W after the next B."""
    tapes = [SplitTape() for _ in inputs]
    entries = [enter(x.clone()) if x.is_floating_point() else (x, None) for x in inputs]
    outputs = [tape.forward(module, x) for tape, (x, _) in zip(tapes, entries, strict=True)]
    for tape, y in zip(tapes, outputs, strict=True):
        tape.backward_input(y, weigh(y))
    for tape in tapes:
        tape.backward_weight()
    return [None if box is None else box.take() for _, box in entries]


def weigh(y: Tensor) -> Tensor:
    """A gradient for y that is not all ones."""
    weights = torch.linspace(-1, 2, y.numel(), device=y.device)
    return weights.to(y.dtype).view(y.shape)


def assert_same(mine: list[Tensor | None], theirs: list[Tensor | None]) -> None:
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype == b.dtype and torch.equal(a, b)


Module = TypeVar("Module", bound=nn.Module)


def twins(make: Callable[[], Module], dtype: torch.dtype = torch.float32) -> list[Module]:
    first, second = make().to(dtype), make().to(dtype)
    second.load_state_dict(first.state_dict())
    return [first, second]


def batches(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(shape).to(dtype) for _ in range(MICRO_BATCHES)]


def assert_split_is_autograd(make: Callable[[], nn.Module], inputs: list[Tensor]) -> None:
    dtype = inputs[0].dtype if inputs[0].is_floating_point() else torch.float32
    mine, theirs = twins(make, dtype)
    found, expected = by_split(mine, inputs), by_autograd(theirs, inputs)
    assert_same(found, expected)
    assert_same(gradients(mine), gradients(theirs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", layers())
def test_gradients_are_autograds_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    make, shape = layers()[kind]
    assert_split_is_autograd(make, batches(*shape, dtype=dtype))


@pytest.mark.parametrize("padding", [None, 3, -1])
def test_embedding_gradients_are_autograds_bit_for_bit(padding: int | None) -> None:
    inputs = [torch.randint(0, 11, (4, 9)) for _ in range(MICRO_BATCHES)]
    assert_split_is_autograd(lambda: nn.Embedding(11, 5, padding_idx=padding), inputs)


DEFERRED = {
    "linear": 2, "linear without bias": 1, "linear, strided": 2, "matmul": 1, "addmm": 2, "mm": 1,
    "matmul, strided": 1, "conv1d": 2, "conv2d": 2, "conv3d": 2, "layer norm": 0, "attention": 4,
    "mlp": 4, "linear, a slice": 2, "linear, column-major": 2, "conv2d, same": 1,
    "linear of a vector": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFERRED)
def test_b_defers_the_parameters_that_have_a_rule(kind: str) -> None:
    make, shape = layers()[kind]
    module, tape = make(), SplitTape()
    y = tape.forward(module, torch.randn(shape))
    tape.backward_input(y, weigh(y))
    missing = [p for p in module.parameters() if p.grad is None]
    assert len(missing) == len(tape.deferred) == DEFERRED[kind]
    tape.backward_weight()
    assert tape.pending == 0 and None not in gradients(module)


def test_gradients_add_to_preallocated_ones_in_place() -> None:
    mine, theirs = twins(lambda: nn.Linear(12, 7))
    for parameter in [*mine.parameters(), *theirs.parameters()]:
        parameter.grad = torch.zeros_like(parameter)
    buffers = gradients(mine)
    inputs = batches(4, 9, 12)
    by_split(mine, inputs)
    by_autograd(theirs, inputs)
    assert_same(gradients(mine), gradients(theirs))
    assert all(a is b for a, b in zip(buffers, gradients(mine), strict=True))


def test_a_layer_used_more_than_once_adds_up_as_in_autograd() -> None:
    def make() -> nn.Module:
        shared = nn.Linear(12, 12)
        return nn.Sequential(shared, nn.Tanh(), shared, nn.GELU(), shared)

    assert_split_is_autograd(make, batches(4, 33, 12))


class Layouts(nn.Module):
    """One layer at several places of a chain, between which the layout changes."""

    def __init__(self, layer: nn.Module, chain: str) -> None:
        super().__init__()
        self.layer, self.chain = layer, chain

    def forward(self, x: Tensor) -> Tensor:
        for step in self.chain.split():
            x = self.layer(x) if step == "layer" else getattr(self, step)(x)
        return x

    def swap(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)

    def tanh(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def halve(self, x: Tensor) -> Tensor:
        return x[::2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(12, 12), (4, 33, 12), (2, 4, 33, 12)], ids=["2-D", "3-D", "4-D"]
)
@pytest.mark.parametrize(
    "chain",
    [
        "layer swap layer",
        "swap layer layer",
        "layer swap tanh layer",
        "layer tanh swap layer tanh layer",
        "halve layer tanh halve layer layer",
    ],
)
def test_a_layer_used_in_several_layouts_adds_up_as_in_autograd(
    chain: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert_split_is_autograd(
        lambda: Layouts(nn.Linear(12, 12), chain), batches(*shape, dtype=dtype)
    )


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("kind", ["linear", "linear, strided", "conv1d", "layer norm"])
def test_frozen_parameters_get_no_gradient(kind: str, frozen: str) -> None:
    make, shape = layers()[kind]

    def frozen_make() -> nn.Module:
        module = make()
        (parameter,) = (p for name, p in module.named_parameters() if name.endswith(frozen))
        parameter.requires_grad_(False)
        return module

    assert_split_is_autograd(frozen_make, batches(*shape))


@pytest.mark.parametrize("kind", [kind for kind in layers() if kind.startswith("linear")])
def test_the_first_layer_needs_no_gradient_of_its_input(kind: str) -> None:
    make, shape = layers()[kind]
    mine, theirs = twins(make)
    for x in batches(*shape):
        tape = SplitTape()
        y = tape.forward(mine, x)
        tape.backward_input(y, weigh(y))
        tape.backward_weight()
        out = theirs(x)
        out.backward(weigh(out))
    assert_same(gradients(mine), gradients(theirs))


def test_a_weight_that_is_no_leaf_is_left_to_autograd() -> None:
    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight.tril(), self.bias)

    assert_split_is_autograd(lambda: Masked(7, 7), batches(4, 9, 7))


def test_w_delivers_a_gradient_to_the_hooks_of_its_parameter() -> None:
    layer, tape = nn.Linear(12, 7), SplitTape()
    seen: list[Tensor] = []
    layer.weight.register_hook(seen.append)
    y = tape.forward(layer, torch.randn(4, 12))
    tape.backward_input(y, weigh(y))
    assert not seen and tape.pending == 1
    tape.backward_weight()
    assert len(seen) == 1 and torch.equal(seen[0], layer.weight.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind",
    [
        *("mlp", "attention", "conv2d", "layer norm", "addmm", "addmm, column-major"),
        *("linear, strided", "linear, column-major", "matmul, strided", "matmul, column-major"),
    ],
)
def test_under_autocast_the_bits_are_autograds_and_gradients_float32(kind: str) -> None:
    make, shape = layers()[kind]
    mine, theirs = twins(make)

    def cast(module: nn.Module) -> Fn:
        def run(x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return module(x)

        return run

    inputs = batches(*shape)
    assert_same(by_split(cast(mine), inputs), by_autograd(cast(theirs), inputs))
    assert_same(gradients(mine), gradients(theirs))


def test_under_autocast_no_cast_copy_of_a_weight_is_kept() -> None:
    layer = nn.Linear(64, 64)
    kept: list[Tensor] = []

    def keep(saved: Tensor) -> Tensor:
        kept.append(saved)
        return saved

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t),
        torch.autocast("cpu", torch.bfloat16),
    ):
        SplitTape().forward(layer, torch.randn(2, 64))
    assert sum(t.nbytes for t in kept if t.data_ptr() != layer.weight.data_ptr()) < 1024


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_a_checkpointed_layer_is_recomputed_once_and_within_b(reentrant: bool) -> None:
    calls: list[None] = []

    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

        def inner(self, x: Tensor) -> Tensor:
            calls.append(None)
            return super().forward(x)

    mine, theirs = twins(lambda: Checkpointed(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)))
    x, box = enter(torch.randn(4, 12))
    tape = SplitTape()
    y = tape.forward(mine, x)
    tape.backward_input(y, weigh(y))
    assert len(calls) == 2 and len(tape.deferred) == 4
    tape.backward_weight()
    assert len(calls) == 2
    assert_same([box.take()], by_autograd(theirs, [x.detach()]))
    assert_same(gradients(mine), gradients(theirs))


def test_hooks_that_take_what_autograd_saves_take_what_w_needs_too() -> None:
    mine, theirs = twins(lambda: nn.Sequential(nn.Linear(12, 24), nn.Linear(24, 12)))
    hidden: list[StorageWeakRef] = []
    mine[1].register_forward_pre_hook(
        lambda _, inputs: hidden.append(StorageWeakRef(inputs[0].untyped_storage()))
    )
    tape, (x, box) = SplitTape(), enter(torch.randn(4, 12))
    with saved_tensors_hooks(lambda tensor: tensor.clone(), lambda copy: copy):
        y = tape.forward(mine, x)
    assert hidden[0].expired()
    tape.backward_input(y, weigh(y))
    tape.backward_weight()
    assert_same([box.take()], by_autograd(theirs, [x.detach()]))
    assert_same(gradients(mine), gradients(theirs))


def test_a_saved_input_changed_in_place_is_noticed() -> None:
    tape, x = SplitTape(), torch.randn(4, 12)
    y = tape.forward(nn.Linear(12, 7), x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tape.backward_input(y, weigh(y))
    assert tape.pending == 0


def test_an_output_can_be_dropped_for_its_edge() -> None:
    layer, tape = nn.Linear(12, 7), SplitTape()
    y = tape.forward(layer, torch.randn(4, 12))
    edge, grad, storage = get_gradient_edge(y), weigh(y), StorageWeakRef(y.untyped_storage())
    del y
    assert storage.expired()
    tape.backward_input(edge, grad)
    tape.backward_weight()
    assert None not in gradients(layer)


@pytest.mark.parametrize("saved", [False, True], ids=["not saved", "saved"])
def test_the_graph_keeps_the_stage_input_only_if_a_layer_saved_it(saved: bool) -> None:
    received, tape = torch.randn(4, 12), SplitTape()
    layer: Fn = nn.Linear(12, 7) if saved else (lambda x: x + 1)
    x, box = enter(received)
    y = tape.forward(layer, x)
    storage = StorageWeakRef(received.untyped_storage())
    del received, x
    assert storage.expired() != saved
    tape.backward_input(y, weigh(y))
    assert box.take().shape == (4, 12)


def test_w_frees_the_tensors_of_each_task_as_it_goes() -> None:
    alive: list[list[bool]] = []
    stored: list[StorageWeakRef] = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            stored.append(StorageWeakRef(x.untyped_storage()))
            return super().forward(x)

    layers = [Watched(8, 8) for _ in range(3)]
    tape, model = SplitTape(), nn.Sequential(*layers)
    y = tape.forward(model, torch.randn(4, 8))
    tape.backward_input(y, weigh(y))
    del y
    for layer in layers:
        layer.weight.grad = _Noting(layer.weight.shape, stored, alive)
    tape.backward_weight()
    assert alive == [[True, True, False], [True, False, False], [False, False, False]]


class _Noting(Tensor):
    """A gradient buffer that notes, when added to, which stored tensors are still alive."""

    @staticmethod
    def __new__(
        cls, shape: torch.Size, stored: list[StorageWeakRef], alive: list[list[bool]]
    ) -> "_Noting":
        return torch.zeros(shape).as_subclass(cls)

    def __init__(
        self, shape: torch.Size, stored: list[StorageWeakRef], alive: list[list[bool]]
    ) -> None:
        self.stored, self.alive = stored, alive

    def add_(self, other: Tensor) -> Tensor:  # type: ignore[override]
        self.alive.append([not s.expired() for s in self.stored])
        return self


def test_a_box_without_a_gradient_says_so() -> None:
    with pytest.raises(SynthError, match="no gradient has reached"):
        enter(torch.randn(3))[1].take()


def test_token_ids_cannot_enter() -> None:
    with pytest.raises(SynthError, match="int64"):
        enter(torch.tensor([1]))


@wrap_torch_function(lambda x, gain: (x, gain))
def scale(x: Tensor, gain: Tensor) -> Tensor:
    return x * gain


class ScaleRule(Rule):
    def bind(self, x: Tensor, gain: Tensor) -> Call:
        return Call(x, (gain,))

    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        return call.input * call.weight(), ()

    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        return grad * call.weight()

    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> tuple[Tensor]:
        return ((grad * call.input).flatten(0, -2).sum(0),)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(5))

    def forward(self, x: Tensor) -> Tensor:
        return scale(x, self.gain)


def test_a_users_own_rule_defers_and_cannot_be_registered_twice() -> None:
    register(scale)(ScaleRule)
    module, tape = Scale(), SplitTape()
    y = tape.forward(module, torch.randn(4, 5))
    tape.backward_input(y, weigh(y))
    assert tape.deferred == (module.gain,) and module.gain.grad is None
    assert_split_is_autograd(Scale, batches(4, 5))
    with pytest.raises(SynthError, match="scale already has the rule ScaleRule"):
        register(scale)(ScaleRule)


def test_a_file_in_the_folder_of_rules_is_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cosine.py").write_text(
        "import torch\n"
        "from synth.runtime.split import register\n"
        "from synth.runtime.split.rules.embedding import EmbeddingRule\n"
        "@register(torch.cos)\n"
        "class CosineRule(EmbeddingRule):\n"
        "    pass\n"
    )
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    monkeypatch.setattr("synth.runtime.split.rule._rules", {})
    try:
        import_modules(rules.__name__)
        assert type(rule_for(torch.cos)).__name__ == "CosineRule"
    finally:
        sys.modules.pop("synth.runtime.split.rules.cosine")


def test_a_rule_that_lacks_a_method_is_refused() -> None:
    class Half(Rule):
        def bind(self, x: Tensor) -> None:
            return None

    with pytest.raises(SynthError, match="Half lacks forward, input_gradient, weight_gradients"):
        register(torch.sin)(Half)


def test_a_rule_that_returns_too_few_gradients_is_named() -> None:
    class Short(ScaleRule):
        def weight_gradients(self, grad, call, needs):  # type: ignore[no-untyped-def]
            return ()

    @wrap_torch_function(lambda x, gain: (x, gain))
    def shrink(x: Tensor, gain: Tensor) -> Tensor:
        return x / gain

    register(shrink)(Short)
    tape = SplitTape()
    y = tape.forward(shrink, torch.randn(4, 5), nn.Parameter(torch.ones(5)))
    tape.backward_input(y, weigh(y))
    with pytest.raises(SynthError, match="Short gave weight gradients"):
        tape.backward_weight()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "checkpointed"])
def test_rules_hold_on_the_threads_of_a_cuda_backward(recompute: bool) -> None:
    def make() -> nn.Module:
        layers = (nn.LayerNorm(64), nn.Linear(64, 64), nn.RMSNorm(64), nn.Linear(64, 64))
        return nn.Sequential(*layers).cuda()

    def run(module: nn.Module) -> Fn:
        return lambda x: checkpoint(module, x, use_reentrant=False) if recompute else module(x)

    mine, theirs = twins(make)
    inputs = [x.cuda() for x in batches(4, 33, 64)]
    assert_same(by_split(run(mine), inputs), by_autograd(run(theirs), inputs))
    assert_same(gradients(mine), gradients(theirs))


@pytest.mark.parametrize("shape", [(4, 8), (2, 4, 8)], ids=["2-D", "3-D"])
def test_the_output_may_be_changed_in_place_as_without_the_split(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    x = torch.randn(shape)
    (model(x).add_(1) ** 2).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    tape = SplitTape()
    y = tape.forward(lambda: (model(x).add_(1) ** 2).sum())
    tape.backward_input(y)
    tape.backward_weight()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None and torch.equal(parameter.grad, gradient)


@pytest.mark.parametrize("kind", layers())
def test_a_recorder_gives_the_same_bits_in_its_first_f_and_after_it(kind: str) -> None:
    make, shape = layers()[kind]
    mine, theirs = twins(make)
    recorder, inputs = Recorder(mine), batches(*shape)
    for x in inputs:
        tape, (entered, box) = SplitTape(), enter(x)
        y = recorder.forward(tape, mine, entered)
        recorder.backward_input(tape, y, weigh(y))
        tape.backward_weight()
        assert_same([box.take()], by_autograd(theirs, [x]))
        assert_same(gradients(mine), gradients(theirs))
    assert not any("forward" in vars(part) for part in mine.modules())


@pytest.mark.parametrize("reentrant", [None, False, True], ids=["kept", "checkpoint", "reentrant"])
def test_a_recorder_defers_linear_modules_and_other_calls_with_a_rule(
    reentrant: bool | None,
) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.matrix = nn.Linear(12, 12), nn.Parameter(torch.randn(12, 12))

        def forward(self, x: Tensor) -> Tensor:
            if reentrant is None:
                return self.inner(x)
            return checkpoint(self.inner, x, use_reentrant=reentrant)

        def inner(self, x: Tensor) -> Tensor:
            return torch.tanh(self.first(x)) @ self.matrix

    mine, theirs = twins(Mixed)
    recorder, inputs = Recorder(mine), batches(4, 12)
    for x in inputs:
        tape, (entered, _) = SplitTape(), enter(x)
        y = recorder.forward(tape, mine, entered)
        recorder.backward_input(tape, y, weigh(y))
        assert len(tape.deferred) == (0 if reentrant and x is inputs[0] else 3)
        tape.backward_weight()
        by_autograd(theirs, [x])
        assert_same(gradients(mine), gradients(theirs))


@pytest.mark.parametrize("reentrant", [False, True], ids=["checkpoint", "reentrant"])
def test_a_recorder_defers_recomputed_linear_modules_without_interception(
    reentrant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    mine, theirs = twins(lambda: Checkpointed(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)))
    recorder, inputs = Recorder(mine), batches(4, 12)
    monkeypatch.setattr("synth.runtime.split.recorder.Interception", _refuse)
    monkeypatch.setattr("synth.runtime.split.forwards.Interception", _refuse)
    for x in inputs:
        tape, (entered, box) = SplitTape(), enter(x)
        y = recorder.forward(tape, mine, entered)
        recorder.backward_input(tape, y, weigh(y))
        assert len(tape.deferred) == (0 if reentrant and x is inputs[0] else 4)
        assert not any("forward" in vars(part) for part in mine.modules())
        tape.backward_weight()
        assert_same([box.take()], by_autograd(theirs, [x]))
        assert_same(gradients(mine), gradients(theirs))


@pytest.mark.parametrize("reentrant", [False, True], ids=["checkpoint", "reentrant"])
def test_what_a_later_f_leaves_out_is_still_recomputed_as_it_was_run(reentrant: bool) -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.rarely = nn.Linear(12, 12), nn.Conv1d(1, 1, 3, padding=1)

        def run(self, x: Tensor) -> Tensor:
            y: Tensor = self.always(x)
            return self.rarely(y[:, None])[:, 0] if x.shape[0] == 4 else y

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.run, x, use_reentrant=reentrant)

    mine, theirs = twins(Sometimes)
    recorder, tape, (x, box) = Recorder(mine), SplitTape(), enter(torch.randn(4, 12))
    first = SplitTape()
    recorder.backward_input(
        first, recorder.forward(first, mine, enter(torch.randn(4, 12))[0]).sum()
    )
    mine.zero_grad()
    y = recorder.forward(tape, mine, x)
    recorder.forward(SplitTape(), mine, enter(torch.randn(3, 12))[0])
    recorder.backward_input(tape, y, weigh(y))
    assert len(tape.deferred) == 4
    tape.backward_weight()
    assert_same([box.take()], by_autograd(theirs, [x.detach()]))
    assert_same(gradients(mine), gradients(theirs))


def _refuse(tape: SplitTape) -> None:
    raise AssertionError("functions are intercepted once more")


def test_a_recorder_leaves_modules_as_they_were_when_f_fails() -> None:
    layer = nn.Linear(12, 7)
    with pytest.raises(RuntimeError, match="shapes"):
        Recorder(layer).forward(SplitTape(), layer, torch.randn(4, 11))
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("form", ["mm", "addmm"])
@pytest.mark.parametrize("strided", [False, True])
def test_what_torch_refuses_is_refused(form: str, strided: bool) -> None:
    """Products of matrices take no batch of them."""
    weight, bias = nn.Parameter(torch.randn(12, 7)), nn.Parameter(torch.randn(7))
    x = torch.randn(4, 12, 3).mT if strided else torch.randn(4, 3, 12)
    product = (
        partial(torch.mm, mat2=weight) if form == "mm" else partial(torch.addmm, bias, mat2=weight)
    )
    with pytest.raises(RuntimeError, match="must be a matrix"):
        SplitTape().forward(product, x)


@pytest.mark.parametrize("bias", [True, False])
def test_hooks_on_saved_tensors_see_the_shapes_that_autograd_packs(bias: bool) -> None:
    layer = nn.Linear(4, 6, bias=bias)
    x = torch.randn(2, 3, 4, requires_grad=True)

    def packed(run: Callable[[], object]) -> list[tuple[int, ...]]:
        seen: list[tuple[int, ...]] = []

        def pack(tensor: Tensor) -> Tensor:
            seen.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            run()
        return seen

    inputs = {(6, 4), (2, 3, 4)}
    mine = packed(lambda: SplitTape().forward(layer, x))
    assert inputs & set(mine) == inputs & set(packed(lambda: layer(x))) == {(6, 4)}


class DifferentiatesInHook(nn.Module):
    """A fixed point whose gradient is solved for by a hook (deep equilibrium models)."""

    def __init__(self, *, anew: bool) -> None:
        super().__init__()
        self.linear, self.anew = nn.Linear(4, 4), anew

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.linear(x))
        at = z.detach().requires_grad_()
        recorded = torch.tanh(self.linear(at))

        def solve(gradient: Tensor) -> Tensor:
            with torch.enable_grad():
                again = torch.tanh(F.linear(at, *map(Tensor.detach, self.linear.parameters())))
            found = again if self.anew else recorded
            (more,) = torch.autograd.grad(found, at, gradient, retain_graph=True)
            return gradient + 0.1 * more

        z.register_hook(solve)
        return z


def test_a_hook_that_differentiates_what_f_recorded_is_refused() -> None:
    tape, module = SplitTape(), DifferentiatesInHook(anew=False)
    y = tape.forward(module, torch.randn(3, 4))
    with pytest.raises(SynthError, match="on what the forward has recorded"):
        tape.backward_input(y, weigh(y))
    assert tape.pending == 0


def test_a_hook_may_differentiate_what_it_computes_anew() -> None:
    assert_split_is_autograd(lambda: DifferentiatesInHook(anew=True), batches(3, 4))
