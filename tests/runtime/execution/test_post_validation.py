"""Ranks that step without waiting end with the bits of ranks that wait, also after redoing."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.profile.optimizer import OptimizerKind, OptimizerSpec
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op, ValueKind
from synth.schedule.validation_point import find_validation_points
from synth.schedule.verify import ScheduleError, verify
from tests.runtime.random_orders import random_order
from tests.synth.plain import random_schedule

MICRO_BATCHES, BATCH, WIDTH, STEPS = 4, 3, 12, 7
NEVER, OFTEN, ALWAYS = 1e9, 1.0, 1e-6
SPECS = {
    "adamw": OptimizerSpec(),
    "sgd": OptimizerSpec(kind=OptimizerKind.SGD),
    "momentum": OptimizerSpec(kind=OptimizerKind.SGD, momentum=0.9),
}
LEARNING_RATES = {OptimizerKind.ADAMW: 0.05, OptimizerKind.SGD: 1e-4}


class Block(nn.Module):
    """Random numbers and running statistics: state to restore before F runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.BatchNorm1d(2 * WIDTH)
        self.drop = nn.Dropout(0.3)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x_BD: Tensor) -> Tensor:
        return x_BD + self.down(self.drop(torch.relu(self.norm(self.up(x_BD)))))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x_BD: Tensor, targets_B: Tensor) -> Tensor:
        return (self.out(x_BD).squeeze(-1) - targets_B).square().mean()


class Disturbed:
    """A stepper in front of which gradients are disturbed: scaled in all steps, infinite in two.

    Infinite on one rank alone, but for copies of stages, whose gradients are the same everywhere.
    """

    def __init__(
        self, steps: Any, parameters: list[nn.Parameter], schedule: Schedule, rank: int, size: int
    ) -> None:
        self.steps, self.late = steps, steps.late
        self._parameters = parameters
        copies = len(schedule.placement.ranks) > 1
        self._infinite = [step for step in (2, 3) if copies or step % min(2, size) == rank]
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.steps, name)

    def synchronize(self) -> None:
        step, self._count = self._count, self._count + 1
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(1e-3 if step % 3 else 1e3)
        if step in self._infinite:
            gradients[-1].view(-1)[-1] = float("inf")
        self.steps.synchronize()


def batches(dtype: torch.dtype) -> Iterator[tuple[int, tuple[list[Tensor], list[Tensor]]]]:
    generator = torch.Generator().manual_seed(5)
    for step in range(STEPS + 1):
        x = torch.randn((MICRO_BATCHES, BATCH, WIDTH), generator=generator).to(dtype)
        y = torch.randn((MICRO_BATCHES, BATCH), generator=generator).to(dtype)
        yield step, (list(x), list(y))


def train(
    rank: int,
    size: int,
    schedules: list[Schedule],
    specs: list[OptimizerSpec],
    clip_norm: float,
    dtype: torch.dtype,
) -> list[Any]:
    """Train under each schedule with each optimizer; (losses, state by stage, redone, skipped)."""

    from synth.runtime.batch import Batch
    from synth.runtime.optimize import StepSettings, build_steps
    from synth.runtime.pipeline import Pipeline

    answers = []
    for schedule in schedules:
        for spec in specs:
            last = schedule.placement.num_stages - 1
            mine = sorted({stage for stage, _ in schedule.placement.held[rank]})
            stages = {stage: build_stage(stage, last, dtype) for stage in mine}
            torch.manual_seed(100 + rank)
            pipeline = Pipeline(schedule, stages)
            steps = build_steps(
                stages,
                spec,
                StepSettings(LEARNING_RATES[spec.kind], weight_decay=0.1),
                device=torch.device("cpu"),
                clip_norm=clip_norm,
                group=pipeline.separate_group(),
                owned=pipeline.owns,
            )
            own = [p for stage in stages.values() for p in stage.parameters()]
            pipeline.stepper = Disturbed(steps, own, schedule, rank, size)
            losses = [run(pipeline, step, Batch(x, y)) for step, (x, y) in batches(dtype)]
            steps.finish()
            assert pipeline.held_values == 0
            state = {number: stage.state_dict() for number, stage in stages.items()}
            counts = (getattr(steps, "num_redone", 0), getattr(steps, "num_skipped", 0))
            answers.append((losses, state, counts))
    return answers


def run(pipeline: Any, step: int, batch: Any) -> Tensor | None:
    """A step; or once an evaluation, which needs parameters that are final."""
    return pipeline.evaluate(batch) if step == STEPS // 2 else pipeline.step(batch)


