"""Loss scaling across ranks: all skip or none, and the numbers of one process's `GradScaler`."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.families import generate
from tests.runtime.gradients import gradient_of

MICRO_BATCHES, ROWS, WIDTH, CLASSES, STEPS = 4, 4, 8, 5, 10
START_SCALE = 2.0**21  # too much for float16


def build_stages(count: int) -> list[nn.Module]:
    torch.manual_seed(3)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count - 1)]
    return [*blocks, nn.Linear(WIDTH, CLASSES)]


def build_batch() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(MICRO_BATCHES * ROWS, WIDTH, generator=draw)
    return x, torch.randint(CLASSES, (MICRO_BATCHES * ROWS,), generator=draw)


def build_optimizer(modules: Any, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for m in modules for p in m.parameters()], 1e-2, fused=fused)


def run_loop(rank: int, size: int, name: str, fused: bool, unscaled_first: bool) -> Any:
    from synth.runtime.grad_scaler import PipelineGradScaler
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, MICRO_BATCHES)
    stages = build_stages(schedule.placement.num_stages)
    mine = {s: stages[s] for s, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, loss=nn.functional.cross_entropy)
    optimizer = build_optimizer(mine.values(), fused)
    scaler = PipelineGradScaler(pipeline, init_scale=START_SCALE, growth_interval=3)
    x, y = build_batch()
    seen = []
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.float16):
            loss = pipeline.step(pipeline.split(x, targets=y), scaler=scaler)
        norm = None
        if unscaled_first:
            scaler.unscale_(optimizer)
            norm = pipeline.clip_grad_norm_(0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append((loss, scaler.get_scale(), norm))
    return seen, {s: list(m.parameters()) for s, m in mine.items()}


def alone(count: int, fused: bool, unscaled_first: bool) -> Any:
    torch.set_num_threads(1)  # as the ranks have
    model = nn.Sequential(*build_stages(count))
    optimizer = build_optimizer([model], fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=START_SCALE, growth_interval=3)
    seen = []
    for _ in range(STEPS):
        total, norm = torch.zeros(()), None
        for x, y in zip(*(tensor.chunk(MICRO_BATCHES) for tensor in build_batch()), strict=True):
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(x), y) / MICRO_BATCHES
            scaler.scale(loss).backward()
            total += loss.detach()
        if unscaled_first:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append((total, scaler.get_scale(), norm))
    return seen, [list(stage.parameters()) for stage in model]


@pytest.mark.parametrize(
    ("fused", "unscaled_first"), [(False, True), (False, False), (True, True), (True, False)]
)
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_a_float16_loop_is_that_of_one_process(
    pool: Any, name: str, fused: bool, unscaled_first: bool
) -> None:
    wanted, parameters = alone(2, fused, unscaled_first)
    scales = [scale for _, scale, _ in wanted]
    assert scales[0] < START_SCALE and scales[-2] <= scales[-1]  # some steps skipped, some taken
    found = pool.run(run_loop, 2, name, fused, unscaled_first)
    for seen, by_stage in found:
        assert [scale for _, scale, _ in seen] == scales
        for (loss, _, norm), (true_loss, _, true_norm) in zip(seen, wanted, strict=True):
            if loss is not None:
                torch.testing.assert_close(loss, true_loss, rtol=1e-3, atol=1e-4)
            if norm is not None and true_norm.isfinite():
                torch.testing.assert_close(norm.float(), true_norm, rtol=1e-2, atol=1e-3)
        for stage, mine in by_stage.items():
            torch.testing.assert_close(mine, parameters[stage], rtol=1e-2, atol=1e-3)


def overflow_once(rank: int, size: int, overflows: int, fused: bool) -> Any:
    """One rank's own gradient is not finite in the second of three steps."""
    from synth.runtime.grad_scaler import PipelineGradScaler
    from synth.runtime.pipeline import Pipeline

    torch.manual_seed(rank)
    stage = nn.Linear(WIDTH, WIDTH)
    pipeline = Pipeline(generate("zb-h1", size, MICRO_BATCHES), stage, loss=nn.functional.mse_loss)
    optimizer = build_optimizer([stage], fused)
    scaler = PipelineGradScaler(pipeline, init_scale=64.0)
    x, _ = build_batch()
    seen = []
    for step in range(3):
        pipeline.step(pipeline.split(x, targets=x), scaler=scaler)
        if step == 1 and rank == overflows:
            assert stage.bias.grad is not None
            stage.bias.grad[0] = torch.inf
        before = stage.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append((not torch.equal(stage.weight, before), scaler.get_scale()))
    return seen


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("overflows", [0, 1, 3])
def test_an_overflow_on_one_rank_skips_the_step_on_all(
    pool: Any, overflows: int, fused: bool
) -> None:
    for seen in pool.run(overflow_once, 4, overflows, fused):
        assert seen == [(True, 64.0), (False, 32.0), (True, 32.0)]


def weigh_and_scale(rank: int, size: int) -> Any:
    """Gradients of two accumulated steps, weighted and scaled; the loss is not scaled."""
    from synth.runtime.grad_scaler import PipelineGradScaler
    from synth.runtime.pipeline import Pipeline

    stage = build_stages(size)[rank]
    loss = partial(nn.functional.cross_entropy, reduction="sum")
    pipeline = Pipeline(generate("1f1b", size, MICRO_BATCHES), stage, loss=loss)
    scaler = PipelineGradScaler(pipeline, init_scale=1024.0)
    x, y = build_batch()
    weights = torch.full((MICRO_BATCHES,), 0.5 / len(y))
    for last in (False, True):
        batch = pipeline.split(x, targets=y)
        half = pipeline.step(batch, weights=weights, update=last, scaler=scaler)
    return half, [gradient_of(p) / 1024.0 for p in stage.parameters()]


