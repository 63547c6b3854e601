"""The executor is transparent: losses and gradients are those of one process and plain autograd."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.verify import verify
from tests.runtime.gradients import gradient_of
from tests.runtime.random_orders import random_order
from tests.runtime.rank_threads import draw_weights, group_here

MICRO_BATCHES, BATCH, LENGTH, WIDTH, VOCABULARY = 6, 2, 8, 16, 32
FAMILIES = (
    *("gpipe", "1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p"),
    *("gpipe:recompute", "1f1b:recompute"),
)
TWO_STAGES = (
    "interleaved:2",
    "breadth-first:2",
    "hanayo:1",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe-v",
)


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.table(tokens_BT)


class Block(nn.Module):
    """Norm, linear, convolution, a residual, and a parameter for which there is no split rule."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.mix = nn.Conv1d(2 * WIDTH, 2 * WIDTH, 3, padding=1)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.recompute = recompute

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.recompute:
            return checkpoint(self._body, x_BTD, use_reentrant=False)
        return self._body(x_BTD)

    def _body(self, x_BTD: Tensor) -> Tensor:
        h_BTE = torch.relu(self.up(self.norm(x_BTD)))
        h_BTE = torch.tanh(self.mix(h_BTE.transpose(1, 2)).transpose(1, 2))
        return x_BTD + self.gain * self.down(h_BTE)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        logits = self.out(self.norm(x_BTD))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())


def build_layers(recompute: bool) -> list[nn.Module]:
    layers = [Embedding(), *(Block(recompute) for _ in range(4)), Head()]
    draw_weights(layers, seed=7)
    return layers


def build_batch() -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(11)
    shape = (2, MICRO_BATCHES, BATCH, LENGTH)
    tokens = torch.randint(VOCABULARY, shape, generator=generator)
    return list(tokens[0]), list(tokens[1])


def plain_autograd(recompute: bool) -> tuple[Tensor, list[Tensor]]:
    """The truth: every micro-batch through all layers, one backward each, in order."""
    torch.set_num_threads(1)  # as the ranks have; threads change the order of sums
    layers = build_layers(recompute)
    total = torch.zeros(())
    for tokens, targets in zip(*build_batch(), strict=True):
        x: Tensor = tokens
        for layer in layers[:-1]:
            x = layer(x)
        loss = layers[-1](x, targets) / MICRO_BATCHES
        loss.backward()
        total += loss.detach()
    return total, [gradient_of(p) for layer in layers for p in layer.parameters()]


def partition(num_stages: int) -> list[range]:
    """Uneven on purpose: six layers over 2 or 4 stages."""
    ends = {1: [6], 2: [2, 6], 3: [1, 4, 6], 4: [1, 2, 4, 6]}[num_stages]
    return [range(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def replay(rank: int, size: int, schedules: list[Schedule], recompute: bool) -> list[Any]:
    """Run schedules one after another on a rank; (loss, gradients by stage, leftovers) of each."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    inputs, targets = build_batch()
    answers = []
    for schedule in schedules:
        layers = build_layers(recompute)
        part = partition(schedule.placement.num_stages)
        mine = {stage for stage, _ in schedule.placement.held[rank]}
        modules = {s: [layers[i] for i in part[s]] for s in mine}
        pipeline = Pipeline(schedule, modules, group=group_here())
        loss = pipeline.step(Batch(inputs, targets))
        gradients = {s: [p.grad for m in modules[s] for p in m.parameters()] for s in mine}
        answers.append((loss, gradients, pipeline.held_values))
    return answers


def costs_of(num_stages: int) -> Any:
    return uniform_costs(
        num_stages, forward_us=3, backward_input_us=3, backward_weight_us=2, output_bytes=64
    )


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_family_gives_autograds_bits(pool: Any, num_ranks: int, recompute: bool) -> None:
    schedules = [generate(name, num_ranks, MICRO_BATCHES) for name in FAMILIES]
    _assert_same_bits(pool, num_ranks, schedules, recompute)


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "checkpointed"])
def test_two_stages_per_rank_give_autograds_bits(pool: Any, recompute: bool) -> None:
    schedules = [generate(name, 2, MICRO_BATCHES) for name in TWO_STAGES]
    _assert_same_bits(pool, 2, schedules, recompute)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_random_valid_schedules_give_autograds_gradients(pool: Any, num_ranks: int) -> None:
    schedules: list[Schedule] = []
    seed = 0
    while len(schedules) < 25:
        schedule = random_order(num_ranks, MICRO_BATCHES, seed)
        if seed % 2:
            schedule = with_rebuilds(schedule, seed)
        seed += 1
        try:
            verify(schedule, costs_of(num_ranks))
        except Exception as error:
            assert "deadlock" in str(error)  # possible: a random order may block its channels
            continue
        schedules.append(schedule)
    _assert_same_bits(pool, num_ranks, schedules, recompute=False)


def with_rebuilds(schedule: Schedule, seed: int) -> Schedule:
    """Some forwards keep nothing, and R is anywhere between them and their backwards."""
    rng, programs = random.Random(seed), []
    for listed in schedule.programs:
        program = list(listed)
        for forward in [op for op in program if op.kind == OpKind.F and rng.random() < 0.5]:
            backward = next(
                i
                for i, op in enumerate(program)
                if op[1:] == forward[1:] and op.kind in (OpKind.B, OpKind.BW)
            )
            place = rng.randint(program.index(forward) + 1, backward)
            program.insert(place, forward._replace(kind=OpKind.R))
        programs.append(tuple(program))
    return replace(schedule, programs=tuple(programs))


def accumulates_in_order(schedule: Schedule) -> bool:
    """True if every stage adds up weight gradients in the order of the micro-batches."""
    orders: dict[int, list[int]] = {}
    for program in schedule.programs:
        for op in program:
            if op.kind in (OpKind.W, OpKind.BW):
                orders.setdefault(op.stage, []).append(op.microbatch)
    return all(order == sorted(order) for order in orders.values())


def _assert_same_bits(
    pool: Any, num_ranks: int, schedules: list[Schedule], recompute: bool
) -> None:
    loss, gradients = plain_autograd(recompute)
    by_rank = pool.run(replay, num_ranks, schedules, recompute)
    for index, schedule in enumerate(schedules):
        by_stage: dict[int, list[Tensor]] = {}
        for rank in by_rank:
            by_stage.update(rank[index][1])
        found = [gradient for stage in sorted(by_stage) for gradient in by_stage[stage]]
        last = schedule.placement.rank_of(schedule.placement.num_stages - 1)
        assert torch.allclose(by_rank[last][index][0], loss, rtol=1e-6), schedule.name
        assert len(found) == len(gradients)
        for mine, true in zip(found, gradients, strict=True):
            same = torch.equal if accumulates_in_order(schedule) else torch.allclose
            assert same(mine, true), schedule.name
        assert [rank[index][2] for rank in by_rank] == [0] * num_ranks  # nothing left behind
