"""This project's executor, as a training loop would call it."""

import torch
from torch import Tensor, nn

from benchmarks.executor.case import Case
from benchmarks.executor.stages import build_batch, build_stage, loss_of
from synth.runtime.channels import open_channels
from synth.runtime.clock import Clock
from synth.runtime.executor import Batch, Boundary, Executor
from synth.runtime.stage import Stage
from synth.schedule import lower


class _WithLoss(nn.Module):
    """The last layer, which takes the targets."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss of one micro-batch."""
        return loss_of(self.layer(x), target)


class Ours:
    """One rank of a pipeline under our executor."""

    def __init__(self, case: Case, rank: int) -> None:
        lowered = lower(case.make_schedule(), case.costs)
        placement, device = lowered.schedule.placement, torch.device("cpu")
        last = placement.num_stages - 1
        self._stages = {stage: build_stage(case, stage) for stage, _ in placement.held[rank]}
        size = case.size
        boundary = Boundary((size.rows, size.length, size.width), torch.float32)
        self._executor = Executor(
            lowered,
            rank,
            {number: _stage(blocks, number, last) for number, blocks in self._stages.items()},
            open_channels(device, lowered.transfers),
            [boundary] * last,
            device=device,
            clock=Clock(device),
        )
        inputs, targets = build_batch(case)
        self._inputs = inputs if 0 in self._stages else None
        self._targets = targets if last in self._stages else None
        self._count = case.num_micro_batches

    def step(self) -> Tensor | None:
        """One mini-batch; the mean loss on the rank with the last stage."""
        return self._executor.step(Batch(self._cut(self._inputs), self._cut(self._targets)))

    def _cut(self, whole: Tensor | None) -> list[Tensor] | None:
        return None if whole is None else list(whole.chunk(self._count))

    def parameters(self) -> dict[int, list[nn.Parameter]]:
        """By stage."""
        return {
            stage: [p for block in blocks for p in block.parameters()]
            for stage, blocks in self._stages.items()
        }


def _stage(blocks: list[nn.Module], number: int, last: int) -> Stage:
    layers = [*blocks[:-1], _WithLoss(blocks[-1])] if number == last else blocks
    return Stage(layers, is_first=number == 0, is_last=number == last)
