"""The layout of gradients that ranks add up: dense, or sparse if it is so on every rank.

A collective needs one layout on all of its ranks. Autograd gives no gradient on a rank that did not
use a parameter, a sparse one from an embedding, and a dense one once something else adds to it.
Therefore the layout is derived from the module, which is the same on all of these ranks.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from synth.errors import SynthError

from ...split import gradient_dtype


class GradientLayout:
    """Converts the gradients of a rank's parameters to the layout that all ranks expect."""

    def __init__(self, modules: Iterable[nn.Module], tied: Iterable[Tensor] = ()) -> None:
        """Find the parameters whose gradients are sparse: tables of embeddings with `sparse=True`.

        A table that another module shares, or that is tied, also gets dense gradients; its sum is
        dense.

        Args:
            tied: this rank's tied parameters.
        """
        parts = [part for module in modules for part in module.modules()]
        counts = Counter(id(p) for part in parts for p in part._parameters.values())
        others = {id(parameter) for parameter in tied}
        self._sparse = {
            id(table)
            for part in parts
            if getattr(part, "sparse", False) is True
            and isinstance(table := part._parameters.get("weight"), Tensor)
            and counts[id(table)] == 1
            and id(table) not in others
        }

        self._renormalised = {
            id(part._parameters.get("weight"))
            for part in parts
            if getattr(part, "max_norm", None) is not None
        }

    def check_same_after_forward(self, parameters: Iterable[Tensor]) -> None:
        """Refuse parameters that forwards change, if several ranks have to keep them equal.

        Raises:
            SynthError: an embedding with `max_norm` is among them.
        """
        if any(id(parameter) in self._renormalised for parameter in parameters):
            raise SynthError(
                "an embedding with max_norm scales rows of its table in each forward, on its own "
                "rank only, so ranks that hold the same table would come to differ; leave max_norm "
                "out, or scale the table after the optimizer's step on every rank"
            )

    def is_sparse(self, parameter: Tensor) -> bool:
        """True if the parameter's gradient is reduced as a sparse tensor."""
        return id(parameter) in self._sparse

    def gradient_of(self, parameter: Tensor) -> Tensor:
        """Return a parameter's gradient, zeros if it has none, and store it as `parameter.grad`.

        That of a DTensor has its placements, which autograd's may lack (a table that is divided by
        rows); all processes of its mesh call this in the same order.
        """
        found = parameter.grad
        if found is None:
            found = self._zeros(parameter)
        elif found.is_sparse != self.is_sparse(parameter):
            found = found.to_dense() if found.is_sparse else found.to_sparse(1)
        found = _placed_as(found, parameter)
        parameter.grad = found
        return found

    def _zeros(self, parameter: Tensor) -> Tensor:
        dtype = gradient_dtype(parameter)
        if not self.is_sparse(parameter):
            return torch.zeros_like(parameter, dtype=dtype)
        return torch.sparse_coo_tensor(
            torch.empty(1, 0, dtype=torch.int64, device=parameter.device),
            torch.empty(0, *parameter.shape[1:], dtype=dtype, device=parameter.device),
            parameter.shape,
            check_invariants=False,
        )

    def kinds_of(self, tensors: Iterable[Tensor]) -> list[str]:
        """Return the shape, dtype, layout and trainability of tensors, to compare between ranks."""
        return [f"{list(t.shape)} {t.dtype}{self._mark(t)}" for t in tensors]

    def _mark(self, tensor: Tensor) -> str:
        if not tensor.requires_grad:
            return " frozen"
        return " with sparse gradients" if self.is_sparse(tensor) else ""


def _placed_as(gradient: Tensor, parameter: Tensor) -> Tensor:
    placements: Any = getattr(parameter, "placements", None)
    if placements is None or getattr(gradient, "placements", None) == placements:
        return gradient
    placed: Tensor = gradient.redistribute(placements=placements)  # type: ignore[attr-defined]
    return placed
