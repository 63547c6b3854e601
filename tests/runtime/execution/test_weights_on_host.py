"""Stages whose state is in the host's memory: updates, memory, evaluation, failures."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.costs.costs import uniform_costs
from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.profile.optimizer import OptimizerSpec
from synth.schedule.ops import Op
from synth.schedule.verify import verify
from tests.runtime.gradients import gradient_of
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here
from tests.runtime.replaying import FailingLinear, build_batch, build_stages, plain_autograd

CPU = torch.device("cpu")
STEPS, RATE = 4, 0.05
MICRO_BATCHES = 8


class Trained:
    """The losses of some steps, and the parameters after them by stage and place."""

    def __init__(self, losses: list[float], parameters: dict[int, list[Tensor]]) -> None:
        self.losses, self.parameters = losses, parameters


def trained(rank: int, size: int, name: str, spec: str, clip_norm: float | None) -> Trained:
    """Train a rank's stages by the project's own optimizer steps."""
    from synth.runtime.batch import Batch
    from synth.runtime.optimize import StepSettings, build_steps
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, MICRO_BATCHES)
    stages = build_stages(schedule.placement.num_stages)
    mine = {stage: [stages[stage]] for stage, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, group=group_here())
    assert pipeline.updates_on_host and pipeline.updated.keys() == mine.keys()
    pipeline.stepper = build_steps(
        pipeline.updated,
        OptimizerSpec.parse(spec),
        StepSettings(RATE, weight_decay=0.01),
        device=CPU,
        clip_norm=clip_norm,
        group=pipeline.separate_group(),
    )
    losses = []
    for _ in range(STEPS):
        loss = pipeline.step(Batch(*build_batch(MICRO_BATCHES)))
        losses += [] if loss is None else [float(loss)]
        assert pipeline.held_values == 0
    shared = pipeline.shared_parameters
    found: dict[int, list[Tensor]] = {}
    for number, [stage] in mine.items():
        for parameter in stage.parameters():
            assert parameter.untyped_storage().nbytes() == parameter.element_size()
            assert parameter.isnan().all() and parameter.grad is None
            whole: Any = shared[parameter].within(shared[parameter].part.detach())
            found.setdefault(number, []).append(whole.full_tensor())
    return Trained(losses, found)


def by_torch(num_stages: int, spec: str, clip_norm: float | None) -> Trained:
    """Train all stages in one process by torch's optimizers, micro-batch after micro-batch."""
    stages = build_stages(num_stages)
    parameters = [p for stage in stages for p in stage.parameters()]
    optimizer = (
        torch.optim.AdamW(parameters, RATE, weight_decay=0.01, fused=True)
        if spec == "adamw"
        else torch.optim.SGD(parameters, RATE, 0.9, weight_decay=0.01, fused=True)
    )
    losses = []
    for _ in range(STEPS):
        losses.append(torch.zeros(()))
        for x, targets in zip(*build_batch(MICRO_BATCHES), strict=True):
            for stage in stages[:-1]:
                x = stage(x)
            loss = stages[-1](x, targets) / MICRO_BATCHES
            loss.backward()
            losses[-1] += loss.detach()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    found = {n: [p.detach() for p in stage.parameters()] for n, stage in enumerate(stages)}
    return Trained([float(loss) for loss in losses], found)


@pytest.mark.parametrize("spec", ["sgd:0.9", "adamw"])
@pytest.mark.parametrize(
    ("num_ranks", "name"), [(1, "mobius:3"), (2, "mobius:2"), (4, "mobius:2,ahead=0")]
)
def test_training_is_that_of_one_process_bit_for_bit(num_ranks: int, name: str, spec: str) -> None:
    by_rank = RankThreads().run(trained, num_ranks, name, spec, None)
    wanted = by_torch(sum(len(each.parameters) for each in by_rank), spec, None)
    assert [each.losses for each in by_rank if each.losses] == [wanted.losses]
    for each in by_rank:
        for number, parameters in each.parameters.items():
            assert all(map(torch.equal, parameters, wanted.parameters[number]))


