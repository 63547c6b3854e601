"""The boundary between two stages: a tree of tensors, flattened."""

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from itertools import combinations
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.errors import SynthError

Tensors = tuple[Tensor, ...]


class Leaf(NamedTuple):
    """One tensor of a boundary; a gradient comes back for differentiable ones only.

    `order` has its dimensions from the outermost to the innermost in memory, as of a transposed
    tensor or of channels last. None: the tensor is contiguous, or is sent as a contiguous copy.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool
    order: tuple[int, ...] | None = None

    @classmethod
    def of(cls, tensor: Tensor, *, trained: bool) -> "Leaf":
        """Describe a tensor; `trained`: a gradient comes back if it can have one."""
        differentiable = trained and can_have_gradient(tensor)
        return cls(tuple(tensor.shape), tensor.dtype, differentiable, order_in_memory(tensor))

    def empty(self, device: torch.device | str) -> Tensor:
        """Make a tensor of this form."""
        if self.order is None:
            return torch.empty(self.shape, dtype=self.dtype, device=device)
        sizes = [self.shape[dim] for dim in self.order]
        return self.unpacked(torch.empty(sizes, dtype=self.dtype, device=device))

    def packed(self, tensor: Tensor) -> Tensor:
        """Return a tensor of this shape with its dimensions as in memory, to be sent: contiguous.

        It is a copy if the tensor is not laid out so.
        """
        return (tensor if self.order is None else tensor.permute(self.order)).contiguous()

    def unpacked(self, tensor: Tensor) -> Tensor:
        """Return a tensor as it was before `packed`, with the same memory."""
        if self.order is None:
            return tensor
        places = {dim: place for place, dim in enumerate(self.order)}
        return tensor.permute([places[dim] for dim in range(len(places))])


@dataclass(frozen=True)
class Boundary:
    """The tensors that a stage outputs for one micro-batch.

    Attributes:
        spec: their tree; None: a lone tensor.
        overlapping: the places, among the leaves, of those that share elements with another one.
    """

    leaves: tuple[Leaf, ...]
    spec: pytree.TreeSpec | None = None
    overlapping: tuple[int, ...] = ()

    @classmethod
    def of(cls, output: Any, *, trained: bool | Sequence[bool], stage: int | None = None) -> Self:
        """Describe a stage's output.

        Args:
            output: a tensor or a tree of tensors.
            trained: True if gradients flow into the stage at all; or by tensor, if one comes back.
            stage: its number, for messages.

        Raises:
            SynthError: a leaf is not a tensor.
        """
        tensors, spec = flatten(output, "a stage" if stage is None else f"stage {stage}")
        by_tensor = [trained] * len(tensors) if isinstance(trained, bool) else trained
        both = zip(tensors, by_tensor, strict=True)
        leaves = tuple(Leaf.of(tensor, trained=own) for tensor, own in both)
        return cls(leaves, spec, _overlapping(tensors))

    @property
    def trained(self) -> bool:
        """True if any gradient comes back."""
        return bool(self.differentiable)

    @property
    def differentiable(self) -> "Leaves":
        """The tensors whose gradients come back."""
        return tuple(leaf for leaf in self.leaves if leaf.differentiable)

    @property
    def differentiable_places(self) -> list[int]:
        """The places, among all tensors, of those whose gradients come back."""
        return [place for place, leaf in enumerate(self.leaves) if leaf.differentiable]

    def gradient_places(self, trained: Sequence[bool]) -> list[int]:
        """Return the places, among the gradients that come back, of those of some tensors.

        Args:
            trained: by tensor, True if its gradient is asked for. If none of it comes back, its
                place is behind all others.
        """
        count = len(self.differentiable)
        numbers = iter(range(count))
        places = [next(numbers) if leaf.differentiable else count for leaf in self.leaves]
        return [place for place, own in zip(places, trained, strict=True) if own]

    def activations(self, device: torch.device | str) -> Tensors:
        """Make empty tensors of the output's form."""
        return tuple([leaf.empty(device) for leaf in self.leaves])

    def gradients(self, device: torch.device | str) -> Tensors:
        """Make empty gradients of the differentiable tensors."""
        return tuple([leaf.empty(device) for leaf in self.differentiable])

    def check(self, tensors: Sequence[Tensor], stage: int) -> None:
        """Check that a stage's output matches this boundary."""
        fits = len(tensors) == len(self.leaves) and all(
            t.shape == leaf.shape and t.dtype == leaf.dtype
            for t, leaf in zip(tensors, self.leaves, strict=True)
        )
        if not fits:
            agreed = ", ".join(f"{list(leaf.shape)} {leaf.dtype}" for leaf in self.leaves)
            given = ", ".join(f"{list(t.shape)} {t.dtype}" for t in tensors)
            raise SynthError(
                f"stage {stage} gave {given}, where its trial gave {agreed}: shapes must follow "
                f"from those of the inputs alone, and the precision stay as it was"
            )

    def check_tree(self, spec: pytree.TreeSpec | None) -> None:
        """Check that a stage's output is a tree of the same form as in its trial.

        Raises:
            SynthError: it is another one, in which the next stage would mistake the tensors.
        """
        if spec is not self.spec and spec != self.spec:
            raise SynthError(
                f"a stage gave {_described(spec)}, where its trial gave {_described(self.spec)}: "
                f"the structure of an output, and what is no tensor in it, must stay the same"
            )

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the next stage's positional arguments; a tuple or list is spread out."""
        if self.spec is None:
            return tuple(tensors)
        tree = pytree.tree_unflatten(list(tensors), self.spec)
        return tuple(tree) if isinstance(tree, tuple | list) else (tree,)


