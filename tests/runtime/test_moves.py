"""Saved activations that leave their rank and come back: gradients, memory, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.costs import uniform_costs
from synth.errors import SynthError
from synth.families import family_placement, generate
from synth.kinds import OpKind
from synth.profile import Link, Links
from synth.runtime.batch import Batch
from synth.runtime.execution.moves import Moves
from synth.runtime.execution.stage import Stage
from synth.runtime.execution.step_table import Slots, StepTable
from synth.schedule.model import Schedule
from synth.schedule.ops import Op

WIDTH, BATCH = 6, 3


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x_BD: Tensor, targets_B1: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.out(x_BD), targets_B1)


def build_stages(count: int) -> list[nn.Module]:
    torch.manual_seed(2)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH))
        for _ in range(count - 1)
    ]
    return [*layers, Head()]


def build_batch(num_micro_batches: int) -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(4)
    inputs = torch.randn((num_micro_batches, BATCH, WIDTH), generator=draw)
    return list(inputs), list(torch.randn((num_micro_batches, BATCH, 1), generator=draw))


def plain_autograd(count: int, num_micro_batches: int) -> list[list[Tensor]]:
    """Each stage's gradients, of the mean loss, micro-batch after micro-batch."""
    stages = build_stages(count)
    for x, targets in zip(*build_batch(num_micro_batches), strict=True):
        for stage in stages[:-1]:
            x = stage(x)
        (stages[-1](x, targets) / num_micro_batches).backward()
    return [[p.grad for p in stage.parameters()] for stage in stages]


def same(found: list[Tensor | None], wanted: list[Tensor]) -> bool:
    """Bit for bit."""
    return all(map(torch.equal, found, wanted))


def replay(rank: int, size: int, schedules: list[Schedule]) -> list[Any]:
    """Of each schedule the rank's stages whose gradients differ, and how many values were left."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    answers = []
    for schedule in schedules:
        stages = build_stages(schedule.placement.num_stages)
        mine = {stage for stage, _ in schedule.placement.held[rank]}
        pipeline = Pipeline(schedule, {stage: [stages[stage]] for stage in mine})
        pipeline.step(Batch(*build_batch(schedule.num_micro_batches)))
        gradients = {s: [p.grad for p in stages[s].parameters()] for s in mine}
        wanted = plain_autograd(len(stages), schedule.num_micro_batches)
        differ = [s for s, found in gradients.items() if not same(found, wanted[s])]
        answers.append((differ, pipeline.held_values))
    return answers


def moving_family(name: str, num_ranks: int, num_micro_batches: int) -> Schedule:
    costs = uniform_costs(
        family_placement(name, num_ranks).num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=100,
        links=Links(host=Link(latency_us=10)),
    )
    return generate(name, num_ranks, num_micro_batches, costs=costs)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_families_that_move_activations_give_autograds_gradients(pool: Any, num_ranks: int) -> None:
    names = ["bpipe", "pipeoffload:1,full", "pipeoffload:2", "pipeoffload:2,full"]
    m = 2 * num_ranks
    schedules = [moving_family(name, num_ranks, m) for name in names]
    by_rank = pool.run(replay, num_ranks, schedules)
    for index, name in enumerate(names):
        assert [answers[index] for answers in by_rank] == [([], 0)] * num_ranks, name


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
    stage.forward(0, (torch.ones(BATCH, WIDTH),), fused=True, moved=True)
    table = StepTable.begun(Batch(), (), 1.0, 1, {(0, 0): (4 * BATCH * WIDTH,)})
    moves = Moves([offload], {0: stage}, Slots(), lambda: table)
    with pytest.raises(SynthError, match=r"stage 0 saved 2 tensors of 144 bytes, .* trial saved 1"):
        moves.offload(offload)()


class Sines(nn.Module):
    """Saves what it is given and the first sine of it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin().sin()
