"""W keeps the parts that it needs of larger tensors, where nobody else needs the rest."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from synth.runtime.split import Recorder, SplitTape, enter
from tests.runtime.test_recorder import assert_same_gradients, by_autograd, run, twins

ROWS, WIDTH = 96, 256


class Gated(nn.Module):
    """Half of what one layer gives is another's input, and half a gate (Mamba)."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.into(x).chunk(2, -1)
        return torch.tanh(self.out(y)) * gate.sin()


class Pooled(nn.Module):
    """One position of each sequence goes on (BERT's pooler)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x).view(-1, 4, WIDTH)[:, 0])


class Joined(nn.Module):
    """Outputs are parts of one tensor, whose gradient is larger than theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.left(x), x.sin(), x.cos()], -1).square()


class Thirds(nn.Module):
    """All parts of the joint gradient are needed: it stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], -1).square()


# Inputs and output gradients of the linear layers, in rows of WIDTH elements.
NEEDED: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "gated": (Gated, ROWS * (1 + 2 + 1 + 1)),
    "pooled": (Pooled, ROWS / 4 * (1 + 1)),
    "joined": (Joined, ROWS * (1 + 1)),
    "thirds": (Thirds, ROWS * (1 + 3)),
}


def draw() -> list[Tensor]:
    return [torch.randn((ROWS, WIDTH), generator=torch.Generator().manual_seed(j)) for j in (0, 1)]


def held_bytes(tape: SplitTape) -> int:
    """Of the storages that wait for W."""
    storages = [t.untyped_storage() for task in tape._tasks for t in task.held]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def after_backward_input(recorder: Recorder, module: nn.Module) -> SplitTape:
    tape, (x, _) = recorder.new_tape(), enter(draw()[0])
    y = recorder.forward(tape, module, x)
    gradient = torch.ones_like(y)
    recorder.backward_input(tape, [y], [gradient])
    return tape


@pytest.mark.parametrize("name", NEEDED)
def test_no_more_than_what_is_needed_is_held_for_w(name: str) -> None:
    make, rows = NEEDED[name]
    module = make()
    recorder = Recorder(module)
    for _ in range(2):
        tape = after_backward_input(recorder, module)
        assert held_bytes(tape) == rows * WIDTH * 4
        tape.backward_weight()


@pytest.mark.parametrize("name", NEEDED)
def test_gradients_of_parts_have_autograds_bits(name: str) -> None:
    mine, theirs = twins(NEEDED[name][0])
    recorder = Recorder(mine)
    inputs = [*draw(), draw()[0]]
    for _ in range(2):
        run(recorder, mine, [x.clone() for x in inputs])
        by_autograd(theirs, [x.clone() for x in inputs])
        assert_same_gradients(mine, theirs)


def test_a_part_of_what_somebody_else_holds_is_not_copied() -> None:
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
    whole = torch.randn(ROWS, 4 * WIDTH)
    tape = SplitTape()
    tape.backward_input(tape.forward(F.linear, whole[:, :WIDTH], weight).sum())
    held = [t.untyped_storage().data_ptr() for task in tape._tasks for t in task.held]
    assert whole.untyped_storage().data_ptr() in held
    tape.backward_weight()
    assert weight.grad is not None
