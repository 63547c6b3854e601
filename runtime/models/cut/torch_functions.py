"""Tells from the names of torch's functions what they do with their arguments."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.overrides import resolve_name
from torch.utils import _pytree as pytree

# They make numbers of tensors, on which the code that follows may depend.
_READERS = frozenset(
    ["item", "tolist", "numpy", "is_nonzero", "equal", "allclose", "data_ptr", "untyped_storage"]
) | {
    f"__{name}__"
    for name in ("array", "bool", "int", "float", "index", "complex", "contains", "dlpack")
}
_IN_PLACE = frozenset(
    f"__{name}__"
    for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow")
) | {f"__{name}__" for name in ("iand", "ior", "ixor", "ilshift", "irshift")}

# Of one argument they take the form alone: of the second, or of the first.
_IN_FORM_OF = frozenset(["type_as", "expand_as", "view_as", "reshape_as"])
_NEW_IN_FORM_OF = frozenset(
    ["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_tensor"]
)


def reads_numbers(name: str) -> bool:
    """Return True if a function makes numbers of tensors, on which the code may depend."""
    return name.strip("_") in _READERS or name in _READERS


def mutates(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Return True if a function changes its first argument, or writes to `out`."""
    is_named_so = name.endswith("_") and not name.endswith("__")
    return name in _IN_PLACE or is_named_so or kwargs.get("out") is not None


def sources(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments whose numbers the result depends on."""
    if name in _IN_FORM_OF:
        args = args[:1]
    return pytree.tree_leaves((args[1:] if name in _NEW_IN_FORM_OF else args, kwargs))


def described(function: Any) -> str:
    """Return the name of a function of torch, equal in each process."""
    name: str | None = resolve_name(function)
    return name or getattr(function, "__qualname__", None) or repr(function)
