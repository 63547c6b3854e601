"""Products of a custom backward that only weight gradients need, left until W.

The first backward of a kind is watched: which of its products (`mm`, `_scaled_mm`, `_grouped_mm`,
…) end up in gradients of weights, and in no gradient of an input. In later ones these products are
not computed: the backward gets a tensor without memory in their place, and what it does with it
(casts, transposes, scales) is repeated in W on the product's value.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from ..state.tensor_numbers import digest_of, storage_key, storage_of
from ..tensor_trees import tensors_of

_WRITES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__set__")

_PRODUCTS = ("mm", "matmul", "linear", "einsum", "tensordot", "outer", "conv", "dot")


@dataclass(frozen=True)
class Product:
    """A product that waits: its function, the form of its output, and the shapes of its factors."""

    function: Any
    form: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
    factors: tuple[torch.Size, ...]


@dataclass(frozen=True)
class Later:
    """A value that is not computed yet: what to call, with values of the same kind inside."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    versions: tuple[int, ...]

    def value(self) -> Any:
        """The value.

        Raises:
            RuntimeError: a tensor that it is computed of was changed in place.
        """
        if _versions((self.arguments, self.keywords)) != self.versions:
            raise RuntimeError(
                f"a tensor that {resolve_name(self.function)} needs for a weight gradient has been "
                "modified by an inplace operation since; change a copy of it instead"
            )
        arguments, keywords = pytree.tree_map(_value, (self.arguments, dict(self.keywords)))
        return self.function(*arguments, **keywords)


