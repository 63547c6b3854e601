"""Data-parallel wrappers inside stages, two pipelines of two ranks: gradients of one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate
from synth.schedule.model import Schedule

WIDTH, BATCH, MICRO_BATCHES, STEPS = 6, 3, 4, 3
REPLICAS = 2
FAMILIES = ["gpipe", "1f1b", "zb-h1", "interleaved:2", "zb-v"]


class Block(nn.Module):
    """Weights with and without a rule, and one that is used in both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.outer = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.inner(x)) @ self.outer.weight
        return self.norm(self.outer(y) * self.gate + x)


def build_stages(count: int) -> list[nn.Module]:
    torch.manual_seed(2)
    return [Block() for _ in range(count)]


def draw(step: int, replica: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a replica's mini-batch."""
    generator = torch.Generator().manual_seed(100 * step + replica)
    shape = (MICRO_BATCHES * BATCH, WIDTH)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def train_plainly(count: int) -> list[list[Tensor]]:
    """Parameters by stage after some steps of one process on the batches of all replicas."""
    stages = build_stages(count)
    model = nn.Sequential(*stages)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        for replica in range(REPLICAS):
            for x, y in zip(*(t.chunk(MICRO_BATCHES) for t in draw(step, replica)), strict=True):
                loss = nn.functional.mse_loss(model(x), y)
                (loss / MICRO_BATCHES / REPLICAS).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [[p.detach() for p in stage.parameters()] for stage in stages]


Wrap = Callable[[nn.Module, Any], nn.Module]


def wrap_ddp(stage: nn.Module, mesh: Any, **options: Any) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(stage, process_group=mesh.get_group(), **options)


def wrap_ddp_inside(stage: nn.Module, mesh: Any) -> nn.Module:
    return nn.Sequential(wrap_ddp(stage, mesh), nn.Identity())


def wrap_ddp_with_small_buckets(stage: nn.Module, mesh: Any) -> nn.Module:
    return wrap_ddp(stage, mesh, bucket_cap_mb=1e-4, gradient_as_bucket_view=True)


def wrap_ddp_finding_unused(stage: nn.Module, mesh: Any) -> nn.Module:
    return wrap_ddp(stage, mesh, find_unused_parameters=True)


def wrap_ddp_with_a_hook(stage: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    wrapped: Any = wrap_ddp(stage, mesh)
    wrapped.register_comm_hook(mesh.get_group(), allreduce_hook)
    return wrapped  # type: ignore[no-any-return]


def wrap_fsdp(stage: nn.Module, mesh: Any, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(stage.inner, mesh=mesh, **options)  # type: ignore[arg-type]
    return fully_shard(stage, mesh=mesh, **options)


def wrap_fsdp_resharding(stage: nn.Module, mesh: Any) -> nn.Module:
    return wrap_fsdp(stage, mesh, reshard_after_forward=True)


def wrap_fsdp_keeping(stage: nn.Module, mesh: Any) -> nn.Module:
    return wrap_fsdp(stage, mesh, reshard_after_forward=False)


def wrap_fsdp_inside(stage: nn.Module, mesh: Any) -> nn.Module:
    """The stage's own module is not sharded."""
    return nn.Sequential(wrap_fsdp(stage, mesh), nn.Identity())


WRAPS = [
    wrap_ddp,
    wrap_ddp_inside,
    wrap_ddp_with_small_buckets,
    wrap_ddp_finding_unused,
    wrap_ddp_with_a_hook,
    wrap_fsdp_resharding,
    wrap_fsdp_keeping,
    wrap_fsdp_inside,
]


def train(
    rank: int, size: int, schedule: Schedule, wrap: str, accumulate: int = 1
) -> dict[int, list[Tensor]]:
    """This process's stages after some steps, by number."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (REPLICAS, 2), mesh_dim_names=("dp", "pp"))
    stages = build_stages(schedule.placement.num_stages)
    mine = {stage for stage, _ in schedule.placement.held[mesh["pp"].get_local_rank()]}
    wrapped = {s: globals()[wrap](stages[s], mesh["dp"]) for s in mine}
    pipeline = Pipeline(schedule, wrapped, group=mesh["pp"], loss=nn.functional.mse_loss)
    optimizer = torch.optim.SGD([p for m in wrapped.values() for p in m.parameters()], 0.1)
    for step in range(STEPS):
        x, y = draw(step, mesh["dp"].get_local_rank())
        for part in range(accumulate):
            batch = pipeline.split(x, targets=y)
            pipeline.step(batch, weight=1 / accumulate, update=part + 1 == accumulate)
        optimizer.step()
        optimizer.zero_grad()
    return {
        s: [(p.full_tensor() if isinstance(p, DTensor) else p).detach() for p in m.parameters()]
        for s, m in wrapped.items()
    }


def assert_trained(found: list[dict[int, list[Tensor]]], count: int) -> None:
    wanted = train_plainly(count)
    for by_stage in found:
        for stage, parameters in by_stage.items():
            for mine, true in zip(parameters, wanted[stage], strict=True):
                torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("wrap", ["wrap_ddp", "wrap_fsdp_resharding"])
def test_wrapped_stages_train_as_one_process_under_every_schedule(
    pool: Any, family: str, wrap: str
) -> None:
    schedule = generate(family, num_ranks=2, num_micro_batches=MICRO_BATCHES)
    assert_trained(pool.run(train, 4, schedule, wrap), schedule.placement.num_stages)


@pytest.mark.parametrize("wrap", [w.__name__ for w in WRAPS])
def test_every_way_to_wrap_trains_as_one_process(pool: Any, wrap: str) -> None:
    schedule = generate("zb-h1", num_ranks=2, num_micro_batches=MICRO_BATCHES)
    assert_trained(pool.run(train, 4, schedule, wrap), 2)


@pytest.mark.parametrize("wrap", ["wrap_ddp", "wrap_fsdp_resharding"])
def test_wrapped_stages_accumulate_over_steps(pool: Any, wrap: str) -> None:
    schedule = generate("zb-h1", num_ranks=2, num_micro_batches=MICRO_BATCHES)
    assert_trained(pool.run(train, 4, schedule, wrap, 2), 2)