Leaves = tuple[Leaf, ...]


def packed(leaves: Leaves, tensors: Sequence[Tensor]) -> Tensors:
    """Return tensors as they are sent; see `Leaf.packed`."""
    return tuple([leaf.packed(t) for leaf, t in zip(leaves, tensors, strict=True)])


def unpacked(leaves: Leaves, tensors: Sequence[Tensor]) -> Tensors:
    """Return tensors that were sent."""
    return tuple([leaf.unpacked(t) for leaf, t in zip(leaves, tensors, strict=True)])


def order_in_memory(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the dimensions of a tensor in the order of memory, which it fills without gaps.

    None: in their own order, or there are gaps, so that a contiguous copy is sent.
    """
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tuple(order) if tensor.permute(order).is_contiguous() else None


def is_dense(tensor: Tensor) -> bool:
    """True if a tensor is sent as it lies in memory, False if a copy is."""
    return tensor.is_contiguous() or order_in_memory(tensor) is not None


def can_have_gradient(tensor: Tensor) -> bool:
    """True if the tensor's numbers are real or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


def settled(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its numbers, the tensor itself if its own does.

    A lazy conjugate or negative is computed, and the result of a collective (tensor parallelism)
    awaited, whose wrapper has no memory.
    """
    if type(tensor) is not Tensor and hasattr(tensor, "trigger_wait"):
        tensor = tensor.trigger_wait()
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg()
    return tensor


def _overlapping(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """The places of tensors that share elements with another one; their numbers are not read."""
    storages: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        storages.setdefault(tensor.untyped_storage()._cdata, []).append(place)
    shared = [pair for places in storages.values() for pair in combinations(places, 2)]
    found = {at for a, b in shared if _overlap(tensors[a], tensors[b]) for at in (a, b)}
    return tuple(sorted(found))


def _overlap(a: Tensor, b: Tensor) -> bool:
    try:
        # Any number may be given; NumPy's annotation has two of them.
        return bool(np.shares_memory(_addresses(a), _addresses(b), max_work=_MOST_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _addresses(tensor: Tensor) -> Any:
    """An array of the bytes of a tensor's elements within its storage; not to be read."""
    size = tensor.element_size()
    steps = tuple(size * step for step in tensor.stride())
    begin = size * int(tensor.storage_offset())
    bytes_to_begin = np.lib.stride_tricks.as_strided(_ONE_BYTE, (begin + 1,), (1,))
    return np.lib.stride_tricks.as_strided(
        bytes_to_begin[begin:], (*tensor.shape, size), (*steps, 1)
    )


_ONE_BYTE = np.zeros(1, np.uint8)
# Of the exact comparison of addresses, which can take long for many dimensions.
_MOST_WORK = 10**6


def flatten(output: Any, giver: str = "a stage") -> tuple[Tensors, pytree.TreeSpec | None]:
    """Return a stage's output as a tuple of tensors, and the spec of its tree.

    Raises:
        SynthError: a leaf is not a tensor, or of a subclass, such as a DTensor.
    """
    if isinstance(output, Tensor):
        return (_plain(output),), None
    leaves, spec = pytree.tree_flatten(output)
    if not all([isinstance(leaf, Tensor) for leaf in leaves]):
        raise SynthError(
            f"{giver} gave {_others_in(output)} in its output; only tensors go from stage to "
            f"stage: leave it out, wrap it in a tensor, or give it to each rank as a keyword of "
            f"`split`{way_to_trees(leaves)}"
        )
    return tuple([_plain(leaf) for leaf in leaves]), spec


def way_to_trees(leaves: Sequence[Any]) -> str:
    """Say how dataclasses among leaves become trees; others have nothing said."""
    kinds = {type(leaf).__name__ for leaf in leaves if is_dataclass(leaf)}
    return "".join(
        f"; or register the dataclass where it is defined: "
        f"torch.utils._pytree.register_dataclass({kind})"
        for kind in sorted(kinds)
    )


def _described(spec: pytree.TreeSpec | None) -> str:
    """A tree in words."""
    return "a tensor" if spec is None else " ".join(str(spec).split())


def _others_in(output: Any) -> str:
    """Name what is no tensor, and its place."""
    leaves, _ = pytree.tree_flatten_with_path(output)
    found = [(pytree.keystr(path), leaf) for path, leaf in leaves if not isinstance(leaf, Tensor)]
    return ", ".join(
        ("None" if leaf is None else f"a {type(leaf).__name__}") + (f" at {place}" if place else "")
        for place, leaf in found
    )


def _plain(leaf: Tensor) -> Tensor:
    """Return a leaf that another rank can receive."""
    if leaf.layout != torch.strided or leaf.is_nested:
        kind = "nested" if leaf.is_nested else "sparse"
        raise SynthError(
            f"a stage gave a {kind} tensor in its output; only dense tensors go from stage to "
            f"stage: give its parts, such as indices and values, and make it in the next stage"
        )
    if type(leaf) is Tensor:
        return leaf
    if hasattr(leaf, "placements"):  # a DTensor; importing its class takes a second
        raise SynthError(
            f"a stage gave a DTensor ({list(leaf.shape)}, {leaf.placements}) in its output; only "
            f"plain tensors go from stage to stage, and a loss is one: end the stage in "
            f"`.redistribute(placements=[Replicate()]).to_local()`, or parallelize its last module "
            f"with `PrepareModuleOutput(output_layouts=…, desired_output_layouts=Replicate(), "
            f"use_local_output=True)`"
        )
    if not (isinstance(leaf, nn.Parameter | nn.Buffer) or type(leaf).__module__.startswith(_OWN)):
        raise SynthError(
            f"a stage gave a {type(leaf).__name__} ({list(leaf.shape)}) in its output, a subclass "
            f"of Tensor; only plain tensors go from stage to stage: end the stage in "
            f"`.as_subclass(torch.Tensor)`, or give the parts, and make it in the next stage"
        )
    return leaf


# Of torch's classes that stand for plain tensors: fake ones, and results of collectives.
_OWN = ("torch._subclasses.", "torch.distributed.")
