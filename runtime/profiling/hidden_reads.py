"""Tensors of one layer that another one computes with, though it has not been given them.

They are followed by their storage beneath the functions of torch, so that views, detached tensors
and what layers leave in globals, attributes and closures are seen. Tensors that depend on no data
and no parameter, such as a table of angles that the first layer to need it makes for all, are each
rank's own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from synth.errors import SynthError

from ..models.cut.guard import IN_FORM_OF, storage_of, written
from ..tensor_trees import tensors_of

_OVERWRITING = frozenset(["copy_", "zero_", "fill_"])


@dataclass
class _Storage:
    """The facts that are known of a storage.

    Attributes:
        layers: that have it as a parameter or a buffer of checkpoints.
        name: of that parameter or buffer.
        maker: the last layer whose forward has computed what is there; None: no layer has.
        shape: of the tensor that it has computed.
        hidden: what of another layer it has been computed from, in words.
        reference: of one that forwards have made, so that no other one gets its number.
    """

    layers: set[int] = field(default_factory=set)
    name: str = ""
    maker: int | None = None
    shape: tuple[int, ...] = ()
    hidden: str | None = None
    reference: StorageWeakRef | None = None


class HiddenReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the operators of one layer's forward after another's."""

    supports_higher_order_operators = True

    def __init__(self, modules: Sequence[nn.Module], names: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self._index = 0
        self._known: dict[int, _Storage] = {}
        for index, module in enumerate(modules):
            for name, tensor in _lasting(module):
                known = self._known.setdefault(storage_of(tensor), _Storage(name=name))
                known.layers.add(index)

    @contextmanager
    def of(self, index: int, arguments: Any) -> Iterator[None]:
        """Watch the forward of a layer within the block."""
        self._index = index
        for tensor in tensors_of(arguments):
            self._note(tensor, None)
        with torch.compiler.set_stance("force_eager"), self:
            yield

    def check(self, outputs: Any, module: nn.Module) -> None:
        """Check what the layer has returned and left in its parameters and buffers.

        Raises:
            SynthError: it was computed from a tensor of another layer.
        """
        for tensor in (*tensors_of(outputs), *(tensor for _, tensor in _lasting(module))):
            if hidden := self._hidden(tensor):
                raise SynthError(f"layer {self._names[self._index]} computes with {hidden}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name in IN_FORM_OF:
            return result
        read = {key: value for key, value in kwargs.items() if not _is_overwritten(func, key)}
        given = tensors_of((args, read))
        if name in _OVERWRITING and _is_whole(given[0]):
            given = given[1:]
        hidden = next(filter(None, map(self._hidden, given)), None)
        is_followed = any(map(self._is_known, given))
        new = [
            tensor for tensor in tensors_of(result) if is_followed and not self._is_known(tensor)
        ]
        changed = filter(
            lambda tensor: is_followed or self._is_known(tensor), written(func, args, kwargs)
        )
        for tensor in (*new, *changed):
            self._note(tensor, hidden)
        return result

    def _is_known(self, tensor: Tensor) -> bool:
        return storage_of(tensor) in self._known

    def _note(self, tensor: Tensor, hidden: str | None) -> None:
        """Note that the present layer has computed a tensor, or was given it."""
        if tensor.layout != torch.strided:
            return
        known = self._known.setdefault(storage_of(tensor), _Storage())
        if known.reference is None:
            known.reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        known.maker, known.shape, known.hidden = self._index, tuple(tensor.shape), hidden

    def _hidden(self, tensor: Tensor) -> str | None:
        """Say what of another layer the present one has in a tensor; None: nothing."""
        known = self._known.get(storage_of(tensor))
        if known is None:
            return None
        if known.hidden or self._index in known.layers or known.maker == self._index:
            return known.hidden
        if known.layers:
            owner = self._names[min(known.layers)]
            return (
                f"{known.name} of layer {owner}, which is not among its own parameters and "
                f"buffers, so on another rank it has a copy that is neither trained nor loaded: "
                f"make it a parameter, buffer or sub-module of both layers (`self.weight = "
                f"embedding.weight`), which ties them, or pass on what is computed from it"
            )
        assert known.maker is not None
        return (
            f"a tensor of shape {list(known.shape)} of layer {self._names[known.maker]} that it "
            f"was not given (by a global, an attribute or a closure), so on another rank it has "
            f"none: pass it on as an output, or put the layers into one"
        )


def _is_overwritten(func: Any, name: str) -> bool:
    """True for an argument that an operator writes to and does not read, such as `out`."""
    return any(each.is_out for each in func._schema.arguments if each.name == name)


def _is_whole(tensor: Tensor) -> bool:
    """True if a tensor has all elements of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _lasting(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of parameters, and of the buffers that checkpoints have."""
    yield from module.named_parameters()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter):
            yield name, tensor
