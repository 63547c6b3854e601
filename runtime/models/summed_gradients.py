"""Modules that are whole on each process of a group, and whose inputs are parts."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle


class SummedGradients(ParallelStyle):
    """The style of a module between two divided matrices, such as a norm of a process's heads.

        parallelize_module(layer, mesh, {
            "q": ColwiseParallel(), "q_norm": SummedGradients(), "out": RowwiseParallel(),
        })

    Each process has all of its parameters, which get the sum of the processes' gradients, as those
    of Megatron-LM's `allreduce_layernorm_grads` do; here in the backward of each micro-batch.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()

        def begin(owner: nn.Module, _: tuple[Any, ...]) -> None:
            # An attribute of the instance comes before the parameter of the same name.
            for name, parameter in owner.named_parameters(recurse=False):
                owner.__dict__[name] = _Summed.apply(parameter, group)  # type: ignore[no-untyped-call]

        def end(owner: nn.Module, _: tuple[Any, ...], __: Any) -> None:
            for name, _parameter in owner.named_parameters(recurse=False):
                owner.__dict__.pop(name, None)

        for owner in module.modules():
            owner.register_forward_pre_hook(begin)
            owner.register_forward_hook(end, always_call=True)
        return module


class _Summed(torch.autograd.Function):
    """The same tensor, whose gradient is summed over a group."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
