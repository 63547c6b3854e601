"""Follows what depends on inputs and parameters beneath the functions of torch, by its storage.

What the recorder does not see of a computation (a view that is written to, a tensor that a module
keeps aside, code that calls operators itself) is seen here, so that it is no constant by mistake.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ...tensor_trees import tensors_of

# Operators that take the form of their argument alone.
IN_FORM_OF = frozenset(
    ["zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full"]
) | {"new_empty", "new_empty_strided"}


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operator, also within modules.

    Attributes:
        reads: "numbers" or "shape" if an operator made a number, or a shape, of what is followed.
        draws: True if an operator drew random numbers.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._followed: dict[int, StorageWeakRef] = {}
        self.forget()

    def forget(self) -> None:
        """Forget what was read and drawn so far."""
        self.reads: str | None = None
        self.draws = False

    def follow(self, tensor: Tensor) -> None:
        """Follow what is computed from a tensor."""
        with torch._C.DisableTorchFunction():
            if tensor.layout == torch.strided:
                reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
                self._followed[reference.cdata] = reference

    def depends(self, tensor: Tensor) -> bool:
        """True for a tensor that is computed from a followed one."""
        return storage_of(tensor) in self._followed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tags = getattr(func, "tags", ())
        state = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in tags else None
        result = func(*args, **kwargs)
        draws = state is not None and not torch.equal(state, torch.get_rng_state())
        self.draws |= draws
        name = func.name().removeprefix("aten::").partition(".")[0]
        depends = name not in IN_FORM_OF and any(map(self.depends, tensors_of((args, kwargs))))
        if depends and torch.Tag.data_dependent_output in tags:
            self.reads = self.reads or "numbers"
        if depends and torch.Tag.dynamic_output_shape in tags and _is_masked(name, args):
            self.reads = "shape"
        if depends or draws:
            for tensor in (*tensors_of(result), *written(func, args, kwargs)):
                self.follow(tensor)
        return result


def storage_of(tensor: Tensor) -> int:
    """Return a number that views of the same storage have in common, while it lives."""
    with torch._C.DisableTorchFunction():
        if tensor.layout != torch.strided:
            return -id(tensor)
        number: int = tensor.untyped_storage()._cdata
        return number


def _is_masked(name: str, args: Any) -> bool:
    """True unless an index is of whole numbers."""
    return name != "index" or any(
        t.dtype in (torch.bool, torch.uint8) for t in tensors_of(args[1:])
    )


def written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the arguments of an operator that it writes to."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_of(args[place] if place < len(args) else kwargs.get(argument.name))
