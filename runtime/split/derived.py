"""Weights that are computed from parameters alone: cast, fake-quantised, normalised, masked.

W has their gradient last, and autograd takes it on to the parameters. B never enters the few
operations in between, as no input of the stage is reached through them.
"""

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge

from .regions import VIEWS, is_region
from .saved_tensor import saving_hooks

MOST_NODES = 64
"""Longer ways from the parameters are not followed; they are no weight's."""

_RECORDED = "synth.rule"
# They save no tensors: a recomputation in B has none to give to W.
_FREE = VIEWS | {"ToCopyBackward0"}


class DerivedWeight:
    """The target of a computed weight's gradient; it does not keep the weight's memory."""

    __slots__ = ("device", "dtype", "edge", "leaves", "requires_grad", "shape", "stand_in")

    def __init__(self, weight: Tensor, leaves: Collection[Tensor]) -> None:
        self.edge: GradientEdge = get_gradient_edge(weight)
        self.leaves = tuple(leaves)
        self.shape, self.dtype, self.device = weight.shape, weight.dtype, weight.device
        self.requires_grad = True
        self.stand_in = torch.empty_strided(
            weight.shape, weight.stride(), dtype=weight.dtype, device="meta"
        )


def is_target(tensor: Tensor) -> bool:
    """True if W can have the gradient of a tensor: a leaf, a part of one, or computed of some."""
    return tensor.is_leaf or is_region(tensor) or bool(leaves_of(tensor))


def owner_of(parameter: Tensor | None) -> Tensor | DerivedWeight | None:
    """Return the target of W's gradient for a parameter that has passed `is_target`."""
    if parameter is None or parameter.is_leaf or is_region(parameter):
        return parameter
    return DerivedWeight(parameter, leaves_of(parameter))


def leaves_of(weight: Tensor) -> list[Tensor]:
    """The parameters that a weight is computed of; none if it is not of parameters alone.

    While a part of F is checkpointed or recomputed, only casts and views count.
    """
    if type(weight) is not Tensor or weight._backward_hooks or weight.retains_grad:
        return []
    bare = saving_hooks() is not None or torch._C._current_graph_task_id() != -1
    found: dict[int, Tensor] = {}
    for node in nodes_of(weight):
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            if not isinstance(leaf, nn.Parameter) or leaf.is_complex():
                return []
            found[id(leaf)] = leaf
        elif _RECORDED in node.metadata or (bare and node.name() not in _FREE):
            return []
    return list(found.values())


def nodes_of(weight: Tensor) -> list[Any]:
    """Autograd's nodes between a tensor and its leaves, those included; none if they are many."""
    to_visit: list[Any] = [weight.grad_fn]
    seen: dict[Any, None] = {}
    while to_visit:
        node = to_visit.pop()
        if node is None or node in seen:
            continue
        if len(seen) == MOST_NODES:
            return []
        seen[node] = None
        to_visit.extend(following for following, _ in node.next_functions)
    return list(seen)


def mark_recorded(node: Any) -> None:
    """Note that a hook on the node waits for B, so that W must not run it."""
    node.metadata[_RECORDED] = True


class Delivery:
    """Passes gradients of computed weights on to the parameters, as one backward would.

    Those that share a parameter go together, because autograd sums its parts before it adds them.
    """

    def __init__(self, targets: Iterable[Any]) -> None:
        """Prepare for the targets of W."""
        edges = {id(t.edge.node): t for t in targets if isinstance(t, DerivedWeight)}
        leaves = [id(leaf) for target in edges.values() for leaf in target.leaves]
        self._together = len(set(leaves)) < len(leaves)
        self._waiting: list[tuple[GradientEdge, Tensor]] = []

    def add(self, target: DerivedWeight, gradient: Tensor) -> None:
        """Take the whole gradient of one weight."""
        self._waiting.append((target.edge, gradient.to(target.dtype)))
        if not self._together:
            self.finish()

    def finish(self) -> None:
        """Deliver what waits."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            edges, gradients = zip(*waiting, strict=True)
            _engine_run_backward(
                edges, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True
            )
