"""Runs a module whose parameters have no values, for the shapes of what it returns."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ...execution.base.without_graph import AutocastRefused
from .containers import closed, opened
from .guard import storage_of


def run_empty(module: nn.Module, given: Any) -> tuple[Any, Any]:
    """Return zeros in the form of what a module returns, and its arguments after the call.

    It runs on the meta device, where nothing is computed. Where that is not possible, as under
    autocast or where experts are chosen by the data, it runs on the CPU with zeros as parameters.

    Args:
        module: with parameters on the meta device.
        given: its positional arguments and its keywords, with values, opened (`containers`); so are
            those that are returned.
    """
    if not torch.is_autocast_enabled("cpu"):
        try:
            return _on_meta(module, given)
        except Exception:  # of any class: an operator without an outline, numbers that are read
            pass
    tensors = {n: torch.zeros_like(p, device="cpu") for n, p in module.named_parameters()}
    args, kwargs = closed(given)
    return functional_call(module, tensors, args, kwargs), opened((args, kwargs))


def _on_meta(module: nn.Module, given: Any) -> tuple[Any, Any]:
    leaves, spec = pytree.tree_flatten(given)
    outlined = [leaf.to("meta") if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    before = [leaf._version if isinstance(leaf, Tensor) else 0 for leaf in outlined]
    args, kwargs = closed(pytree.tree_unflatten(outlined, spec))
    made = (_called_on_meta(module, args, kwargs), opened((args, kwargs)))
    for leaf, outline, version in zip(leaves, outlined, before, strict=True):
        if isinstance(leaf, Tensor) and outline._version != version:
            leaf.copy_(leaf.clone())  # is seen as changed
    found: tuple[Any, Any] = pytree.tree_map_only(
        Tensor, lambda tensor: _with_values(tensor, outlined, leaves), made
    )
    return found


def _called_on_meta(module: nn.Module, args: Any, kwargs: Any) -> Any:
    state = (*module.named_parameters(), *module.named_buffers())
    with torch.device("meta"), AutocastRefused():
        return functional_call(module, {n: t.to("meta") for n, t in state}, args, kwargs)


def has_form(value: Any, module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Return True if a module returns a tree of the form of a value, as its run on meta shows.

    Args:
        value: the output of a module that is alike.
        args: its positional arguments, with values.
        kwargs: its keywords, with values.
    """
    try:
        found = _called_on_meta(
            module, *pytree.tree_map_only(Tensor, lambda t: t.to("meta"), (args, kwargs))
        )
    except Exception:  # of any class, as in `run_empty`
        return False
    is_same: bool = _form(found) == _form(value)
    return is_same


def _form(value: Any) -> Any:
    leaves, spec = pytree.tree_flatten(value)
    return spec, [(x.shape, x.dtype) if isinstance(x, Tensor) else repr(x) for x in leaves]


def _with_values(made: Tensor, outlined: Sequence[Any], leaves: Sequence[Any]) -> Tensor:
    """Return zeros, or the argument, or the part of it, that a module returns."""
    for outline, leaf in zip(outlined, leaves, strict=True):
        if outline is made:
            return leaf  # type: ignore[no-any-return]
        if isinstance(outline, Tensor) and storage_of(outline) == storage_of(made):
            return leaf.as_strided(made.size(), made.stride(), made.storage_offset())  # type: ignore[no-any-return]
    return torch.zeros_like(made, device="cpu")
