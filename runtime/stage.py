"""One stage of the model on this rank: its layers, and the micro-batches under way in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .split import GradientBox, SplitTape, enter


@dataclass(slots=True)
class _Passage:
    """A micro-batch between its F and its W: what autograd needs, and nothing else."""

    tape: SplitTape
    edge: GradientEdge | None
    box: GradientBox | None


class Stage:
    """F, B, W and BW of a run of layers.

    A stage keeps neither its input nor its output alive: the graph hangs on a gradient edge, and
    the input enters without a leaf. What autograd saved of them lives on as long as it needs.
    """

    def __init__(self, layers: Sequence[nn.Module], *, is_first: bool, is_last: bool) -> None:
        self.layers = nn.ModuleList(layers)
        self.is_first = is_first
        self.is_last = is_last
        self._passages: dict[int, _Passage] = {}

    def forward(self, microbatch: int, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """F: run the layers; the last stage's last layer also takes the targets.

        Returns:
            The boundary activation, or on the last stage the scalar loss; detached.
        """
        box = None
        if not self.is_first:
            x, box = enter(x)
        tape = SplitTape()
        y = tape.forward(self._run, x, targets) if self.is_last else tape.forward(self._run, x)
        self._passages[microbatch] = _Passage(tape, get_gradient_edge(y), box)
        return y.detach()

    def _run(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x, targets) if self.is_last and i == last else layer(x)
        return x

    def backward_input(self, microbatch: int, gradient: Tensor) -> Tensor | None:
        """B: the gradient of the input (none on the first stage); weight gradients wait for W."""
        passage = self._passages[microbatch]
        edge, passage.edge = passage.edge, None
        assert edge is not None
        passage.tape.backward_input([edge], [gradient])
        return passage.box.take() if passage.box else None

    def backward_weight(self, microbatch: int) -> None:
        """W: accumulate what B put off into the parameters' gradients."""
        self._passages.pop(microbatch).tape.backward_weight()

    def backward(self, microbatch: int, gradient: Tensor) -> Tensor | None:
        """BW: an ordinary backward."""
        passage = self._passages.pop(microbatch)
        assert passage.edge is not None
        passage.tape.backward_fused([passage.edge], [gradient])
        return passage.box.take() if passage.box else None

    def deferred(self, microbatch: int) -> tuple[Tensor, ...]:
        """The parameters whose gradients wait for W, between a micro-batch's B and W."""
        return self._passages[microbatch].tape.deferred

    @torch.no_grad()
    def output_like(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Run once without autograd, to learn the output's shape and dtype."""
        return self._run(x, targets) if self.is_last else self._run(x)
