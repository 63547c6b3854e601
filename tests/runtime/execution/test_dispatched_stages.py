"""Stages that ranks share in the host's memory: forwards and backwards on different ranks."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.optimizer import OptimizerSpec
from synth.runtime.execution.transport.host.shared_host import SharedHost
from synth.runtime.execution.weights.keeping import check_head_stays
from synth.schedule.model import Placement
from synth.schedule.ops import Value, ValueKind
from tests.runtime.rank_threads import RankThreads, group_here
from tests.runtime.replaying import FailingLinear, build_batch, build_stages

CPU = torch.device("cpu")
STEPS, RATE = 3, 0.05


class Trained:
    """The losses of each micro-batch, step by step, and parameters by stage."""

    def __init__(self, losses: dict[int, float], parameters: dict[int, list[Tensor]]) -> None:
        self.losses, self.parameters = losses, parameters


def trained(rank: int, size: int, name: str, num_micro_batches: int, spec: str) -> Trained:
    """Train the stages of a rank; the losses are those of the micro-batches that end on it."""
    from synth.runtime.batch import Batch
    from synth.runtime.optimize import StepSettings, build_steps
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, num_micro_batches)
    stages = build_stages(schedule.placement.num_stages)
    mine = {stage: [stages[stage]] for stage, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, group=group_here())
    homes = schedule.placement.of_backwards[0]
    assert pipeline.updated.keys() == {s for s, home in enumerate(homes) if home == rank}
    pipeline.stepper = build_steps(
        pipeline.updated,
        OptimizerSpec.parse(spec),
        StepSettings(RATE, weight_decay=0.01),
        device=CPU,
        group=pipeline.separate_group(),
    )
    found: dict[int, float] = {}
    for step in range(STEPS):
        losses: list[Any] = []
        pipeline.step(Batch(*build_batch(num_micro_batches)), losses=losses)
        for j, loss in enumerate(losses):
            if loss is not None:
                found[step * num_micro_batches + j] = float(loss)
        assert pipeline.held_values == 0
    shared = pipeline.shared_parameters
    parameters: dict[int, list[Tensor]] = {}
    for number in pipeline.updated:
        for parameter in stages[number].parameters():
            assert parameter.isnan().all() and parameter.grad is None
            whole: Any = shared[parameter].within(shared[parameter].part.detach())
            parameters.setdefault(number, []).append(whole.full_tensor())
    return Trained(found, parameters)


def by_torch(num_stages: int, num_ranks: int, num_micro_batches: int, spec: str) -> Trained:
    """Train in one process; gradients are added up in each round of micro-batches, then of all."""
    stages = build_stages(num_stages)
    parameters = [p for stage in stages for p in stage.parameters()]
    optimizer = (
        torch.optim.AdamW(parameters, RATE, weight_decay=0.01, fused=True)
        if spec == "adamw"
        else torch.optim.SGD(parameters, RATE, 0.9, weight_decay=0.01, fused=True)
    )
    losses = []
    for _ in range(STEPS):
        totals = [torch.zeros_like(p) for p in parameters]
        for j, (x, targets) in enumerate(zip(*build_batch(num_micro_batches), strict=True)):
            for stage in stages[:-1]:
                x = stage(x)
            loss = stages[-1](x, targets)
            losses.append(float(loss.detach()))
            (loss / num_micro_batches).backward()
            if (j + 1) % num_ranks == 0:
                for total, parameter in zip(totals, parameters, strict=True):
                    assert parameter.grad is not None
                    total += parameter.grad
                optimizer.zero_grad()
        for total, parameter in zip(totals, parameters, strict=True):
            parameter.grad = total
        optimizer.step()
        optimizer.zero_grad()
    found = {n: [p.detach() for p in stage.parameters()] for n, stage in enumerate(stages)}
    return Trained(dict(enumerate(losses)), found)


@pytest.mark.parametrize(
    ("size", "name", "m", "spec"),
    [
        (2, "roundpipe:2", 2, "adamw"),
        (2, "roundpipe:3", 6, "sgd:0.9"),
        (3, "roundpipe:2,forward=2", 6, "adamw"),
        (4, "roundpipe:1,ahead=0", 8, "sgd:0.9"),
    ],
)
def test_training_is_that_of_one_process_bit_for_bit(
    size: int, name: str, m: int, spec: str
) -> None:
    by_rank = RankThreads().run(trained, size, name, m, spec)
    num_stages = sum(len(each.parameters) for each in by_rank)
    wanted = by_torch(num_stages, size, m, spec)
    assert {j: loss for each in by_rank for j, loss in each.losses.items()} == wanted.losses
    for each in by_rank:
        for number, parameters in each.parameters.items():
            assert all(map(torch.equal, parameters, wanted.parameters[number]))


def failing(rank: int, size: int) -> str:
    """The error of the second step, in which a stage fails on rank 1."""
    from synth.runtime.pipeline import Pipeline

    schedule = generate("roundpipe:2", size, size)
    mine = {
        stage: FailingLinear(3 if (rank, stage) == (1, 3) else 99)
        for stage, _ in schedule.placement.held[rank]
    }
    pipeline = Pipeline(schedule, mine, group=group_here(), loss=nn.functional.mse_loss)
    batch = pipeline.split(torch.ones(size, 4), targets=torch.ones(size, 4))
    pipeline.step(batch)
    with pytest.raises(RunFailure) as caught:
        pipeline.step(batch)
    return str(caught.value)


def test_a_rank_that_fails_ends_the_waits_of_the_others_in_the_hosts_memory() -> None:
    other, said = RankThreads(timeout_s=60).run(failing, 2)
    assert "rank 1 failed in F3.1" in said and "the rank that fails" in said
    assert other.startswith("rank 0 failed in ") and "60 s" not in other


def evaluated(rank: int, size: int) -> list[float]:
    """Losses of a step between two evaluations, and of one after the weights became zero."""
    from synth.runtime.pipeline import Pipeline

    schedule = generate("roundpipe:2", size, 2 * size)
    stages = build_stages(schedule.placement.num_stages)
    mine = {stage: [stages[stage]] for stage, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, group=group_here())
    inputs, targets = map(torch.cat, build_batch(2 * size))
    batch = pipeline.split(inputs, targets=targets)
    losses = [pipeline.evaluate(batch), pipeline.step(batch), pipeline.evaluate(batch)]
    with torch.no_grad():
        for module in pipeline.updated.values():
            for parameter in module.parameters():
                parameter.zero_()
    losses.append(pipeline.evaluate(batch))
    return [0.0 if loss is None else float(loss) for loss in losses]


def test_evaluation_reads_the_weights_of_all_homes() -> None:
    before, step, after, zeroed = map(sum, zip(*RankThreads().run(evaluated, 2), strict=True))
    assert before == after == pytest.approx(step)
    targets = torch.cat(build_batch(4)[1])
    assert zeroed == pytest.approx(float(targets.square().mean())) != pytest.approx(before)


def refused(rank: int, size: int) -> str:
    """The error of a schedule whose backwards need what another rank's autograd saved."""
    from synth.runtime.pipeline import Pipeline

    made = generate("roundpipe:2", size, size)
    programs = tuple(tuple(op for op in ops if op.kind != OpKind.R) for ops in made.programs)
    mine = {stage: nn.Linear(4, 4) for stage, _ in made.placement.held[rank]}
    with pytest.raises((SynthError, RunFailure)) as caught:
        Pipeline(replace(made, programs=programs), mine, group=group_here())
    return str(caught.value)


