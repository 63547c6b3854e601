"""Cuts trees of a mini-batch into micro-batches, and refuses what it cannot know how to cut."""

import copy
import dataclasses
import numbers
import sys
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from synth.errors import SynthError

# They say the same of every sample.
_CONSTANTS = (
    *(type(None), numbers.Number, np.generic, str, bytes, Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)


@dataclass(frozen=True)
class Replicate:
    """A value that every micro-batch gets whole: positions, ALiBi slopes, a table."""

    value: Any


@dataclass(frozen=True)
class Chunk:
    """A value that is cut along a dimension, whatever the size of the batch.

    Attributes:
        value: a tensor, a NumPy array, or a list or tuple with the items of each sample.
        dim: the dimension that is cut into equal parts, one for each micro-batch.
    """

    value: Any
    dim: int = 0


class Cutter:
    """Cuts the values of one mini-batch, whose size is that of the first value that is cut."""

    def __init__(self, num_micro_batches: int, values: Mapping[str, Any]) -> None:
        """Find the size of the mini-batch in its values, which have names for messages."""
        self._count = num_micro_batches
        found = (size for name, value in values.items() for size in _sizes(value, name))
        none: tuple[str, int | None] = ("", None)
        self._first, self._size = next(found, none)
        self.num_samples: int | None = None
        """The size of the batch that a tensor was cut by without a `Chunk`; None: none was."""

    def cut(self, value: Any, name: str) -> Sequence[Any]:
        """Return a value's part of each micro-batch.

        Raises:
            SynthError: it has another size than the batch, or one that cannot be divided equally,
                or is of a type of which it is unknown whether it says something of each sample.
        """
        if isinstance(value, Replicate):
            return [value.value] * self._count
        if isinstance(value, Chunk):
            return self._chunks(value, name)
        if isinstance(value, Tensor) or _is_block_mask(value):
            return self._along_batch(value, name)
        if isinstance(value, _CONSTANTS):
            return [value] * self._count
        children = None if isinstance(value, PackedSequence) else _children(value)
        if children is None:
            raise SynthError(
                f"{name} is a {type(value).__name__}, which cannot be cut into micro-batches: "
                f"give tensors, or synth.Replicate(…) for what is the same for every micro-batch, "
                f"or make a Batch of micro-batches yourself"
            )
        return self._cut_children(value, children, name)

    def _cut_children(self, value: Any, children: "_Children", name: str) -> Sequence[Any]:
        parts, rebuild = children
        if isinstance(value, list | tuple) and self._is_one_per_sample(value):
            raise SynthError(
                f"{name} has {len(value)} items that are no tensors, as if one for each sample: "
                f"give synth.Chunk(…) if the items are to be cut into micro-batches, or "
                f"synth.Replicate(…) if every micro-batch needs all of them"
            )
        columns = [self.cut(part, f"{name}{step}") for step, part in parts]
        return [rebuild([column[j] for column in columns]) for j in range(self._count)]

    def _is_one_per_sample(self, items: Sequence[Any]) -> bool:
        # Other leaves may have the batch in a dimension, or say themselves how they are cut.
        leaves = pytree.tree_leaves(list(items))
        if not items or not all(isinstance(leaf, _CONSTANTS) for leaf in leaves):
            return False
        if all(item is None for item in items) or hasattr(items, "_fields"):
            return False
        size = self._size
        return len(items) == size if size is not None else len(items) % self._count == 0

    def _along_batch(self, value: Any, name: str) -> Sequence[Any]:
        """Cut a tensor or a block mask, whose first dimension must be the batch."""
        if not isinstance(value, Tensor):
            return self._cut_block_mask(value, name)
        if value.is_nested or value.layout != torch.strided:
            kind = "nested" if value.is_nested else "sparse"
            raise SynthError(
                f"{name} is a {kind} tensor, which cannot be cut into micro-batches: make a Batch "
                f"of micro-batches yourself, or give synth.Replicate(…) if it is the same for all"
            )
        if value.dim() == 0:
            raise SynthError(
                f"{name} is a tensor without dimensions, which cannot be cut into micro-batches: "
                f"give synth.Replicate(…) if it is the same for every micro-batch"
            )
        self._check_size(value.shape[0], f"{name} of shape {list(value.shape)}")
        return self._divided(value, 0, name)

    def _check_size(self, size: int, described: str) -> None:
        self.num_samples = self._size
        if size != self._size:
            raise SynthError(
                f"{described} has {size} in its first dimension, where the batch ({self._first}) "
                f"has {self._size}: give synth.Replicate(…) if it is the same for every "
                f"micro-batch, or synth.Chunk(…, dim=…) to cut it along another dimension"
            )

    def _chunks(self, chunk: Chunk, name: str) -> Sequence[Any]:
        value, dim = chunk.value, chunk.dim
        if type(dim) is not int:
            raise SynthError(f"{name} is a Chunk along dimension {dim!r:.40}; give a whole number")
        if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested:
            if not -value.dim() <= dim < value.dim():
                raise SynthError(
                    f"{name} of shape {list(value.shape)} has no dimension {dim} to be cut along"
                )
            return self._divided(value, dim, name)
        if isinstance(value, np.ndarray) and -value.ndim <= dim < value.ndim:
            self._check_divisible(value.shape[dim], name)
            return np.split(value, self._count, dim)
        if type(value) in (list, tuple) and dim == 0:
            self._check_divisible(len(value), name)
            size = len(value) // self._count
            return [value[j * size : (j + 1) * size] for j in range(self._count)]
        raise SynthError(
            f"{name} is a Chunk of a {type(value).__name__} along dimension {dim}; it cuts dense "
            f"tensors and NumPy arrays along one of their dimensions, lists and tuples along 0"
        )

    def _divided(self, tensor: Tensor, dim: int, name: str) -> Sequence[Tensor]:
        self._check_divisible(tensor.shape[dim], name)
        if tensor.shape[dim] == 0:
            return [tensor] * self._count
        parts = tensor.chunk(self._count, dim)
        if tensor.requires_grad:
            return parts
        # Each has its own counter of changes: a stage may change its input in place.
        return [part.data for part in parts]

    def _check_divisible(self, size: int, name: str) -> None:
        if size % self._count:
            raise SynthError(
                f"{name}: a mini-batch of {size} cannot be cut into {self._count} equal "
                f"micro-batches; give a multiple of {self._count} (a DataLoader does with "
                f"drop_last=True), or make a Batch of micro-batches of any sizes yourself"
            )

    def _cut_block_mask(self, mask: Any, name: str) -> Sequence[Any]:
        """Cut a mask of flex_attention as PyTorch's pipelines do; one of batch size 1 fits all."""
        size = mask.kv_num_blocks.shape[0]
        if size == 1:
            return [mask] * self._count
        self._check_size(size, f"{name}, a BlockMask,")
        self._check_divisible(size, name)
        tables = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
        cut = {table: _chunked(getattr(mask, table), self._count) for table in tables}
        return [
            type(mask).from_kv_blocks(
                **{table: column[j] for table, column in cut.items()},
                BLOCK_SIZE=mask.BLOCK_SIZE,
                mask_mod=_shifted(mask.mask_mod, j * size // self._count),
                seq_lengths=mask.seq_lengths,
            )
            for j in range(self._count)
        ]


_Children = tuple[Iterable[tuple[str, Any]], Callable[[list[Any]], Any]]


def _children(value: Any) -> _Children | None:
    """Return a container's parts, each with its step from it, and how to make one of others."""
    if isinstance(value, UserDict):  # such as the encoding that a Hugging Face tokenizer returns
        return _steps(value), lambda parts: _filled(value, dict(zip(value, parts, strict=True)))
    own = id(value)  # no reference: what pytree's walk holds lives until garbage is collected
    parts, spec = pytree.tree_flatten(value, is_leaf=lambda node: id(node) != own)
    if not spec.is_leaf():
        return zip(_names(value, len(parts)), parts, strict=True), spec.unflatten
    if dataclasses.is_dataclass(value) and not isinstance(value, type | dict):
        fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        named = [(f".{field}", getattr(value, field)) for field in fields]
        return named, lambda parts: _replaced(value, dict(zip(fields, parts, strict=True)))
    return None


def _steps(mapping: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    return [(f"[{key!r}]", part) for key, part in mapping.items()]


def _names(value: Any, count: int) -> list[str]:
    if isinstance(value, Mapping) and len(value) == count:
        return [f"[{key!r}]" for key in value]
    fields = getattr(value, "_fields", None)
    return [f".{field}" for field in fields] if fields else [f"[{i}]" for i in range(count)]


def _filled(mapping: Any, entries: dict[Any, Any]) -> Any:
    """Return a copy of a mapping with other entries."""
    made = copy.copy(mapping)
    made.data = entries
    return made


def _replaced(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return a copy of a dataclass, which may be frozen, with other values in its fields."""
    made = copy.copy(value)
    for name, part in fields.items():
        object.__setattr__(made, name, part)
    return made


def _sizes(value: Any, name: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the size of each value that is cut."""
    if isinstance(value, Chunk) and type(value.dim) is int:
        shape = getattr(value.value, "shape", None)
        if shape is not None and -len(shape) <= value.dim < len(shape):
            yield name, shape[value.dim]
        elif isinstance(value.value, list | tuple):
            yield name, len(value.value)
    elif isinstance(value, Tensor):
        if not value.is_nested and value.dim():
            yield name, value.shape[0]
    elif not isinstance(value, (Replicate, PackedSequence, *_CONSTANTS)):
        parts, _ = (None if _is_block_mask(value) else _children(value)) or ((), None)
        for step, part in parts:
            yield from _sizes(part, f"{name}{step}")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree, those in dataclasses and block masks too."""
    if isinstance(value, Tensor):
        yield value
    elif _is_block_mask(value):
        yield from (table for table in value.as_tuple() if isinstance(table, Tensor))
    elif not isinstance(value, _CONSTANTS):
        parts, _ = _children(value) or ((), None)
        for _, part in parts:
            yield from tensors_in(part)


def _is_block_mask(value: Any) -> bool:
    """True for a mask of flex_attention, whose module takes long to import."""
    module = sys.modules.get("torch.nn.attention.flex_attention")
    return module is not None and isinstance(value, module.BlockMask)


def _chunked(table: Tensor | None, count: int) -> Sequence[Tensor | None]:
    return [None] * count if table is None else table.chunk(count)


def _shifted(mask_mod: Callable[..., Tensor], first_sample: int) -> Callable[..., Tensor]:
    """Return a mask function that is given the indices of a micro-batch's own samples."""

    def shifted(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask_mod(sample + first_sample, head, query, key)

    return shifted