def test_weights_and_scale_go_together(pool: Any) -> None:
    stages = build_stages(2)
    x, y = build_batch()
    wanted = nn.functional.cross_entropy(nn.Sequential(*stages)(x), y)
    wanted.backward()
    found = pool.run(weigh_and_scale, 2)
    torch.testing.assert_close(2 * found[1][0], wanted.detach())
    for (_, gradients), stage in zip(found, stages, strict=True):
        torch.testing.assert_close(gradients, [p.grad for p in stage.parameters()])


def scale_wrongly(rank: int, size: int, what: str) -> str:
    from synth.profile.optimizer import OptimizerSpec
    from synth.runtime.grad_scaler import PipelineGradScaler
    from synth.runtime.optimize import StepSettings, build_steps
    from synth.runtime.pipeline import Pipeline

    stage, cpu = nn.Linear(WIDTH, WIDTH), torch.device("cpu")
    pipeline = Pipeline(generate("1f1b", size, 2), stage, loss=nn.functional.mse_loss)
    scaler: Any = PipelineGradScaler(pipeline)
    if what == "plain":
        scaler = torch.amp.GradScaler("cpu")
    else:
        spec, settings = OptimizerSpec.parse("sgd"), StepSettings(0.1)
        steps = build_steps({rank: stage}, spec, settings, device=cpu, skip_nonfinite=False)
        pipeline.stepper = steps
    x, _ = build_batch()
    with pytest.raises(SynthError) as caught:
        pipeline.step(pipeline.split(x, targets=x), scaler=scaler)
    return str(caught.value)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("plain", "with a GradScaler only those ranks would skip a step on which a gradient"),
        ("stepper", "the pipeline's stepper would update with scaled gradients"),
    ],
)
def test_a_scaler_that_does_not_fit_is_refused_on_all_ranks(
    pool: Any, what: str, message: str
) -> None:
    for said in pool.run(scale_wrongly, 2, what):
        assert said.startswith(message)


def clip(rank: int, size: int, name: str) -> Any:
    """Gradients clipped by the norm of all; stages with copies and stages that share a weight."""
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, MICRO_BATCHES)
    stages = build_stages(schedule.placement.num_stages)
    mine = {s: stages[s] for s, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, loss=nn.functional.cross_entropy)
    x, y = build_batch()
    pipeline.step(pipeline.split(x, targets=y))
    norms = [pipeline.clip_grad_norm_(bound) for bound in (0.1, 1e9)]
    return norms, {s: [p.grad for p in m.parameters()] for s, m in mine.items()}


@pytest.mark.parametrize("name", ["zb-v", "chimera"])
def test_clipping_is_by_the_norm_over_all_ranks(pool: Any, name: str) -> None:
    model = nn.Sequential(*build_stages(generate(name, 2, MICRO_BATCHES).placement.num_stages))
    x, y = build_batch()
    nn.functional.cross_entropy(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    for (before, after), by_stage in pool.run(clip, 2, name):
        torch.testing.assert_close(before.float(), norm)
        torch.testing.assert_close(float(after), 0.1, rtol=1e-4, atol=0)
        for stage, gradients in by_stage.items():
            torch.testing.assert_close(gradients, [p.grad for p in model[stage].parameters()])


class Divided(nn.Module):
    """Two matrices that a group divides, and a norm that is whole on each of its processes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.up(self.norm(x)).tanh())
        return y


def overflow_in_a_shard(rank: int, size: int) -> Any:
    """One shard of the last rank's gradients is not finite in the second of three steps."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from synth.runtime.grad_scaler import PipelineGradScaler
    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "scaled"))
    torch.manual_seed(0)
    plain, divided = nn.Linear(WIDTH, WIDTH), Divided()
    styles: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    is_last = mesh["pp"].get_local_rank() == 1
    stage = parallelize_module(divided, mesh["scaled"], styles) if is_last else plain
    schedule = generate("zb-h1", 2, MICRO_BATCHES)
    pipeline = Pipeline(schedule, stage, group=mesh["pp"], loss=nn.functional.mse_loss)
    optimizer = build_optimizer([stage], fused=False)
    optimizer.defaults["foreach"] = optimizer.param_groups[0]["foreach"] = False
    scaler = PipelineGradScaler(pipeline, init_scale=64.0)
    x, _ = build_batch()
    seen = []
    for step in range(3):
        pipeline.step(pipeline.split(x, targets=x), scaler=scaler)
        gradient: Any = divided.up.weight.grad
        if step == 1 and rank == 3:
            gradient.to_local()[0, 0] = torch.inf
        before = [p.detach().clone() for p in stage.parameters()]
        scaler.unscale_(optimizer)
        whole = None if step or not is_last else gradient.full_tensor()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = any(
            bool((p.detach() != old).any())
            for p, old in zip(stage.parameters(), before, strict=True)
        )
        seen.append((moved, scaler.get_scale(), whole))
    return seen


def test_an_overflow_in_one_shard_skips_the_step_on_all_processes(pool: Any) -> None:
    torch.manual_seed(0)
    plain, divided = nn.Linear(WIDTH, WIDTH), Divided()
    x, _ = build_batch()
    nn.functional.mse_loss(divided(plain(x)), x).backward()
    found = pool.run(overflow_in_a_shard, 4)
    for seen in found:
        assert [each[:2] for each in seen] == [(True, 64.0), (False, 32.0), (True, 32.0)]
    for seen in found[2:]:
        torch.testing.assert_close(seen[0][2], divided.up.weight.grad)
