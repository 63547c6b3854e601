"""A layer together with a micro-batch as it meets it in the model: the unit that is profiled."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..execution.core.stage_protocol import ForwardInput
from ..execution.stage.boundary import Boundary, Tensors
from ..execution.stage.stage import Stage
from ..training.layered_stage import LayerCall, LayeredStage


@dataclass(frozen=True)
class Sample:
    """One layer on its device.

    `targets` are for the last layer only; `call` is set if the layer is called in a special way.
    """

    layer: nn.Module
    x: Tensor
    targets: Tensor | None
    is_first: bool
    call: LayerCall | None = None

    def stage(self) -> Stage:
        """Make a stage of the layer alone, so that a run's own code is measured."""
        is_last = self.targets is not None
        if self.call is None:
            return Stage([self.layer], is_first=self.is_first, is_last=is_last)
        return LayeredStage([self.call], is_first=self.is_first, is_last=is_last)

    def forward(self, stage: Stage, x: Tensor, *, fused: bool = False) -> Tensors:
        """F of the layer, of a micro-batch like `x`, as in the middle of a pipeline; `fused` as
        `ForwardInput` means it."""
        entry = None if self.is_first else Boundary.of(x, trained=True)
        return stage.forward(0, ForwardInput((x,), entry, self.targets, fused=fused))

    def output_like(self, stage: Stage) -> Tensor:
        """Return the output of F, made without autograd."""
        output: Tensor = stage.output_like((self.x.clone(),), self.targets)
        return output