class Watching(TorchFunctionMode):
    """Follows the products of one backward into its results.

    Attributes:
        overwrites: it changes a factor of a product that could wait; `late` finds that.
    """

    def __init__(self, *, is_exact: bool) -> None:
        """Compare factors by their numbers if `is_exact`, for which a device is waited for."""
        super().__init__()
        self.overwrites = True
        self._look = _numbers if is_exact else _versions
        self._products: list[tuple[Any, Any, tuple[int, ...], Any]] = []
        self._parts: dict[int, set[int]] = {}
        self._kept: list[Any] = []
        self._needed: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch calls this in place of `func`."""
        kwargs = kwargs or {}
        given = tensors_of((args, kwargs))
        output = func(*args, **kwargs)
        parts = set().union(*(self._parts.get(id(t), ()) for t in given))
        if parts and not _can_wait(func, given, kwargs, output):
            self._needed |= parts
        if _can_be_product(func, given, kwargs):
            inputs = (args, kwargs)
            parts = parts | {len(self._products)}
            self._products.append((func, inputs, self._look(inputs), output))
        if parts:
            for tensor in tensors_of(output):
                self._parts[id(tensor)] = self._parts.get(id(tensor), set()) | parts
                self._kept.append(tensor)
        return output

    def late(self, inputs: Iterable[Any], weights: Iterable[Any]) -> tuple[Product | None, ...]:
        """For each product, in order: what stands in for it, or None if B needs it.

        Args:
            inputs: gradients of inputs, as the backward returned them.
        """
        needed = self._needed.union(*(self._parts.get(id(g), ()) for g in inputs))
        wanted: set[int] = set().union(*(self._parts.get(id(g), ()) for g in weights))
        found: list[Product | None] = []
        self.overwrites = False
        for index, (function, arguments, look, output) in enumerate(self._products):
            can_wait = index in wanted - needed
            waits = can_wait and self._look(arguments) == look
            self.overwrites |= can_wait and not waits
            product = Product(function, _form(output), _shapes(tensors_of(arguments)))
            found.append(product if waits else None)
        return tuple(found) if any(found) else ()


class Postponing(TorchFunctionMode):
    """Leaves the products that can wait out of a backward."""

    def __init__(self, products: tuple[Product | None, ...]) -> None:
        super().__init__()
        self._left = list(reversed(products))
        self._later: dict[int, tuple[Tensor, Later]] = {}
        self._now: dict[int, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch calls this in place of `func`."""
        args, kwargs = pytree.tree_map(self._computed, (args, dict(kwargs or {})))
        given = tensors_of((args, kwargs))
        if any(id(t) in self._later for t in given):
            return self._used(func, args, kwargs, given)
        if not _can_be_product(func, given, kwargs):
            return func(*args, **kwargs)
        product = self._left.pop() if self._left else None
        if product is None:
            return func(*args, **kwargs)
        if product.function != func:  # another way through the backward
            self._left.clear()
            return func(*args, **kwargs)
        if product.factors != _shapes(given):  # these depend on numbers, as of chosen rows
            return func(*args, **kwargs)
        shape, stride, dtype = product.form
        stand_in = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return self._keep(func, args, kwargs, stand_in)

    def _used(self, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        """Repeat a use of what waits in W, or compute it now if its values are needed.

        Raises:
            RuntimeError: it is changed in place, which the first backward did not do.
        """
        if _changes(func, kwargs):
            if any(id(t) in self._later for t in tensors_of((args[:1], kwargs.get("out")))):
                raise RuntimeError(
                    f"{resolve_name(func)} changes a weight gradient in place, which the first "
                    "backward of this function did not do: let it take the same way for arguments "
                    "of the same form, or give it an argument that says which"
                )
        else:
            empty = pytree.tree_map(_without_memory, (args, kwargs))
            with suppress(RuntimeError, NotImplementedError):  # values of a meta tensor
                output = func(*empty[0], **empty[1])
                if _can_wait(func, given, kwargs, output):
                    return self._keep(func, args, kwargs, output)
        for tensor in given:
            if id(tensor) in self._later and id(tensor) not in self._now:
                self._now[id(tensor)] = self._later[id(tensor)][1].value()
        args, kwargs = pytree.tree_map(self._computed, (args, kwargs))
        return func(*args, **kwargs)

    def _computed(self, part: Any) -> Any:
        return self._now.get(id(part), part)

    def _keep(self, func: Any, args: Any, kwargs: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            arguments, keywords = pytree.tree_map(self.result, (args, kwargs))
            versions = _versions((arguments, keywords))
            self._later[id(output)] = (output, Later(func, arguments, keywords, versions))
        return output

    def result(self, value: Any) -> Any:
        """Return a value of the backward, or the computation that it stands for."""
        if id(value) in self._now:
            return self._now[id(value)]
        return self._later[id(value)][1] if id(value) in self._later else value


def value_of(result: Any) -> Any:
    """The value of a result of `Postponing`."""
    return _value(result)


def _value(part: Any) -> Any:
    return part.value() if isinstance(part, Later) else part


def _versions(tree: Any) -> tuple[int, ...]:
    return tuple([tensor._version for tensor in tensors_of(tree)])


def _numbers(tree: Any) -> tuple[int, ...]:
    """Versions and digests: kernels outside of torch, and `.data`, change no versions."""
    known = [tensor for tensor in tensors_of(tree) if storage_key(tensor) is not None]
    return (*_versions(tree), *(digest_of(storage_of(tensor)) for tensor in known))


def _shapes(tensors: Iterable[Tensor]) -> tuple[torch.Size, ...]:
    return tuple([tensor.shape for tensor in tensors])


def _form(output: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return tuple(output.shape), output.stride(), output.dtype


def _without_memory(part: Any) -> Any:
    return part.to("meta") if isinstance(part, Tensor) and not part.is_meta else part


def _name(function: Any) -> str:
    name: str = getattr(function, "__name__", "")
    return name.removesuffix(".default")


def _changes(function: Any, keywords: Mapping[str, Any]) -> bool:
    """True if a call writes into one of its arguments."""
    name = _name(function)
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name in _WRITES or keywords.get("out") is not None


def _can_be_product(function: Any, given: list[Tensor], keywords: Mapping[str, Any]) -> bool:
    is_named = any(part in _name(function) for part in _PRODUCTS)
    is_cast = len(given) > 1 and torch.is_autocast_enabled(given[0].device.type)
    return is_named and len(given) > 1 and not is_cast and not _changes(function, keywords)


def _can_wait(function: Any, given: list[Tensor], keywords: Mapping[str, Any], output: Any) -> bool:
    """True if a use of a product needs no values, so that it can be repeated in W."""
    name = _name(function)
    if name == "__get__":  # of a property: a shape, a dtype, a transpose; not a device
        is_form = isinstance(output, Tensor | torch.Size | torch.dtype)
        return is_form or type(output) is int
    if name in ("size", "dim", "stride", "numel", "is_contiguous", "__len__", "element_size"):
        return True
    plain = all(type(t) in (Tensor, torch.nn.Parameter) for t in given)
    return isinstance(output, Tensor) and plain and not _changes(function, keywords)
