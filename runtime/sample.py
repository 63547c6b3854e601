"""A layer together with a micro-batch as it meets it in the model: the unit that is profiled."""

from dataclasses import dataclass

from torch import Tensor, nn

from .stage import Stage


@dataclass(frozen=True)
class Sample:
    """One layer on its device; `targets` only for the last layer."""

    layer: nn.Module
    x: Tensor
    targets: Tensor | None
    is_first: bool

    def stage(self) -> Stage:
        """The layer as a stage of its own, so that it is measured by what will run it."""
        return Stage([self.layer], is_first=self.is_first, is_last=self.targets is not None)
