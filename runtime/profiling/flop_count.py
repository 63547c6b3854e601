"""Counting the floating-point operations of a layer's forward."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from ..execution.base.without_graph import without_graph
from .sample import Sample

_ATEN = torch.ops.aten


def forward_flops(sample: Sample) -> int:
    """Count the FLOPs of F of a micro-batch as PyTorch's `FlopCounterMode` does.

    Matrix multiplications, grouped ones too, convolutions and attention count, a multiply-add as
    two. Attention counts all pairs of a query and a key, also those that a mask leaves out, as the
    12·L·H·Q·T per token of Chowdhery et al. 2022, "PaLM", appendix B, do. Element-wise ops, and
    kernels that PyTorch does not know, count 0. Of sharded tensors (DTensor) those of this process
    count. A compiled layer is counted as it is without compilation.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_ATTENTION | _products())
    counter.mod_tracker = _NoModules()
    own_inputs = replace(sample, x=sample.copy_of_x())
    with without_graph(), torch.compiler.set_stance("force_eager"), counter, _OfShards():  # type: ignore[no-untyped-call]
        own_inputs.run()
    return counter.get_total_flops()


class _NoModules(ModuleTracker):
    """Tells no modules apart: PyTorch's tracker fails where one returns a view of a parameter."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove no hooks."""


class _OfShards(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets a mode around it see what DTensors do with their shards, in place of the whole."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        return func(*args, **(kwargs or {}))


def _attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """The FLOPs of QKᵀ, and of its product with V; fewer heads of K and V are shared.

    Args:
        query: shape [batch, heads, queries, head size].
        key: shape [batch, heads of K and V, keys, head size].
        value: shape [batch, heads of K and V, keys, head size of V].
    """
    batch, heads, queries, size = query
    return 2 * batch * heads * queries * key[2] * (size + value[3])


# `FlopCounterMode` itself has no formula for the CPU, and refuses K and V with fewer heads than Q.
_ATTENTION = {
    _ATEN._scaled_dot_product_flash_attention: _attention,
    _ATEN._scaled_dot_product_efficient_attention: _attention,
    _ATEN._scaled_dot_product_cudnn_attention: _attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
}


def _products() -> dict[Any, Callable[..., int]]:
    """Return the products that `FlopCounterMode` has no formula for and this PyTorch knows."""
    grouped = ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
    formulas: dict[tuple[Any, str], Callable[..., int]] = {
        **{(_ATEN, name): _grouped_product for name in grouped},
        # What transformers calls where PyTorch's own kernel cannot: an op that hides its loop.
        (torch.ops.transformers, "grouped_mm_fallback"): _grouped_product,
        **{(_ATEN, name): _product for name in ("_scaled_mm_v2", "_int_mm", "mv", "dot")},
        (_ATEN, "addmv"): _added_product,
    }
    return {
        getattr(where, name): formula
        for (where, name), formula in formulas.items()
        if hasattr(where, name)
    }


def _grouped_product(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """The FLOPs of products of groups; the rows, columns or inner dimension of a matrix are cut.

    Args:
        a: shape [rows, inner], or [groups, rows, inner].
        b: shape [inner, columns], or [groups, inner, columns].
    """
    groups = a[0] if len(a) == len(b) == 3 else 1
    return 2 * groups * a[-2] * a[-1] * b[-1]


def _product(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """The FLOPs of a product of a matrix, or a vector, by another."""
    return 2 * prod(a) * (b[-1] if len(b) > 1 else 1)


def _added_product(
    _added: Sequence[int], a: Sequence[int], b: Sequence[int], *_: Any, **__: Any
) -> int:
    return _product(a, b)
