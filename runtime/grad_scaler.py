"""Loss scaling for float16: `torch.amp.GradScaler`, with one decision for all ranks of a pipeline.

    scaler = PipelineGradScaler(pipeline)
    loss = pipeline.step(batch, scaler=scaler)
    scaler.unscale_(optimizer)
    pipeline.clip_grad_norm_(1.0)
    scaler.step(optimizer)
    scaler.update()

A stage sees only its own gradients. Without a common decision some ranks would skip a step that
others take, and their scales would diverge. (FSDP's `ShardedGradScaler` does the same for shards.)
Shards of DTensors, of tensor parallelism or FSDP2, are unscaled where they are, beside plain
gradients, which torch's own scaler refuses. An overflow goes first to the processes that hold the
other shards, and then along the pipeline.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler

from .execution.gradients.all_reduce import is_sharded, local_part
from .pipeline import Pipeline


class PipelineGradScaler(GradScaler):
    """A `GradScaler` whose ranks skip a step together if a gradient of any of them is not finite.

    `unscale_`, `step` and `update` are called on every rank, in the same order, for as many
    optimizers on each; a rank without parameters has one of an empty tensor.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        group: Any = None,
    ) -> None:
        """Start from the same scale on every rank.

        Args:
            pipeline: the rank's pipeline, whose steps get the scaler.
            init_scale: see `GradScaler`, as for the next four.
            growth_factor: greater than 1.
            backoff_factor: less than 1.
            growth_interval: steps.
            enabled: False: nothing is scaled.
            group: the process group that shares an overflow; None: the pipeline's ranks. The
                processes that hold shards of the same DTensor share it in any case.
        """
        super().__init__(
            pipeline.device.type,
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
        self._pipeline, self._group = pipeline, group
        if self._enabled:  # ranks without the last stage never call `scale`
            self._lazy_init_scale_growth_tracker(pipeline.device)

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        """Unscale this rank's gradients, and find whether any rank's gradients overflowed.

        `unscale_` calls this, and so does `step` of an optimizer that unscales by itself.
        """
        local: Any = SimpleNamespace(param_groups=[{"params": [*_with_local_gradients(optimizer)]}])
        found = super()._unscale_grads_(local, inv_scale, found_inf, allow_fp16)
        others = [flag for flag in found.values() if flag is not found_inf]
        for flag in others:
            found_inf.copy_(torch.maximum(found_inf, flag.to(found_inf.device)))
        for group in _groups_of_shards(optimizer):
            dist.all_reduce(found_inf, dist.ReduceOp.MAX, group=group)
        self._pipeline.combine_overflow(found_inf, self._group)
        # Fused optimizers compare the sum of all flags with 1: only one of them may be set.
        for flag in others:
            flag.zero_()
        return found | {found_inf.device: found_inf}


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _with_local_gradients(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the parameters; for a DTensor a tensor whose gradient is this process's shard."""
    for parameter in _parameters(optimizer):
        if parameter.grad is None or not is_sharded(parameter.grad):
            yield parameter
            continue
        shard = local_part(parameter.grad)
        stand_in = shard.detach()
        stand_in.grad = shard
        yield stand_in


def _groups_of_shards(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """Yield the process groups along which DTensors are divided, each once."""
    meshes: Any = [getattr(parameter, "device_mesh", None) for parameter in _parameters(optimizer)]
    for mesh in dict.fromkeys(meshes):
        if mesh is not None:
            yield from mesh.get_all_groups()
