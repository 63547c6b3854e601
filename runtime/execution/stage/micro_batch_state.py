"""A micro-batch of a stage between its F and its W: the ends of its graph, and its gradients."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from synth.errors import SynthError

from ...split import GradientBox, SplitTape, enter
from ..base.boundary import Boundary, Tensors, packed, settled
from .offloaded_activations import SavedStore


@dataclass(slots=True)
class MicroBatchState:
    """A micro-batch between its F and its W, reduced to what autograd needs.

    `wanted` are the indices, among the incoming gradients, of the outputs that have an edge. There
    is no tape if BW follows, and a store only if the saved activations move. `unused` are, after
    the backward, the indices among the differentiable inputs of those that got no gradient.
    """

    tape: SplitTape | None
    edges: list[GradientEdge]
    wanted: list[int]
    boxes: list[GradientBox]
    entry: Boundary | None
    store: SavedStore | None = None
    unused: tuple[int, ...] = ()

    def picked(self, gradients: Tensors) -> list[Tensor]:
        """Return the incoming gradients of the outputs that have an edge."""
        if self.wanted and max(self.wanted) >= len(gradients):
            raise SynthError(
                "parameters were frozen when the pipeline learned what goes between stages, and "
                "are trained now, or the batch's inputs require a gradient and did not then: make "
                "a new Pipeline after such a change"
            )
        return [gradients[i] for i in self.wanted]

    def leave(self) -> Tensors:
        """Return the gradients of the inputs, packed; one of several not used has zeros."""
        boxes = self.boxes
        came = [box.gradient for box in boxes if box.gradient is not None]
        self.unused = tuple([i for i, box in enumerate(boxes) if box.gradient is None])
        if self.unused:
            if not came:
                boxes[0].take()  # raises an error that says so
            self._fill(came[0].device)
        leaves = () if self.entry is None else self.entry.differentiable
        return packed(leaves, [settled(box.take()) for box in boxes])

    def _fill(self, device: torch.device) -> None:
        assert self.entry is not None
        for box, leaf in zip(self.boxes, self.entry.differentiable, strict=True):
            if box.gradient is None:
                box.put(leaf.empty(device).zero_())


def entered(tensors: Tensors, entry: Boundary) -> tuple[tuple[Any, ...], list[GradientBox]]:
    """Return the arguments made of a tuple of tensors, and boxes for their gradients."""
    boxes, twins = [], []
    for tensor, leaf in zip(tensors, entry.leaves, strict=True):
        if leaf.differentiable:
            tensor, box = enter(tensor)
            boxes.append(box)
        twins.append(tensor)
    return entry.arguments(twins), boxes
