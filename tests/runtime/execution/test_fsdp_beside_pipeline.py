"""FSDP2 of PyTorch shards the same state beside a pipeline that estimates count as ZeRO-1."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, MICRO_BATCHES = 8, 3


def held_by_one_rank(rank: int, world_size: int) -> list[tuple[int, int, int, int]]:
    """Elements of the parameter gathered and of its gradient, between micro-batches and after.

    As torchtitan has it: `fsdp_reshard_after_forward = "never"`, and gradients that are reduced in
    float32.

    Returns:
        After each forward and at the end: gathered bytes, accumulated bytes, sharded bytes of the
        parameter, and of its reduced gradient.
    """
    mesh = init_device_mesh("cpu", (world_size, 1), mesh_dim_names=("dp", "pp"))
    module = nn.Linear(WIDTH, WIDTH, bias=False)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(module, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
    (group,) = fully_shard.state(module)._fsdp_param_groups  # type: ignore[attr-defined]
    (shard,) = group.fsdp_params
    seen: list[tuple[int, int, int, int]] = []

    def look(*_: Any) -> None:
        gradient = shard.unsharded_accumulated_grad
        gathered = shard._unsharded_param.untyped_storage().nbytes()
        reduced = shard.sharded_param.grad
        seen.append(
            (
                gathered,
                0 if gradient is None else gradient.nbytes,
                shard.sharded_param.to_local().nbytes,
                0 if reduced is None else reduced.to_local().nbytes,
            )
        )

    module.register_forward_hook(look)
    x = torch.randn(MICRO_BATCHES, WIDTH, dtype=torch.bfloat16)
    stage = PipelineStage(
        module, 0, 1, torch.device("cpu"), input_args=(x[:1],), group=mesh["pp"].get_group()
    )
    schedule = Schedule1F1B(
        stage, MICRO_BATCHES, loss_fn=lambda y, t: (y - t).float().square().sum()
    )
    schedule.step(x, target=torch.zeros_like(x))
    look()
    return seen[-MICRO_BATCHES - 1 :]  # a forward before finds out the shapes


@pytest.mark.parametrize("data", [2])
def test_parameters_stay_gathered_and_gradients_whole_until_the_last_backward(
    data: int, pool: Any
) -> None:
    """Whole stay 2 + 4 bytes a parameter; float32 parameters are parts, then gradients, too."""
    elements = WIDTH * WIDTH
    part = 4 * elements // data
    for seen in pool.run(held_by_one_rank, data):
        first, *between, end = seen
        assert first == (2 * elements, 0, part, 0)
        assert set(between) == {(2 * elements, 4 * elements, part, 0)}
        assert end[1:] == (0, part, part)
