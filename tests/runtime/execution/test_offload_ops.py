"""Saved activations that leave their rank and come back: what they must not change or confuse.

The families that move them are in `test_families_replayed.py`.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.runtime.batch import Batch
from synth.runtime.execution.base.loss_terms import LossTerms
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.execution.base.step_table import Slots, StepTable
from synth.runtime.execution.stage.offload_ops import OffloadOps
from synth.runtime.execution.stage.stage import Stage
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from tests.runtime.replaying import BATCH, WIDTH, Head


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    """Bit for bit."""
    return all(map(torch.equal, found, wanted))


class Noisy(nn.Module):
    """Random numbers, and running statistics that every forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.BatchNorm1d(2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.down(nn.functional.dropout(self.norm(self.up(x_BD)).relu(), 0.4))


BY_HAND = {
    "still": ("F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1"),
    "to the host": ("F0.0 O0.0 F0.1 L0.0 BW0.0 BW0.1", "F1.0 O1.0 L1.0 BW1.0 F1.1 BW1.1"),
    "to rank 1": ("F0.0 O0.0 F0.1 O0.1 L0.0 BW0.0 L0.1 BW0.1",
                  "K0.0 F1.0 K0.1 BW1.0 G0.0 F1.1 G0.1 BW1.1"),
}  # fmt: skip


def by_hand(name: str) -> Schedule:
    programs = [[Op.parse(token) for token in line.split()] for line in BY_HAND[name]]
    return Schedule.linear(name, 2, programs)


def train_noisy(rank: int, size: int, names: list[str]) -> list[Any]:
    """Two steps, on rows of other lengths; of each schedule the rank's state and gradients."""
    from synth.runtime.pipeline import Pipeline

    answers = []
    for name in names:
        torch.manual_seed(3)
        stage = Head() if rank else Noisy()
        pipeline = Pipeline(by_hand(name), stage, changing_shapes=True)
        for length in (4, 7):
            draw = torch.Generator().manual_seed(length)
            x, y = (torch.randn(2, length, n, generator=draw) for n in (WIDTH, 1))
            pipeline.step(Batch(list(x), list(y)))
        gradients = [p.grad for p in stage.parameters()]
        answers.append(([*stage.state_dict().values(), *gradients], torch.rand(3)))
    return answers


def test_moves_leave_no_trace_in_statistics_random_numbers_and_shapes_that_change(
    pool: Any,
) -> None:
    for (still, drawn), *others in pool.run(train_noisy, 2, list(BY_HAND)):
        for state, drawn_then in others:
            assert same(state, still)
            assert torch.equal(drawn_then, drawn)


def test_sizes_other_than_those_of_the_trial_are_told_with_the_stage() -> None:
    offload = Op(OpKind.OFFLOAD, 0, 0)
    stage = Stage(nn.Sequential(nn.Linear(WIDTH, WIDTH), Sines()), is_first=True, is_last=False)
    stage.forward(0, ForwardInput((torch.ones(BATCH, WIDTH),), fused=True, moved=True))
    table = StepTable()
    table.begin(Batch(), (), {(0, 0): (4 * BATCH * WIDTH,)}, LossTerms((1.0,)), 1)
    moves = OffloadOps([offload], {0: stage}, Slots(), table)
    with pytest.raises(SynthError, match=r"stage 0 saved 2 tensors of 144 bytes, .* trial saved 1"):
        moves.offload(offload)()


class Sines(nn.Module):
    """Saves what it is given and the first sine of it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin().sin()
