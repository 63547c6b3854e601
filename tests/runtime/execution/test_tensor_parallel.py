"""Tensor-parallel stages (DTensor weights), two ranks of a pipeline by two of a tensor group."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate
from synth.schedule.model import Schedule

WIDTH, MICRO_BATCHES = 6, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.down(torch.tanh(self.up(x))) + x)


def build_stages(count: int) -> list[nn.Module]:
    torch.manual_seed(2)
    return [Block() for _ in range(count)]


def draw() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    shape = (3 * MICRO_BATCHES, 5, WIDTH)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def run(rank: int, size: int, schedule: Schedule) -> tuple[dict[int, list[Tensor]], list[int]]:
    """Gradients of this process's stages, and how many parameters B left to W."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from synth.runtime.execution.stage.stage import Stage
    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    stages = build_stages(schedule.placement.num_stages)
    mine = sorted({stage for stage, _ in schedule.placement.held[mesh["pp"].get_local_rank()]})
    plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallel = {s: parallelize_module(stages[s], mesh["tp"], plan) for s in mine}
    deferred = []
    weights = Stage.backward_weight

    def count(stage: Stage, microbatch: int) -> None:
        deferred.append(len(stage.deferred(microbatch)))
        weights(stage, microbatch)

    patched: Any = Stage
    patched.backward_weight = count
    try:
        pipeline = Pipeline(schedule, parallel, group=mesh["pp"], loss=nn.functional.mse_loss)
        x, y = draw()
        for _ in range(2):
            pipeline.step(pipeline.split(x, targets=y))
    finally:
        patched.backward_weight = weights
    whole = {
        s: [g.full_tensor() if isinstance(g := p.grad, DTensor) else g for p in m.parameters()]
        for s, m in parallel.items()
    }
    return whole, deferred  # type: ignore[return-value]


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "zb-v"])
def test_sharded_weights_have_the_gradients_of_one_process_and_wait_for_w(
    pool: Any, family: str
) -> None:
    schedule = generate(family, num_ranks=2, num_micro_batches=MICRO_BATCHES)
    stages = build_stages(schedule.placement.num_stages)
    model, (x, y) = nn.Sequential(*stages), draw()
    for _ in range(2):
        for x_part, y_part in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True):
            (nn.functional.mse_loss(model(x_part), y_part) / MICRO_BATCHES).backward()
    for found, deferred in pool.run(run, 4, schedule):
        for stage, gradients in found.items():
            for mine, parameter in zip(gradients, stages[stage].parameters(), strict=True):
                torch.testing.assert_close(mine, parameter.grad)
        assert all(count == 4 for count in deferred) and (deferred or family == "1f1b")


def run_beside(rank: int, size: int) -> tuple[list[Tensor], float]:
    """Averaged gradients of two pipelines of one tensor-parallel stage, and their norm."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from synth.runtime.pipeline import Pipeline

    # Not "tp": torch keeps what it cached of an equal mesh, with that one's groups.
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "pp", "shard"))
    plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    replica = mesh["dp"].get_local_rank()
    stage = build_stages(1)[0]
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.add_(replica)  # peers become equal
    stage = parallelize_module(stage, mesh["shard"], plan)
    pipeline = Pipeline(
        generate("zb-h1", num_ranks=1, num_micro_batches=MICRO_BATCHES),
        stage,
        group=mesh["pp"],
        data_parallel=mesh["dp"],
        loss=nn.functional.mse_loss,
    )
    x, y = (t.chunk(2)[replica] for t in draw())
    pipeline.step(pipeline.split(x[:4], targets=y[:4]))
    norm = float(pipeline.clip_grad_norm_(1e9))
    gradients = [p.grad for p in stage.parameters()]
    return [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients], norm  # type: ignore[misc]


def test_sharded_weights_are_averaged_over_pipelines_side_by_side(pool: Any) -> None:
    (stage,) = build_stages(1)
    x, y = draw()
    for half in range(2):
        x_half, y_half = x.chunk(2)[half][:4], y.chunk(2)[half][:4]
        for x_part, y_part in zip(x_half.chunk(4), y_half.chunk(4), strict=True):
            (nn.functional.mse_loss(stage(x_part), y_part) / 8).backward()
    wanted = [p.grad for p in stage.parameters()]
    norm = torch.stack([g.norm() for g in wanted if g is not None]).norm()
    for found, found_norm in pool.run(run_beside, 4):
        for mine, true in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, true)
        assert found_norm == pytest.approx(float(norm), rel=1e-5)


class Embedded(nn.Module):
    """The first stage: a table, and a block."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.block = nn.Embedding(8, WIDTH), Block()

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.block(self.table(tokens))
        return embedded


class Scored(nn.Module):
    """The last stage: a block, and a matrix that is the table."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.scores = Block(), nn.Linear(WIDTH, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.block(x)).flatten(0, 1)
        return scores


def build_tied() -> tuple[Embedded, Scored]:
    torch.manual_seed(3)
    first, last = Embedded(), Scored()
    with torch.no_grad():
        last.scores.weight.copy_(first.table.weight)
    return first.double(), last.double()


def draw_tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (2 * MICRO_BATCHES, 3)
    tokens, targets = (torch.randint(8, shape, generator=generator) for _ in range(2))
    return tokens, targets


def run_tied(rank: int, size: int, family: str) -> tuple[Tensor, float]:
    """The summed gradient of the table, which is divided by rows, and the global norm."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "divided"))
    stage = build_tied()[mesh["pp"].get_local_rank()]
    plan: Any = {"block.up": ColwiseParallel(), "block.down": RowwiseParallel()}
    if isinstance(stage, Embedded):
        plan["table"] = RowwiseParallel(input_layouts=Replicate())
    else:
        plan["scores"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(stage, mesh["divided"], plan)
    shared: Any = stage.table if isinstance(stage, Embedded) else stage.scores
    pipeline = Pipeline(
        generate(family, num_ranks=2, num_micro_batches=MICRO_BATCHES),
        stage,
        group=mesh["pp"],
        tied={"table": shared.weight},
        loss=lambda y, targets: nn.functional.cross_entropy(y, targets.flatten()),
    )
    tokens, targets = draw_tokens()
    pipeline.step(pipeline.split(tokens, targets=targets))
    norm = float(pipeline.clip_grad_norm_(1e9))
    gradient = shared.weight.grad
    assert isinstance(gradient, DTensor)
    return gradient.full_tensor(), norm


@pytest.mark.parametrize("family", ["1f1b", "zb-h1"])
def test_a_tied_table_that_is_divided_has_the_gradient_of_one_process(
    pool: Any, family: str
) -> None:
    first, last = build_tied()
    last.scores.weight = first.table.weight
    tokens, targets = draw_tokens()
    parts = zip(tokens.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True)
    for some, theirs in parts:
        loss = nn.functional.cross_entropy(last(first(some)), theirs.flatten())
        (loss / MICRO_BATCHES).backward()
    parameters = {*first.parameters(), *last.parameters()}
    norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
    for found, found_norm in pool.run(run_tied, 4, family):
        torch.testing.assert_close(found, first.table.weight.grad, rtol=1e-10, atol=1e-14)
        assert found_norm == pytest.approx(float(norm), rel=1e-10)