def build_stage(stage: int, last: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(stage)
    return (Head() if stage == last else Block()).to(dtype)


def assert_same_bits(
    pool: Any,
    num_ranks: int,
    schedules: list[Schedule],
    spec: OptimizerSpec,
    clip_norm: float,
    counts: tuple[int, int],
    dtype: torch.dtype = torch.float32,
) -> None:
    specs = [spec, spec.replace(post_validation=True)]
    for answers in pool.run(train, num_ranks, schedules, specs, clip_norm, dtype):
        for index, schedule in enumerate(schedules):
            truth, late = answers[2 * index : 2 * index + 2]
            assert late[2] == counts, schedule.name
            for loss, true in zip(late[0], truth[0], strict=True):
                assert (loss is None) == (true is None)
                assert loss is None or torch.equal(loss, true), schedule.name
            for stage, tensors in truth[1].items():
                for name, tensor in tensors.items():
                    assert torch.equal(late[1][stage][name], tensor), (schedule.name, stage, name)


def families(*names: str, num_ranks: int) -> list[Schedule]:
    return [generate(name, num_ranks, MICRO_BATCHES) for name in names]


@pytest.mark.parametrize(
    ("clip_norm", "counts"),
    [(NEVER, (0, 2)), (OFTEN, (2, 2)), (ALWAYS, (STEPS - 2, 2))],
    ids=["never", "often", "always"],
)
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", SPECS)
def test_bits_are_those_of_the_synchronous_step(
    pool: Any, name: str, num_ranks: int, clip_norm: float, counts: tuple[int, int]
) -> None:
    schedules = families("1f1b", "zb-h1", "zb-h2", num_ranks=num_ranks)
    assert_same_bits(pool, num_ranks, schedules, SPECS[name], clip_norm, counts)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("wide", [False, True])
def test_bfloat16_with_master_weights_too(pool: Any, name: str, wide: bool) -> None:
    spec = SPECS[name].replace(master_weights=True, float32_gradients=wide)
    schedules = families("1f1b", "zb-h2", num_ranks=2)
    assert_same_bits(pool, 2, schedules, spec, OFTEN, (2, 2), torch.bfloat16)


def test_four_ranks_too(pool: Any) -> None:
    schedules = families("1f1b", "zb-h2", num_ranks=4)
    assert_same_bits(pool, 4, schedules, SPECS["adamw"], ALWAYS, (STEPS - 2, 2))


def test_several_stages_per_rank_and_copies_of_stages_too(pool: Any) -> None:
    schedules = families("zb-v", "interleaved:2", "chimera", num_ranks=2)
    assert_same_bits(pool, 2, schedules, SPECS["adamw"], ALWAYS, (STEPS - 2, 2))


def test_what_runs_at_once_runs_again_whole(pool: Any) -> None:
    costs = uniform_costs(4, forward_us=3, backward_input_us=3, backward_weight_us=2)
    costs = costs.replace(stages=tuple(stage.replace(hidden_us=2) for stage in costs.stages))
    pairs = generate("interleaved:2,overlap", 2, MICRO_BATCHES, costs=costs)
    lowered, _ = verify(pairs, costs)
    # The first pair of rank 0 is the first of its ops that needs a gradient.
    started = list_started(lowered, 0)
    assert started and pairs.overlapped.isdisjoint(started)
    assert_same_bits(pool, 2, [pairs], SPECS["adamw"], ALWAYS, (STEPS - 2, 2))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_random_valid_schedules_drain_what_they_had_under_way(pool: Any, num_ranks: int) -> None:
    costs = uniform_costs(
        num_ranks, forward_us=3, backward_input_us=3, backward_weight_us=2, output_bytes=64
    )
    schedules: list[Schedule] = []
    seed = 0
    while len(schedules) < 12:
        schedule = random_order(num_ranks, MICRO_BATCHES, seed)
        seed += 1
        try:
            verify(schedule, costs)
        except ScheduleError:
            continue  # its ranks wait for each other
        schedules.append(schedule)
    assert_same_bits(pool, num_ranks, schedules, SPECS["sgd"], ALWAYS, (STEPS - 2, 2))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_moves_under_way_are_called_back(pool: Any, num_ranks: int) -> None:
    # From one rank to another such a move may be started at one end alone, or at both.
    where, half_moved, seed = Placement.linear(num_ranks), 0, 0
    schedules: list[Schedule] = []
    links = Links(host=Link(latency_us=1))
    costs = uniform_costs(
        num_ranks, forward_us=3, backward_input_us=3, backward_weight_us=2, links=links
    )
    while len(schedules) < 8 or not half_moved:
        seed += 1
        schedule = random_schedule(random.Random(seed), where=where)
        if schedule.num_micro_batches != MICRO_BATCHES:
            continue
        try:
            lowered, _ = verify(schedule, costs)
        except ScheduleError:
            continue
        started = [list_started(lowered, rank) for rank in range(num_ranks)]
        if any(op.kind == OpKind.OFFLOAD for ops in started for op in ops):
            schedules.append(schedule)
            points = find_validation_points(lowered)
            half_open = [points.half_open(lowered, rank) for rank in range(num_ranks)]
            half_moved += any(
                t.value.kind == ValueKind.MOVED_OUT
                for s in half_open
                for t in (*s.to_send, *s.to_receive)
            )
    assert_same_bits(pool, num_ranks, schedules, SPECS["sgd"], ALWAYS, (STEPS - 2, 2))


def list_started(lowered: Lowered, rank: int) -> list[Op]:
    """The ops before a rank's validation point."""
    before = lowered.programs[rank][: find_validation_points(lowered).ends[rank]]
    return [instruction.op for instruction in before if instruction.op is not None]
