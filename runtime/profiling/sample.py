"""A layer together with a micro-batch as it meets it in the model: the unit that is profiled."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..execution.base.boundary import Boundary, Tensors, can_have_gradient, flatten
from ..execution.base.stage_protocol import ForwardInput
from ..execution.stage.stage import Stage
from ..models.layered_stage import LayerCall, LayeredStage, Randomness


def copied(tree: Any) -> Any:
    """Return a tree with copies of its tensors."""
    return pytree.tree_map_only(Tensor, torch.clone, tree)


def _copied_views(tree: Any) -> Any:
    """Return a tree with copies of its tensors, of which those are views that were."""

    def copy(tensor: Tensor) -> Tensor:
        return tensor.clone().view_as(tensor) if tensor._is_view() else tensor.clone()

    return pytree.tree_map_only(Tensor, copy, tree)


def positional(x: Any, *, is_first: bool) -> tuple[Any, ...]:
    """Return a layer's positional arguments: a tuple is spread, and an output that is a list."""
    spread = isinstance(x, tuple) if is_first else isinstance(x, tuple | list)
    return tuple(x) if spread else (x,)


@dataclass(frozen=True)
class Sample:
    """One layer on its device.

    `x` are the inputs of the first layer, or the output of the previous one: a tensor or a tree.
    `targets` are for the last layer only; `call` is set if the layer is called in a special way.
    `is_trained` says that a layer before it has a trained parameter, so that a gradient of `x` is
    asked for: autograd neither saves nor computes anything for it otherwise.
    """

    layer: nn.Module
    x: Any
    targets: Any | None
    is_first: bool
    call: LayerCall | None = None
    is_trained: bool = True

    @property
    def device(self) -> torch.device:
        """The device of the inputs; the CPU if none is a tensor."""
        leaves = pytree.tree_leaves(self.x)
        return next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), _CPU)

    def of(self, call: LayerCall) -> Self:
        """The same place of the model, with another call."""
        return replace(self, layer=call.module, call=call)

    def run(self) -> Any:
        """Run the layer on copies of the inputs and the targets."""
        given = positional(_copied_views(self.x), is_first=self.is_first)
        arguments = given if self.targets is None else (*given, copied(self.targets))
        return self.layer(*arguments) if self.call is None else self.call(arguments)

    def stage(self, following: nn.Module | None = None, before: nn.Module | None = None) -> Stage:
        """Make a stage of the layer, so that a run's own code is measured.

        Args:
            following: another layer of the stage; None: there is none behind the layer.
            before: another layer of the stage; None: there is none before the layer.
        """
        is_last = self.targets is not None
        if self.call is None:
            layers = [layer for layer in (before, self.layer, following) if layer is not None]
            return Stage(layers, is_first=self.is_first, is_last=is_last)
        others = [
            None if layer is None else LayerCall(self.call.index + step, layer)
            for step, layer in ((-1, before), (1, following))
        ]
        calls = [call for call in (others[0], self.call, others[1]) if call is not None]
        return LayeredStage(
            calls, is_first=self.is_first, is_last=is_last, randomness=Randomness(0, 1)
        )

    @property
    def output_is_trained(self) -> bool:
        """True if a gradient of the output is asked for."""
        own = (p.requires_grad for p in self.layer.parameters())
        return (self.is_trained and not self.is_first) or any(own)

    def copy_of_x(self) -> Any:
        """Copy the inputs, since a layer may change them in place."""
        return copied(self.x)

    def forward(self, stage: Stage, x: Any, *, fused: bool = False, microbatch: int = 0) -> Tensors:
        """F of the layer, of a micro-batch like `x`, as in the middle of a pipeline; `fused` as
        `ForwardInput` means it."""
        targets = pytree.tree_map(lambda leaf: leaf, self.targets)  # containers of its own
        if self.is_first:
            given = ForwardInput(positional(x, is_first=True), None, targets, fused=fused)
        else:
            entry = Boundary.of(x, trained=self.is_trained)
            given = ForwardInput(flatten(x)[0], entry, targets, fused=fused)
        return stage.forward(microbatch, given)

    def gradients_like(self, stage: Stage, device: torch.device | str) -> Tensors:
        """Make empty gradients of the output of F, which is run without autograd to find them.

        None comes back to a layer that is frozen and whose input is not trained.
        """
        if not self.output_is_trained:
            return ()
        arguments = positional(self.copy_of_x(), is_first=self.is_first)
        output, _ = flatten(stage.output_like(arguments, copied(self.targets)))
        return tuple(torch.empty_like(y, device=device) for y in output if can_have_gradient(y))


_CPU = torch.device("cpu")
