"""Buffers of stages whose weights travel: each rank has its own, and they start equal."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from synth.schedule.model import Schedule

from ..gradients.all_reduce import as_real
from ..stage.stage import Stage
from ..transport.gloo.private_groups import broadcast
from ..transport.rank_group import RankGroup


@torch.no_grad()
def spread_buffers(
    schedule: Schedule, group: RankGroup, stages: Mapping[int, Stage], device: torch.device
) -> None:
    """Copy the buffers of each stage from its first home; all ranks of the pipeline call this.

    Buffers on the meta device get memory, except at home.
    """
    flow = schedule.weights
    assert flow is not None
    for number, stage in sorted(stages.items()):
        _materialise(stage.module, device)
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


def _materialise(module: nn.Module, device: torch.device) -> None:
    """Replace buffers on the meta device by zeros; modules that share one still do."""
    made: dict[int, Tensor] = {}
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                zeros = made.setdefault(id(buffer), torch.zeros_like(buffer, device=device))
                part._buffers[name] = zeros
