"""The stages and the data that both runtimes get; the same bits on every call."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.executor.case import Case
from synth.runtime.models.block import CheckpointedBlock
from synth.runtime.models.gpt import GptBlock

_HEAD_WIDTH = 32

WholeBatch = tuple[Tensor, Tensor]


class MlpBlock(CheckpointedBlock):
    """Width to four times the width and back, added to its input."""

    def __init__(self, width: int, checkpoint: bool) -> None:
        super().__init__(checkpoint)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def run(self, x_BTD: Tensor) -> Tensor:
        """Same shape as x."""
        out_BTD: Tensor = x_BTD + self.down(F.gelu(self.up(x_BTD)))
        return out_BTD


def build_stage(case: Case, stage: int) -> list[nn.Module]:
    """A stage's blocks, with gradients allocated: both runtimes add to them."""
    torch.manual_seed(1000 + stage)
    width = case.size.width
    make: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(width, width),
        "mlp": lambda: MlpBlock(width, case.checkpoint),
        "attention": lambda: GptBlock(width, max(1, width // _HEAD_WIDTH), 8, case.checkpoint),
    }
    blocks = [make[case.stages]().to(case.device) for _ in range(case.size.blocks)]
    for block in blocks:
        for parameter in block.parameters():
            parameter.grad = torch.zeros_like(parameter)
    return blocks


def build_batch(case: Case) -> WholeBatch:
    """Inputs and targets of a whole mini-batch, each [micro-batches · rows, length, width]."""
    generator = torch.Generator().manual_seed(7)
    size = case.size
    shape = (2, case.num_micro_batches * size.rows, size.length, size.width)
    inputs, targets = torch.randn(shape, generator=generator).to(case.device)
    return inputs, targets


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error."""
    return F.mse_loss(output, target)
