"""Hundreds of random schedules, replayed: none hangs, and all give autograd's gradients."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.schedule.model import Schedule
from synth.schedule.verify import ScheduleError, verify
from tests.runtime.gradients import gradient_of
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here
from tests.synth.plain import random_costs, random_schedule

BATCH = 3


def build_stages(num_stages: int, seed: int) -> list[nn.Sequential]:
    """Stages of random widths, so that a misplaced tensor does not fit."""
    draw = random.Random(seed)
    widths = [draw.randint(2, 40) for _ in range(num_stages + 1)]
    stages = [
        nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.LayerNorm(b)) for a, b in pairwise(widths)
    ]
    draw_weights(stages, seed)
    return stages


def build_batch(stages: list[nn.Sequential], count: int) -> tuple[list[Tensor], list[Tensor]]:
    first, last = stages[0][0], stages[-1][0]
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
    draw = torch.Generator().manual_seed(9)
    xs = torch.randn(count, BATCH, first.in_features, generator=draw)
    return list(xs), list(torch.randn(count, BATCH, last.out_features, generator=draw))


def plain_autograd(schedule: Schedule, seed: int) -> list[list[Tensor]]:
    stages = build_stages(schedule.placement.num_stages, seed)
    count = schedule.num_micro_batches
    for x, y in zip(*build_batch(stages, count), strict=True):
        (nn.functional.mse_loss(nn.Sequential(*stages)(x), y) / count).backward()
    return [[gradient_of(p) for p in stage.parameters()] for stage in stages]


def replay(rank: int, size: int, schedules: list[tuple[int, Schedule]]) -> list[Any]:
    """Return this rank's gradients by stage, and the values still held, for each schedule."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    answers = []
    for seed, schedule in schedules:
        stages = build_stages(schedule.placement.num_stages, seed)
        mine = {s: stages[s] for s, _ in schedule.placement.held[rank]}
        for parameter in (p for stage in mine.values() for p in stage.parameters()):
            parameter.grad = torch.zeros_like(parameter)  # of a copy that no micro-batch passes
        pipeline = Pipeline(schedule, mine, loss=nn.functional.mse_loss, group=group_here())
        pipeline.step(Batch(*build_batch(stages, schedule.num_micro_batches)))
        gradients = {s: [p.grad for p in stage.parameters()] for s, stage in mine.items()}
        answers.append((gradients, pipeline.held_values))
    return answers


def replay_on_gloo(rank: int, size: int, schedules: list[tuple[int, Schedule]]) -> list[Any]:
    """Messages go through gloo in one third of them, through sockets in another, else by size."""
    from synth.runtime.execution.transport.gloo import eager_sockets

    answers, usual = [], eager_sockets.MOST_BYTES
    for seed, schedule in schedules:
        eager_sockets.MOST_BYTES = most_eager_bytes(seed)
        answers += replay(rank, size, [(seed, schedule)])
    eager_sockets.MOST_BYTES = usual
    return answers


def replay_in_threads(num_ranks: int, schedules: list[tuple[int, Schedule]]) -> list[list[Any]]:
    """The ranks' answers by schedule; a third of them sends eagerly, another does not."""
    answers = []
    for seed, schedule in schedules:
        ranks = RankThreads(max(0, most_eager_bytes(seed)))
        by_rank = ranks.run(replay, num_ranks, [(seed, schedule)])
        answers.append([answer for (answer,) in by_rank])
    return answers


def most_eager_bytes(seed: int) -> int:
    return (-1, 1 << 20, BATCH * 20 * 4)[seed % 3]


def draw_schedules(num_ranks: int, count: int) -> tuple[list[tuple[int, Schedule]], int]:
    """Random placements, copies, orders, rebuilds, moves and buffering; and how many the verifier
    refused."""
    found: list[tuple[int, Schedule]] = []
    seed = refused = 0
    while len(found) < count:
        seed += 1
        draw = random.Random(seed)
        schedule = random_schedule(draw)
        if schedule.num_ranks != num_ranks:
            continue
        try:
            verify(schedule, random_costs(draw, schedule.placement.num_stages, num_ranks))
        except ScheduleError as error:
            assert "deadlock" in str(error)
            refused += 1
            continue
        found.append((seed, schedule))
    return found, refused


@pytest.mark.parametrize(("num_ranks", "count"), [(1, 30), (2, 130), (3, 40), (4, 40)])
def test_random_schedules_give_autograds_gradients_and_none_hangs(
    num_ranks: int, count: int
) -> None:
    schedules, refused = draw_schedules(num_ranks, count)
    assert refused or num_ranks == 1  # in-order channels would block: not to be run at all
    assert_autograds_gradients(schedules, replay_in_threads(num_ranks, schedules))


@pytest.mark.parametrize(("num_ranks", "count"), [(2, 12), (4, 9)])
def test_so_they_do_on_gloo(pool: Any, num_ranks: int, count: int) -> None:
    schedules, _ = draw_schedules(num_ranks, count)
    by_rank = pool.run(replay_on_gloo, num_ranks, schedules)
    assert_autograds_gradients(schedules, list(zip(*by_rank, strict=True)))


def assert_autograds_gradients(
    schedules: list[tuple[int, Schedule]], answers: Sequence[Sequence[Any]]
) -> None:
    for (seed, schedule), ranks in zip(schedules, answers, strict=True):
        wanted = plain_autograd(schedule, seed)
        for gradients, held in ranks:
            assert held == 0
            for stage, mine in gradients.items():
                for found, true in zip(mine, wanted[stage], strict=True):
                    torch.testing.assert_close(found, true, msg=f"seed {seed}, stage {stage}")
