"""Buffers of stages with weight passing: each rank has its own, and they start equal."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from synth.schedule.model import Schedule

from ..gradients.all_reduce import as_real
from ..stage.stage import Stage
from ..transport.gloo.private_groups import broadcast
from ..transport.rank_group import RankGroup


@torch.no_grad()
def broadcast_buffers(
    schedule: Schedule, group: RankGroup, stages: Mapping[int, Stage], device: torch.device
) -> None:
    """Copy the buffers of each stage from its first home; all ranks of the pipeline call this.

    Buffers on the meta device get memory, except at home; those of a stage that the host keeps may
    be on the CPU, and are moved.
    """
    flow = schedule.weights
    assert flow is not None
    for number, stage in sorted(stages.items()):
        _move(stage.module, device)
        buffers = list(stage.module.buffers())
        ranks = [
            rank
            for rank, held in enumerate(schedule.placement.held)
            if any(each == number for each, _ in held)
        ]
        if not buffers or len(ranks) == 1:
            continue
        members, home = group.subgroup(ranks, purpose="buffers"), flow.homes[number][0]
        for buffer in buffers:
            values = buffer.contiguous()
            broadcast(members, as_real(values), ranks.index(home))
            if values is not buffer and not torch.equal(values, buffer):
                buffer.copy_(values)


def _move(module: nn.Module, device: torch.device) -> None:
    """Move buffers to a device, from meta as zeros; modules that share one still do."""
    made: dict[int, Tensor] = {}
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.device != device:
                if id(buffer) not in made:
                    made[id(buffer)] = (
                        torch.zeros_like(buffer, device=device)
                        if buffer.is_meta
                        else buffer.to(device)
                    )
                part._buffers[name] = made[id(buffer)]
