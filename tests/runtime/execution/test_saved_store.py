"""Saved activations, taken away and put back: what moves, what stays, and noticed changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.runtime.execution.base.boundary import Boundary, Leaf
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.execution.base.step_table import Slots, StepTable
from synth.runtime.execution.stage.offload_ops import OffloadOps
from synth.runtime.execution.stage.stage import Stage
from synth.runtime.execution.stage.storage_refcount import num_references
from synth.runtime.profiling.meter import measure
from synth.schedule.ops import Op

WIDTH, ROWS = 32, 16
ROW_BYTES = WIDTH * ROWS * 4
CPU = torch.device("cpu")


class Table(nn.Module):
    """Multiplies by a table that it keeps between forwards, and that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, ROWS * WIDTH).view(ROWS, WIDTH)
        return x * self.table


class Thirds(nn.Module):
    """Saves three views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.wide(x).chunk(3, dim=-1)
        return a * b * c


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


def stage_of(*layers: Callable[[], nn.Module]) -> Stage:
    torch.manual_seed(3)
    return Stage([make() for make in layers], is_first=False, is_last=False)


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def block() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), linear(), nn.GELU(), linear(), nn.Tanh())


def received() -> tuple[tuple[Tensor, ...], Boundary]:
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(5))
    return (x,), Boundary((Leaf(tuple(x.shape), x.dtype, True),))


def gradients(stage: Stage, fused: bool) -> list[Tensor]:
    """B and W, or BW; the input's gradient, then the parameters'."""
    given = (torch.ones(ROWS, WIDTH),)
    if fused:
        found = list(stage.backward(0, given))
    else:
        found = list(stage.backward_input(0, given))
        stage.backward_weight(0)
    for parameter in stage.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad)
        parameter.grad = None
    return found


@pytest.mark.parametrize("fused", [False, True], ids=["B, W", "BW"])
@pytest.mark.parametrize(
    "layer",
    [block, Thirds, Table, lambda: Checkpointed(block())],
    ids=["block", "views", "table", "checkpointed"],
)
def test_gradients_from_a_copy_are_the_same_bits(
    layer: Callable[[], nn.Module], fused: bool
) -> None:
    stage, (row, entry) = stage_of(linear, layer, linear), received()
    stage.forward(0, ForwardInput(row, entry=entry, fused=fused))
    expected = gradients(stage, fused)
    stage.forward(0, ForwardInput(row, entry=entry, fused=fused, moved=True))
    taken = stage.take_saved(0)
    copies = tuple(part.clone() for part in taken)
    for part in taken:
        part.fill_(255)  # whoever still reads it would notice
    del taken, part
    stage.put_back(0, copies)
    assert all(map(torch.equal, gradients(stage, fused), expected))


def test_a_storage_leaves_once_however_many_views_of_it_were_saved() -> None:
    stage, (row, entry) = stage_of(Thirds), received()
    stage.forward(0, ForwardInput(row, entry=entry, fused=True, moved=True))
    stage.take_saved(0)
    # The product of two thirds is saved besides the three.
    assert sorted(stage.saved_sizes(0)) == [ROW_BYTES, 3 * ROW_BYTES]


def test_input_output_parameters_and_tables_of_a_module_stay() -> None:
    stage, (row, entry) = stage_of(linear, Table, nn.Tanh), received()
    outputs = stage.forward(0, ForwardInput(row, entry=entry, fused=True, moved=True))
    # The first layer saves its input and its weight, Table its table and, of the linear's output,
    # nothing; Tanh the stage's output.
    assert stage.take_saved(0) == ()
    assert outputs[0].shape == (ROWS, WIDTH)


@pytest.mark.parametrize("fused", [False, True], ids=["B, W", "BW"])
def test_what_was_taken_is_freed_when_its_taker_lets_go(fused: bool) -> None:
    stage, (row, entry) = stage_of(block, block), received()
    with measure(CPU) as held:
        outputs = stage.forward(0, ForwardInput(row, entry=entry, fused=fused, moved=True))
        taken = stage.take_saved(0)
        total = sum(stage.saved_sizes(0))
        del outputs, taken
    assert total > 4 * ROW_BYTES
    assert held.net_bytes == ROW_BYTES  # the stage's output, which Tanh saved: a value of its own


@pytest.mark.parametrize("fused", [False, True], ids=["B, W", "BW"])
def test_what_w_needs_and_was_changed_in_place_is_noticed_in_the_backward(fused: bool) -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            x.mul_(2)
            return y

    stage, (row, entry) = stage_of(linear, Careless), received()
    stage.forward(0, ForwardInput(row, entry=entry, fused=fused, moved=True))
    stage.put_back(0, stage.take_saved(0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(stage, fused)


def test_a_tensor_changed_in_place_before_it_leaves_is_noticed_in_the_backward() -> None:
    class Careless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.exp()  # saves y
            y.add_(1)
            return y * 2

    stage, (row, entry) = stage_of(linear, Careless), received()
    stage.forward(0, ForwardInput(row, entry=entry, fused=True, moved=True))
    stage.put_back(0, stage.take_saved(0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stage.backward(0, (torch.ones(ROWS, WIDTH),))


def test_holders_of_a_storage_are_counted() -> None:
    tensor = torch.ones(3)
    storage = tensor.untyped_storage()
    alone = num_references(storage)
    view = tensor[1:]
    assert num_references(storage) == alone + 1
    del view
    assert num_references(storage) == alone


def test_a_torch_that_does_not_count_holders_is_refused_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    offload = Op(OpKind.OFFLOAD, 0, 0)
    OffloadOps([], {}, Slots(), StepTable())
    with pytest.raises(SynthError, match="take a schedule without O, L, K and G"):
        OffloadOps([offload], {}, Slots(), StepTable())