def test_gradients_are_clipped_by_the_norm_of_all_stages() -> None:
    by_rank = RankThreads().run(trained, 2, "mobius:2", "sgd:0.9", 0.1)
    wanted, free = by_torch(4, "sgd:0.9", 0.1), by_torch(4, "sgd:0.9", None)
    assert by_rank[1].losses == pytest.approx(wanted.losses, rel=1e-6)
    assert free.losses != pytest.approx(wanted.losses, rel=1e-3)
    # The squares are added up stage by stage, so the norm is the same to rounding only.
    for each in by_rank:
        for number, parameters in each.parameters.items():
            torch.testing.assert_close(parameters, wanted.parameters[number], rtol=1e-5, atol=1e-7)


def host_gradients(pipeline: Any, stage: nn.Module) -> list[Tensor]:
    """The gradients that the host has of a stage's parameters, in their shapes."""
    shared = [pipeline.shared_parameters[p] for p in stage.parameters()]
    return [each.within(gradient_of(each.part)).full_tensor() for each in shared]


def reduced_twice(rank: int, size: int) -> list[float]:
    """The largest difference of each stage's gradient, which leaves in two parts, from autograd's.

    Two mini-batches are added up.
    """
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate("mobius:2", size, 4)
    programs = []
    for ops in schedule.programs:
        program: list[Op] = []
        for op in ops:
            late = op.kind == OpKind.REDUCE_GRAD
            program.append(op._replace(microbatch=1) if late else op)
            if op.kind == OpKind.BW and op.microbatch == 1:
                program.append(Op(OpKind.REDUCE_GRAD, op.stage, 0, op.replica))
        programs.append(tuple(program))
    stages = build_stages(4)
    mine = {n: [stages[n]] for n, _ in schedule.placement.held[rank]}
    twice = replace(schedule, programs=tuple(programs))
    pipeline = Pipeline(twice, mine, group=group_here())
    batch = Batch(*build_batch(4))
    pipeline.step(batch, update=False)
    pipeline.step(batch)
    wanted = plain_autograd(4, 4)
    return [
        float((found - 2 * alone).abs().max())
        for n, [stage] in mine.items()
        for found, alone in zip(host_gradients(pipeline, stage), wanted[n], strict=True)
    ]


def test_sums_of_several_reductions_and_mini_batches_add_up_on_the_host() -> None:
    for differences in RankThreads().run(reduced_twice, 2):
        assert max(differences) < 1e-6


class _Counting(nn.Module):
    """A layer with a frozen parameter and a table that it does not train."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.frozen = nn.Linear(4, 4), nn.Parameter(torch.full((4,), 3.0))
        self.frozen.requires_grad = False
        self.register_buffer("table", torch.full((4,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x * self.frozen)) * self.table


def evaluated(rank: int, size: int, warm_up: bool) -> list[float]:
    """Losses of a step between two evaluations, then of one after the host's weights changed."""
    from synth.runtime.pipeline import Pipeline

    modules: list[nn.Module] = [_Counting() for _ in range(2 * size)]
    draw_weights([each.get_submodule("layer") for each in modules], seed=7)
    mine = {rank: modules[rank], rank + size: modules[rank + size]}
    pipeline = Pipeline(
        generate("mobius:2", size, 3),
        mine,
        group=group_here(),
        loss=nn.functional.mse_loss,
        warm_up=warm_up,
    )
    x = torch.linspace(-1, 1, 24).view(6, 4)
    batch = pipeline.split(x, targets=x)
    losses = [pipeline.evaluate(batch), pipeline.step(batch), pipeline.evaluate(batch)]
    with torch.no_grad():
        for module in pipeline.updated.values():
            for parameter in module.parameters():
                parameter.zero_()
    losses.append(pipeline.evaluate(batch))
    assert not any(p.grad is not None for each in mine.values() for p in each.parameters())
    return [] if losses[0] is None else [float(loss) for loss in losses if loss is not None]


@pytest.mark.parametrize("warm_up", [False, True])
def test_evaluation_reads_the_weights_of_the_host(warm_up: bool) -> None:
    none, (before, step, after, zeroed) = RankThreads().run(evaluated, 2, warm_up)
    assert not none and before == after == pytest.approx(step)
    x = torch.linspace(-1, 1, 24)
    assert before != pytest.approx(zeroed) and zeroed == pytest.approx(float(x.square().mean()))


