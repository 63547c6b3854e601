"""The entry of a stage's input into the graph, which does not keep the input alive."""

from typing import Any

import torch
from torch import Tensor

from synth.errors import SynthError

# An input received from another rank is a leaf, and the node that would gather a leaf's gradient
# holds the leaf. So the input is made to require grad by proxy: through this empty tensor.
_ANCHOR = torch.empty(0, requires_grad=True)


class GradientBox:
    """Receives the gradient of one stage input during B or BW."""

    def __init__(self) -> None:
        self._gradient: Tensor | None = None

    @property
    def gradient(self) -> Tensor | None:
        """The gradient received so far."""
        return self._gradient

    def put(self, gradient: Tensor) -> None:
        """Called by the backward."""
        self._gradient = gradient

    def take(self) -> Tensor:
        """The gradient, of the input's shape; the box is empty after.

        SynthError: there is none, because no backward ran or the outputs do not depend on the
        input.
        """
        gradient, self._gradient = self._gradient, None
        if gradient is None:
            raise SynthError(
                "no gradient has reached the input, though layers before are trained: what a layer "
                "returns must depend on what it is given, without `detach` and `no_grad`; if it is "
                "not to, freeze the layers before (`requires_grad_(False)`)"
            )
        return gradient


def enter(x: Tensor) -> tuple[Tensor, GradientBox]:
    """A twin of `x` (same storage) that requires grad, and the box its gradient comes to.

    The graph holds neither: the input's memory is freed when the caller drops both `x` and the
    twin, unless a layer saved it. SynthError: `x` holds whole numbers, so has no gradient.
    """
    if not (x.is_floating_point() or x.is_complex()):
        raise SynthError(
            f"a stage input of {x.dtype} has no gradient; enter() needs a floating-point tensor: "
            "pass token ids to the first stage directly"
        )
    box = GradientBox()
    twin: Tensor = _Entry.apply(x.detach(), _ANCHOR, box)  # type: ignore[no-untyped-call]
    return twin, box


class _Entry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, box: GradientBox) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.box = box
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[None, None, None]:
        if gradient is not None:
            ctx.box.put(gradient)
        return None, None, None
