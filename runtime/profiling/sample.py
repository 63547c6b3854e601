"""A layer together with a micro-batch as it meets it in the model: the unit that is profiled."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..execution.base.boundary import (
    Boundary,
    Tensors,
    can_have_gradient,
    flatten,
    is_dense,
)
from ..execution.base.stage_protocol import ForwardInput
from ..execution.stage.micro_batch_state import entered
from ..execution.stage.stage import Stage
from ..execution.stage.stage_output import versions_of
from ..models.layered_stage import LayerCall, LayeredStage, Randomness
from ..tensor_trees import tensors_of


def copied(tree: Any) -> Any:
    """Return a tree with copies of its tensors, which have gaps in memory where those do."""
    return pytree.tree_map_only(Tensor, _copied, tree)


def _copied(tensor: Tensor) -> Tensor:
    if is_dense(tensor) or 0 in tensor.stride():
        return tensor.clone()
    with_gaps = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return with_gaps.copy_(tensor)


def _copied_views(tree: Any) -> Any:
    """Return a tree with copies of its tensors, of which those are views that were."""

    def copy(tensor: Tensor) -> Tensor:
        return _copied(tensor).view_as(tensor) if tensor._is_view() else _copied(tensor)

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
    `trained` says if a gradient of `x` is asked for, or of which of its tensors, as they depend on
    a trained parameter: autograd neither saves nor computes anything for the others.
    """

    layer: nn.Module
    x: Any
    targets: Any | None
    is_first: bool
    call: LayerCall | None = None
    trained: bool | tuple[bool, ...] = True

    @property
    def device(self) -> torch.device:
        """The device of the inputs; the CPU if none is a tensor."""
        leaves = pytree.tree_leaves(self.x)
        return next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), _CPU)

    def of(self, call: LayerCall) -> Self:
        """The same place of the model, with another call."""
        return replace(self, layer=call.module, call=call)

    def without_gradients(self, places: Collection[int]) -> Self:
        """The same layer where gradients of some tensors of `x` are not asked for."""
        if self.entry is None or not places:
            return self
        trained = [leaf.differentiable for leaf in self.entry.leaves]
        return replace(
            self, trained=tuple(own and at not in places for at, own in enumerate(trained))
        )

    def run(self) -> Any:
        """Run the layer on copies of the inputs and the targets."""
        return self.run_and_watch()[0]

    def run_and_watch(self) -> tuple[Any, bool]:
        """Run the layer as `run` does, and say if it has changed its input in place."""
        given = positional(_copied_views(self.x), is_first=self.is_first)
        arguments = given if self.targets is None else (*given, copied(self.targets))
        tensors = tensors_of(given)
        before = versions_of(tensors)
        output = self.layer(*arguments) if self.call is None else self.call(arguments)
        return output, versions_of(tensors) != before

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
    def entry(self) -> Boundary | None:
        """The boundary before the layer; None: it takes the batch's inputs."""
        return None if self.is_first else Boundary.of(self.x, trained=self.trained)

    @cached_property
    def exit(self) -> Boundary:
        """The boundary behind the layer, found by a forward."""
        arguments = positional(self.copy_of_x(), is_first=self.is_first)
        output = self.stage().output_like(arguments, copied(self.targets))
        return Boundary.of(output, trained=self.trained_outputs(output))

    def trained_outputs(self, output: Any) -> tuple[bool, ...]:
        """Say of which tensors of the output a gradient is asked for, as `ShapeFinder` does.

        Only a forward with a graph shows it where there are several.
        """
        tensors = flatten(output)[0]
        entry = self.entry
        own = any(p.requires_grad for p in self.layer.parameters())
        if sum(map(can_have_gradient, tensors)) < 2 or not (own or (entry and entry.trained)):
            return (own or (entry is not None and entry.trained),) * len(tensors)
        with torch.enable_grad():
            x = self.copy_of_x()
            given = (
                positional(x, is_first=True) if entry is None else entered(flatten(x)[0], entry)[0]
            )
            again = self.layer(*given) if self.call is None else self.call(given)
        return tuple(tensor.requires_grad for tensor in flatten(again)[0])

    def copy_of_x(self) -> Any:
        """Copy the inputs, since a layer may change them in place."""
        return copied(self.x)

    def forward(self, stage: Stage, x: Any, *, fused: bool = False, microbatch: int = 0) -> Tensors:
        """F of the layer, of a micro-batch like `x`, as in the middle of a pipeline; `fused` as
        `ForwardInput` means it."""
        targets = pytree.tree_map(lambda leaf: leaf, self.targets)  # containers of its own
        arguments = positional(x, is_first=True) if self.is_first else flatten(x)[0]
        return stage.forward(microbatch, ForwardInput(arguments, self.entry, targets, fused=fused))


_CPU = torch.device("cpu")