def failing(rank: int, size: int) -> str:
    """The error of the second step, in which stage 3 fails on rank 1."""
    from synth.runtime.pipeline import Pipeline

    mine = {rank: nn.Linear(4, 4), rank + size: FailingLinear(6 if rank == 1 else 99)}
    schedule = generate("mobius:2", size, 4)
    pipeline = Pipeline(schedule, mine, group=group_here(), loss=nn.functional.mse_loss)
    batch = pipeline.split(torch.ones(4, 4), targets=torch.ones(4, 4))
    pipeline.step(batch)
    with pytest.raises(RunFailure) as caught:
        pipeline.step(batch)
    return str(caught.value)


def test_a_rank_that_fails_ends_the_others() -> None:
    other, said = RankThreads(timeout_s=60).run(failing, 2)
    assert "rank 1 failed in F3.2" in said and "the rank that fails" in said
    assert other.startswith("rank 0 failed in ") and "imed out" not in other


def unsettled(rank: int, size: int, told: str) -> str:
    """The error of a step whose last copy between host and rank fails behind its last op."""
    from synth.runtime.execution.weights.weight_passing import WeightPassing
    from synth.runtime.pipeline import Pipeline

    def fail(weight_passing: WeightPassing) -> None:
        raise OSError(told)

    pipeline = Pipeline(
        generate("mobius:2", size, 2),
        {n: nn.Linear(4, 4) for n in range(2)},
        group=group_here(),
        loss=nn.functional.mse_loss,
    )
    batch = pipeline.split(torch.ones(2, 4), targets=torch.ones(2, 4))
    with pytest.MonkeyPatch.context() as patched, pytest.raises(RunFailure) as caught:
        patched.setattr(WeightPassing, "end", fail)
        pipeline.step(batch)
    return str(caught.value)


def test_a_copy_that_fails_behind_the_last_op_is_an_error_of_the_end() -> None:
    [said] = RankThreads().run(unsettled, 1, "the copy failed")
    assert "rank 0 failed at the end of a step" in said and "the copy failed" in said


def reused(rank: int, size: int) -> tuple[str, str]:
    """The errors of a second pipeline of the same modules, and of gradients widened too late."""
    from synth.runtime.optimize import widen_gradients
    from synth.runtime.pipeline import Pipeline

    schedule = generate("mobius:2", size, 2)
    mine = {n: nn.Linear(4, 4, dtype=torch.bfloat16) for n in range(2)}
    pipeline = Pipeline(schedule, mine, group=group_here())
    with pytest.raises(SynthError) as late:
        widen_gradients(pipeline.updated.values())
    with pytest.raises(SynthError) as again:
        Pipeline(schedule, mine, group=group_here())
    return str(again.value), str(late.value)


def test_modules_that_the_host_keeps_are_neither_reused_nor_widened() -> None:
    [(again, late)] = RankThreads().run(reused, 1)
    assert (
        "an earlier pipeline (with other homes, or that keeps them in the host's memory)" in again
    )
    assert "call widen_gradients before Pipeline" in late


def refusal(rank: int, size: int, moving: bool, **keywords: Any) -> str:
    """The error of building a pipeline."""
    from synth.runtime.pipeline import Pipeline

    schedule = generate("mobius:2", size, 2)
    if moving:
        moved = {OpKind.F: OpKind.OFFLOAD, OpKind.BW: OpKind.RELOAD}
        programs = []
        for ops in schedule.programs:
            program: list[Op] = []
            for op in ops:
                pair = [op, op._replace(kind=moved[op.kind])] if op.kind in moved else [op]
                program += pair[::-1] if op.kind == OpKind.BW else pair
            programs.append(tuple(program))
        schedule = replace(schedule, programs=tuple(programs))
    costs = uniform_costs(
        2 * size,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        links=Links(host=Link()),
    )
    mine: dict[int, nn.Module] = {n: nn.Linear(3, 3) for n in (rank, rank + size)}
    with pytest.raises(SynthError) as caught:
        Pipeline(verify(schedule, costs)[0], mine, group=group_here(), **keywords)
    return str(caught.value)


def test_what_does_not_run_is_refused_in_one_sentence() -> None:
    def said(moving: bool = False, **keywords: Any) -> str:
        found: str = RankThreads().run(partial(refusal, **keywords), 1, moving)[0]
        return found

    assert "both weights and saved activations move" in said(moving=True)
    assert "look-ahead needs weights that stay" in said(look_ahead=2)
