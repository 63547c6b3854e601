"""Places in a program's memory: containers, entries, attributes, numbers of tensors, generators."""

import itertools
import operator
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from synth.errors import SynthError

DICTIONARIES = (dict, OrderedDict, defaultdict)
CONTAINERS = (*DICTIONARIES, list, set, deque)
ITERATORS: tuple[type, ...] = (
    GeneratorType,
    itertools.count,
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
)
MISSING = object()


class StatePlace(Protocol):
    """A place in the memory of a program, whose value can be taken and put back."""

    def take(self) -> Any:
        """Return the value, as later changes do not reach it."""
        ...

    def put(self, value: Any) -> None:
        """Put a value back."""
        ...

    def differs(self, value: Any) -> bool:
        """True if the place has another value than this one."""
        ...


@dataclass(frozen=True, eq=False)
class Contents:
    """All of a container; `is_foreign` if a class of a library has it."""

    container: Any
    is_foreign: bool = False

    def take(self) -> list[Any]:
        """See `StatePlace`."""
        return list(_items(self.container))

    def put(self, value: list[Any]) -> None:
        """See `StatePlace`."""
        self.container.clear()
        if type(self.container) in (list, deque):
            self.container.extend(value)
        else:
            self.container.update(value)

    def differs(self, value: list[Any]) -> bool:
        """See `StatePlace`."""
        now = self.take()
        return len(now) != len(value) or any(map(_are_different, now, value))


@dataclass(frozen=True, eq=False)
class StateItem:
    """One value of a dictionary or a list, or an attribute of a module of Python's."""

    container: Any
    key: Any

    def take(self) -> Any:
        """See `StatePlace`."""
        try:
            return self.container[self.key]
        except (KeyError, IndexError):
            return MISSING

    def put(self, value: Any) -> None:
        """See `StatePlace`."""
        if value is MISSING:
            self.container.pop(self.key, None)
        else:
            self.container[self.key] = value

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return is_other(self.take(), value)


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute of a class, a slot of an object, or what a closure holds (`cell_contents`)."""

    owner: Any
    name: str

    def take(self) -> Any:
        """See `StatePlace`."""
        if isinstance(self.owner, type):
            return vars(self.owner).get(self.name, MISSING)
        try:
            return getattr(self.owner, self.name)
        except (AttributeError, ValueError):  # an empty slot or cell
            return MISSING

    def put(self, value: Any) -> None:
        """See `StatePlace`."""
        if value is not MISSING:
            setattr(self.owner, self.name, value)

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return is_other(self.take(), value)


@dataclass(frozen=True, eq=False)
class TensorValues:
    """The numbers of a tensor that is no parameter and no buffer."""

    tensor: Tensor

    def take(self) -> Tensor:
        """See `StatePlace`."""
        return self.tensor.detach().clone()

    def put(self, value: Tensor) -> None:
        """See `StatePlace`."""
        if self.differs(value):  # else autograd would take it for changed
            with torch.no_grad():
                self.tensor.copy_(value)

    def differs(self, value: Tensor) -> bool:
        """See `StatePlace`."""
        return self.tensor.shape != value.shape or not torch.equal(_bits(self.tensor), _bits(value))


@dataclass(frozen=True, eq=False)
class ArrayValues:
    """The numbers of a NumPy array."""

    array: "np.ndarray[Any, Any]"

    def take(self) -> Any:
        """See `StatePlace`."""
        return self.array.copy()

    def put(self, value: Any) -> None:
        """See `StatePlace`."""
        self.array[...] = value

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return bool(self.array.tobytes() != value.tobytes())


@dataclass(frozen=True, eq=False)
class Progress:
    """The position of an iterator, which can be noticed and not put back."""

    iterator: Any

    def take(self) -> Any:
        """See `StatePlace`."""
        if isinstance(self.iterator, GeneratorType):
            frame = self.iterator.gi_frame
            values = [] if frame is None else [v for v in frame.f_locals.values() if is_plain(v)]
            return None if frame is None else (frame.f_lasti, tuple(values))
        if isinstance(self.iterator, itertools.count):
            return repr(self.iterator)
        return operator.length_hint(self.iterator)

    def put(self, value: Any) -> None:
        """Raise an error.

        Raises:
            SynthError: always.
        """
        raise SynthError(
            f"a forward takes the next value of an iterator ({type(self.iterator).__name__}), "
            f"which cannot be rewound after a trial, or for a recomputation: keep a list and the "
            f"number of its next value in the module"
        )

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return bool(self.take() != value)


@dataclass(frozen=True, eq=False)
class Generator:
    """The state of a generator of random numbers, as `get` returns it and `put` takes it."""

    get: Callable[[], Any]
    put: Callable[[Any], None]

    def take(self) -> Any:
        """See `StatePlace`."""
        return self.get()

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return not _are_equal(self.get(), value)


# The global generators are bound methods, which no program replaces.
PYTHON_RANDOM = Generator(random.getstate, random.setstate)
NUMPY_RANDOM = Generator(np.random.get_state, np.random.set_state)


def is_plain(value: Any) -> bool:
    """True for numbers, texts, and tuples of them."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def is_other(now: Any, before: Any) -> bool:
    """True if it is another object, and no equal number or text."""
    return _are_different(now, before)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def _items(container: Any) -> Any:
    return container.items() if type(container) in DICTIONARIES else container


def _are_different(now: Any, before: Any) -> bool:
    if now is before:
        return False
    if type(now) is tuple and type(before) is tuple and len(now) == len(before):
        return any(map(_are_different, now, before))
    return not (is_plain(now) and type(now) is type(before) and now == before)


def _are_equal(one: Any, other: Any) -> bool:
    """Compare states of generators: trees of numbers and arrays."""
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return all(_are_equal(one[key], other[key]) for key in one)
    if type(one) is tuple and any(isinstance(part, np.ndarray) for part in one):
        return all(map(_are_equal, one, other))
    return bool(one == other)