def test_backwards_on_other_ranks_need_recomputation() -> None:
    said = RankThreads().run(refused, 2)
    assert any("list an R before each of these backwards" in each for each in said)


def test_a_head_whose_backward_is_elsewhere_is_refused() -> None:
    made = generate("roundpipe:1", 2, 2)
    ranks = made.placement.ranks[0]
    backwards = (*ranks[:-1], 1 - ranks[-1])
    placement = Placement(made.placement.ranks, (backwards,))
    with pytest.raises(SynthError, match="computes the loss"):
        check_head_stays(placement)


def shared_host() -> SharedHost:
    group = group_here()
    assert group is not None
    return SharedHost.among(group, [Value(ValueKind.ACT, 0, 0, 0)], 60.0)


def open_files(rank: int, size: int) -> tuple[int, int, list[int]]:
    """Files that blocks keep open, names that are left, and sizes of a value step by step."""
    host = shared_host()
    before = len(os.listdir("/proc/self/fd"))
    blocks = [host.block(f"of-{rank}-{n}", 100) for n in range(50)]
    blocks[0][7] = 1
    sizes = [
        [len(part) for part in host.parts(Value(ValueKind.ACT, 0, 0, 0), (3, bytes_))]
        for bytes_ in (4, 9, 2)
    ]
    host.forget_names()
    names = [
        path for path in Path(f"{host._prefix}x").parent.iterdir() if host._prefix in str(path)
    ]
    assert int(blocks[0].sum()) == 1 and len(host._blocks) == 1
    return len(os.listdir("/proc/self/fd")) - before, len(names), [sum(each) for each in sizes]


def test_blocks_keep_no_file_open_and_grow_with_what_they_hold() -> None:
    ((files, names, sizes),) = RankThreads().run(open_files, 1)
    assert (files, names, sizes) == (0, 0, [7, 12, 5])


def test_the_rank_that_rebuilds_draws_the_random_numbers_of_the_forward() -> None:
    from synth.runtime.execution.stage.replay_input import Replay, ReplayRecorder

    x = torch.ones(64)
    for draw in (nn.Dropout(0.5), nn.Identity()):
        recorder = ReplayRecorder([x])
        first = draw(x)
        packed = recorder.replay().packed()
        torch.rand(7)
        before = torch.get_rng_state()
        with Replay.unpacked(packed).again([x]):
            assert torch.equal(draw(x), first)
        assert torch.equal(torch.get_rng_state(), before)
