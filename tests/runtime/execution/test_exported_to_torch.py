"""Plans with sharded state under PyTorch's own runtime, on stages that FSDP2 shards."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate
from synth.interop.torch_comms_csv import to_torch_comms_csv
from synth.schedule.sharded_pipelines import sharded_pipelines
from synth.schedule.weight_flow import Sharded
from tests.runtime.gradients import gradient_of
from tests.runtime.rank_threads import draw_weights

WIDTH, BATCH, MICRO_BATCHES, PIPELINES, STEPS = 6, 3, 4, 2, 2


def build_stages(count: int) -> list[nn.Module]:
    stages: list[nn.Module] = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH)) for _ in range(count)
    ]
    draw_weights(stages, seed=5)
    return stages


def draw(pipeline: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(pipeline)
    x, y = torch.randn((2, MICRO_BATCHES * BATCH, WIDTH), generator=source)
    return x, y


def run_by_torch(rank: int, size: int, text: str, folder: str, ranks: list[int]) -> dict[int, Any]:
    """Two steps of a rank; afterwards its stages' whole gradients, averaged over pipelines."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    mesh = init_device_mesh("cpu", (PIPELINES, size // PIPELINES), mesh_dim_names=("dp", "pp"))
    own, pipeline = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    modules = {n: m for n, m in enumerate(build_stages(len(ranks))) if ranks[n] == own}
    first, inner = (
        torch.empty(BATCH, WIDTH, device="meta", requires_grad=g) for g in (False, True)
    )
    stages = []
    for number, module in modules.items():
        fully_shard(module, mesh=mesh["dp"])
        stages.append(
            PipelineStage(
                module,
                number,
                len(ranks),
                torch.device("cpu"),
                input_args=(inner if number else first,),
                output_args=(inner,),
                group=mesh["pp"].get_group(),
            )
        )
    runtime = _PipelineScheduleRuntime(stages, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    path = Path(folder) / f"{rank}.csv"
    path.write_text(text)
    runtime._load_csv(str(path), format="compute_comms")
    x, y = draw(pipeline)
    for _ in range(STEPS):
        for module in modules.values():
            module.zero_grad()
        last = len(ranks) - 1 in modules
        losses: list[Tensor] | None = [] if last else None
        runtime.step(*((x,) if 0 in modules else ()), target=y if last else None, losses=losses)
    return {
        number: [gradient_of(p).full_tensor() for p in module.parameters()]  # type: ignore[attr-defined]
        for number, module in modules.items()
    }


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("1f1b", Sharded.WEIGHTS),
        ("interleaved:2", Sharded.WEIGHTS),
        ("zb-h1", Sharded.OPTIMIZER),
        ("breadth-first:2", Sharded.WEIGHTS),
    ],
)
def test_pytorch_trains_with_fsdp2_under_an_exported_plan(
    pool: Any, tmp_path: Path, name: str, level: Sharded
) -> None:
    pipeline = generate(name, 2, MICRO_BATCHES)
    text = to_torch_comms_csv(sharded_pipelines(pipeline, PIPELINES, level))
    ranks = list(pipeline.placement.ranks[0])
    stages = build_stages(len(ranks))
    for each in range(PIPELINES):
        for x, y in zip(*(t.chunk(MICRO_BATCHES) for t in draw(each)), strict=True):
            for stage in stages:
                x = stage(x)
            (nn.functional.mse_loss(x, y) / MICRO_BATCHES / PIPELINES).backward()
    for found in pool.run(run_by_torch, 4, text, str(tmp_path), ranks):
        for number, gradients in found.items():
            wanted = [gradient_of(p) for p in stages[number].parameters()]
            for mine, true in zip(gradients, wanted, strict=True):
                torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-6)
