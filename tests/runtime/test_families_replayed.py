"""Published schedules of several stages or copies per rank, replayed: gradients are autograd's."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import family_placement, family_variants, generate
from synth.schedule.model import Placement, Schedule

WIDTH, BATCH = 6, 3


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x_BD: Tensor, targets_B1: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.out(x_BD), targets_B1)


def build_stages(count: int) -> list[nn.Module]:
    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count - 1)]
    return [*layers, Head()]


def build_batch(num_micro_batches: int) -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(4)
    inputs = torch.randn((num_micro_batches, BATCH, WIDTH), generator=draw)
    return list(inputs), list(torch.randn((num_micro_batches, BATCH, 1), generator=draw))


def plain_autograd(count: int, num_micro_batches: int) -> list[list[Tensor]]:
    """Each stage's gradients, of the mean loss."""
    stages = build_stages(count)
    for x, targets in zip(*build_batch(num_micro_batches), strict=True):
        for stage in stages[:-1]:
            x = stage(x)
        (stages[-1](x, targets) / num_micro_batches).backward()
    return [[p.grad for p in stage.parameters()] for stage in stages]


def replay(rank: int, size: int, schedules: list[Schedule]) -> list[Any]:
    """Of each schedule the rank's gradients by stage, and how many values were left behind."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    answers = []
    for schedule in schedules:
        stages = build_stages(schedule.placement.num_stages)
        mine = {stage for stage, _ in schedule.placement.held[rank]}
        pipeline = Pipeline(schedule, {stage: [stages[stage]] for stage in mine})
        pipeline.step(Batch(*build_batch(schedule.num_micro_batches)))
        gradients = {s: [p.grad for p in stages[s].parameters()] for s in mine}
        answers.append((gradients, pipeline.held_values))
    return answers


def several_per_rank(num_ranks: int) -> list[str]:
    """Families whose ranks hold several stages or copies; those of one are in `test_executor.py`.

    PipeOffload needs a host link, which these stages have no profile to name; see `test_moves.py`.
    """
    linear = Placement.linear(num_ranks)
    placed = [n for n in family_variants() if family_placement(n, num_ranks) != linear]
    return [name for name in placed if not name.startswith("pipeoffload")]


OTHER_WAYS = ["bitpipe:1,early,late-sync", "interleaved:3,group=5", "bitpipe:2"]


@pytest.mark.parametrize(("num_ranks", "more"), [(2, OTHER_WAYS), (4, [])], ids=["2", "4"])
def test_every_family_is_replayed_to_autograds_gradients(
    pool: Any, num_ranks: int, more: list[str]
) -> None:
    m = 2 * num_ranks
    names = [*several_per_rank(num_ranks), *more]
    by_rank = pool.run(replay, num_ranks, [generate(name, num_ranks, m) for name in names])
    for index, name in enumerate(names):
        wanted = plain_autograd(family_placement(name, num_ranks).num_stages, m)
        seen = set()
        for gradients, left in (answers[index] for answers in by_rank):
            assert left == 0, name
            for stage, found in gradients.items():
                seen.add(stage)
                for mine, true in zip(found, wanted[stage], strict=True):
                    torch.testing.assert_close(mine, true, msg=f"{name}, stage {stage}")
        assert seen == set(range(len(wanted)))
