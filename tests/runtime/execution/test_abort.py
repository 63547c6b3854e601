"""A rank fails but its process continues: all others end, each with its own rank and op."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from synth.families import generate

MICRO_BATCHES = 4
FAILING_CALL = 6  # the second micro-batch of the second step
SMALL, LARGE = 8, 20_000  # bytes of messages: through a socket; through gloo


class Scale(nn.Module):
    """May fail, at one of its calls."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.fails = fails
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += torch.is_grad_enabled()
        if self.fails and self.calls == FAILING_CALL:
            raise ValueError("the rank that fails")
        return x * self.scale


def step_until_it_fails(rank: int, size: int, name: str, failing: int, width: int) -> str:
    """Return the error; a rank that fails lives on until all others have failed."""
    from synth.errors import RunFailure
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, MICRO_BATCHES)
    stages = {stage: Scale(rank == failing) for stage, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, stages, loss=nn.functional.mse_loss, changing_shapes=True)
    x = torch.ones(MICRO_BATCHES * width, 1)
    world: Any = dist.group.WORLD
    store = world.get_group_store()
    try:
        for _ in range(3):
            pipeline.step(pipeline.split(x, targets=x))
    except RunFailure as error:
        store.set(f"failed-{rank}", "")
        store.wait([f"failed-{r}" for r in range(size)])
        return str(error)
    return "nothing failed"


@pytest.mark.parametrize("width", [SMALL, LARGE])
@pytest.mark.parametrize(
    ("name", "size", "failing"),
    [("1f1b", 2, 0), ("1f1b", 2, 1), ("zb-h1", 4, 3), ("zb-h1", 4, 0), ("chimera", 4, 1)],
)
def test_ranks_that_wait_for_one_that_failed_and_lives_fail_too(
    pool: Any, name: str, size: int, failing: int, width: int
) -> None:
    said = pool.run(step_until_it_fails, size, name, failing, width)
    assert f"rank {failing} failed in F" in said[failing]
    assert said[failing].endswith("the rank that fails")
    for rank in set(range(size)) - {failing}:
        assert said[rank].startswith(f"rank {rank} failed ")
        assert "imed out" not in said[rank]


def fail_before_the_norm(rank: int, size: int, optimizer: str) -> str:
    """Rank 1 has done all its ops, and fails once rank 0 asks for its part of the norm."""
    from synth.errors import RunFailure
    from synth.profile.optimizer import OptimizerSpec
    from synth.runtime.optimize import StepSettings, build_steps
    from synth.runtime.pipeline import Pipeline

    stage = Scale(False)
    pipeline = Pipeline(generate("1f1b", 2, 2), stage, loss=nn.functional.mse_loss)
    steps = build_steps(
        {rank: stage},
        OptimizerSpec.parse(optimizer),
        StepSettings(0.1),
        device=torch.device("cpu"),
        clip_norm=1.0,
        group=pipeline.separate_group(),
    )
    pipeline.stepper = steps
    x = torch.ones(2, 1)
    world: Any = dist.group.WORLD
    store = world.get_group_store()
    patched: Any = steps
    ask = steps.synchronize

    def synchronize() -> None:
        if rank == 1:
            store.wait(["asked"])
            raise ValueError("the rank that fails")
        store.set("asked", "")
        ask()

    patched.synchronize = synchronize
    with pytest.raises(RunFailure) as caught:
        for _ in range(2):
            pipeline.step(pipeline.split(x, targets=x))
    store.set(f"failed-{rank}", "")
    store.wait(["failed-0", "failed-1"])
    return str(caught.value)


@pytest.mark.parametrize(
    ("optimizer", "where"),
    [
        ("sgd", "in STEP0"),
        ("sgd+post-validation", ""),  # at a send, or where it validates the step before
    ],
)
def test_a_rank_that_waits_for_the_norm_of_one_that_failed_and_lives_fails_too(
    pool: Any, optimizer: str, where: str
) -> None:
    waited, failed = pool.run(fail_before_the_norm, 2, optimizer)
    assert failed == "rank 1 failed in STEP1: the rank that fails"
    told = f"rank 0 cannot continue: {failed}"  # it was in no op when rank 1 announced its failure
    assert waited.startswith((f"rank 0 failed {where}", told))
    assert "imed out" not in waited


def cut_in_a_collective(rank: int, size: int) -> str:
    from synth.runtime.execution.transport.groups import Group

    own = Group.world().private
    pair: Any = own.among((0, 1)) if rank < 2 else None
    if rank < 2:
        own.rendezvous.meet("connected", (0, 1))
    if rank == 1:
        working = pair.allreduce([torch.ones(3)])  # which the others never begin
        own.abort()
        waits = working.wait
    elif rank == 0:
        waits = pair.recv([torch.ones(3)], 1, 7).wait
    with pytest.raises(RuntimeError) as caught:
        waits()
    return str(caught.value)


def test_a_rank_that_cuts_can_end_though_it_is_in_a_collective(pool: Any) -> None:
    """Else its process would not: a thread of gloo's waits, and the exit waits for the thread."""
    for said in pool.run(cut_in_a_collective, 2):
        assert "Timed out" not in said


def tied_in_a_part_of_the_world(rank: int, size: int) -> float:
    """Rank 0 is in two groups for tied parameters, the others in one each."""
    from synth.runtime.pipeline import Pipeline

    part = dist.new_group([0, 1, 2])
    if rank == 3:
        return 0.0
    stage = Scale(False)
    shift = nn.Parameter(torch.tensor(float(rank)))
    names = {0: ("a", "b"), 1: ("a",), 2: ("b",)}[rank]
    tied = dict(zip(names, (shift, stage.scale), strict=False))
    pipeline = Pipeline(
        generate("1f1b", 3, 2), stage, group=part, loss=nn.functional.mse_loss, tied=tied
    )
    x = torch.ones(2, 1)
    pipeline.step(pipeline.split(x, targets=x))
    return shift.item()


def test_ranks_may_be_in_unequally_many_groups(pool: Any) -> None:
    # Rank 1 has the shift of rank 0, rank 2 has its scale.
    assert pool.run(tied_in_a_part_of_the_world, 4)[:3] == [0.0, 0.0, 1.0]
