"""A rank's share of a stage as a module, whose parameters an optimizer updates."""

from collections.abc import Sequence

import torch
from torch import nn

from ..base.boundary import Tensors


class Share(nn.Module):
    """A rank's share of a stage, as flat parameters.

    There is one for each buffer of the stage, or, in the host's memory, for each of its parameters.
    """

    def __init__(self, parts: Tensors, gradient_dtypes: Sequence[torch.dtype | None]) -> None:
        """Make parameters of parts of buffers; one without a dtype of its gradient is frozen."""
        super().__init__()
        kinds = list(zip(parts, gradient_dtypes, strict=True))
        self.parts = nn.ParameterList(nn.Parameter(p, requires_grad=bool(d)) for p, d in kinds)
        for parameter, (part, dtype) in zip(self.parts, kinds, strict=True):
            if dtype not in (None, part.dtype):
                parameter.grad_dtype = dtype

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen."""
        return [part for part in self.parts if part.requires_grad]
