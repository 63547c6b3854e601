"""The state that a module's code can change: attributes, containers, plain tensors, generators.

It is found by walking from the module over attributes, containers, the methods of its classes, and
the globals and closures that these name. Code of PyTorch, NumPy and Python itself is not entered.
"""

import functools
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_DICTIONARIES = (dict, OrderedDict, defaultdict)
CONTAINERS = (*_DICTIONARIES, list, set, deque)

# Larger containers hold data, such as a list of token ids.
_MOST_ENTRIES = 1 << 16
# Larger plain tensors are data or tables, too; a copy of each would not fit beside a model.
_MOST_COPIED_BYTES = 1 << 26
# So many objects are walked in about a second.
_MOST_OBJECTS = 1 << 18

_CLOSED = {*sys.stdlib_module_names, "torch", "numpy", "synth"} - {"__main__"}
MISSING = object()


class Place(Protocol):
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
        """See `Place`."""
        return list(_items(self.container))

    def put(self, value: list[Any]) -> None:
        """See `Place`."""
        self.container.clear()
        if type(self.container) in (list, deque):
            self.container.extend(value)
        else:
            self.container.update(value)

    def differs(self, value: list[Any]) -> bool:
        """See `Place`."""
        now = self.take()
        return len(now) != len(value) or any(map(_are_different, now, value))

    def has_new_meta_tensor(self, value: list[Any]) -> bool:
        """True if a tensor without data is in what the container did not hold before."""
        old = {id(part) for item in value for part in _parts_of(item)}
        new = [part for item in self.take() for part in _parts_of(item) if id(part) not in old]
        return any(isinstance(found, Tensor) and found.is_meta for found, _ in _Walk(new))


@dataclass(frozen=True, eq=False)
class Entry:
    """One value of a dictionary or a list, or an attribute of a module of Python's."""

    container: Any
    key: Any

    def take(self) -> Any:
        """See `Place`."""
        try:
            return self.container[self.key]
        except (KeyError, IndexError):
            return MISSING

    def put(self, value: Any) -> None:
        """See `Place`."""
        if value is MISSING:
            self.container.pop(self.key, None)
        else:
            self.container[self.key] = value

    def differs(self, value: Any) -> bool:
        """See `Place`."""
        return is_other(self.take(), value)


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute of a class, or what a closure holds (`cell_contents`)."""

    owner: Any
    name: str

    def take(self) -> Any:
        """See `Place`."""
        try:
            return getattr(self.owner, self.name)
        except ValueError:  # an empty cell
            return MISSING

    def put(self, value: Any) -> None:
        """See `Place`."""
        if value is not MISSING:
            setattr(self.owner, self.name, value)

    def differs(self, value: Any) -> bool:
        """See `Place`."""
        return is_other(self.take(), value)


@dataclass(frozen=True, eq=False)
class Values:
    """The numbers of a tensor that is no parameter and no buffer."""

    tensor: Tensor

    def take(self) -> Tensor:
        """See `Place`."""
        return self.tensor.detach().clone()

    def put(self, value: Tensor) -> None:
        """See `Place`."""
        if self.differs(value):  # else autograd would take it for changed
            with torch.no_grad():
                self.tensor.copy_(value)

    def differs(self, value: Tensor) -> bool:
        """See `Place`."""
        return self.tensor.shape != value.shape or not torch.equal(_bits(self.tensor), _bits(value))


@dataclass(frozen=True, eq=False)
class Generator:
    """The state of a generator of random numbers, as `get` returns it and `put` takes it."""

    get: Callable[[], Any]
    put: Callable[[Any], None]

    def take(self) -> Any:
        """See `Place`."""
        return self.get()

    def differs(self, value: Any) -> bool:
        """See `Place`."""
        return not _are_equal(self.get(), value)


# The global generators are bound methods, which no program replaces.
PYTHON_RANDOM = Generator(random.getstate, random.setstate)
NUMPY_RANDOM = Generator(np.random.get_state, np.random.set_state)


def find_places(*roots: Any) -> list[Place]:
    """Find the places that code of modules and functions can change.

    Parameters and buffers are left out, and so are tensors of more than 64 MiB.
    """
    modules = [root for root in roots if isinstance(root, nn.Module)]
    kept = [vars(part) for module in modules for part in module.modules()]
    registries = [own[name] for own in kept for name in _REGISTRIES if type(own.get(name)) is dict]
    code = [type(part) for module in modules for part in module.modules()]
    others = [root for root in roots if not isinstance(root, nn.Module)]
    buffers = {id(buffer) for module in modules for buffer in module.buffers()}
    found: list[Place] = []
    for value, is_foreign in _Walk([*kept, *registries, *code, *others]):
        found += _places_of(value, is_foreign, buffers)
    return found


class Snapshot:
    """All that a module's code can change, and the generators that all code shares."""

    def __init__(self, module: nn.Module) -> None:
        places = (PYTHON_RANDOM, NUMPY_RANDOM, *find_places(module))
        self._values = [(place, place.take()) for place in places]

    def put_back(self) -> None:
        """Restore it; of containers of a library's objects those with new tensors without data."""
        for place, value in self._values:
            if isinstance(place, Contents) and place.is_foreign:
                is_to_go = place.has_new_meta_tensor(value)
            else:
                is_to_go = place.differs(value)
            if is_to_go:
                place.put(value)


def is_plain(value: Any) -> bool:
    """True for numbers, texts, and tuples of them."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def is_other(now: Any, before: Any) -> bool:
    """True if it is another object, and no equal number or text."""
    return _are_different(now, before)


def _places_of(value: Any, is_foreign: bool, buffers: set[int]) -> Iterable[Place]:
    if type(value) in CONTAINERS:
        return [Contents(value, is_foreign)] if len(value) <= _MOST_ENTRIES else []
    if isinstance(value, Entry | Attribute):
        return [value]
    if isinstance(value, Tensor):
        return [Values(value)] if _is_plain_tensor(value) and id(value) not in buffers else []
    if isinstance(value, torch.Generator):
        return [Generator(lambda: _torch_state(value), lambda s: _put_torch_state(value, s))]
    if isinstance(value, random.Random) and type(value) is not random.SystemRandom:
        return [Generator(value.getstate, value.setstate)]
    if isinstance(value, np.random.RandomState):
        return [Generator(value.get_state, value.set_state)]
    if isinstance(value, np.random.Generator):
        return _places_of(value.bit_generator, is_foreign, buffers)
    if isinstance(value, np.random.BitGenerator):
        return [Generator(lambda: value.state, lambda state: setattr(value, "state", state))]
    if value is random:
        return [PYTHON_RANDOM]
    return [NUMPY_RANDOM] if value is np.random else []


def _is_plain_tensor(tensor: Tensor) -> bool:
    small = tensor.numel() * tensor.element_size() <= _MOST_COPIED_BYTES
    dense = type(tensor) is Tensor and tensor.layout == torch.strided and not tensor.is_quantized
    return small and dense and not tensor.is_meta and not tensor.requires_grad


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def _torch_state(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _put_torch_state(generator: torch.Generator, state: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


class _Walk:
    """Yields some values and all that code can reach from them, once each.

    With each comes whether a library's object has it. Modules are not entered.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._waiting = deque((root, False) for root in roots)
        self._seen: dict[int, Any] = {}  # which keeps them alive, so that ids stay theirs
        self._names: set[tuple[int, str]] = set()

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        while self._waiting and len(self._seen) < _MOST_OBJECTS:
            value, is_foreign = self._waiting.popleft()
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            yield value, is_foreign
            is_foreign = is_foreign or _is_object_of_library(value)
            self._waiting += [(part, is_foreign) for part in self._inside(value)]

    def _inside(self, value: Any) -> Iterable[Any]:
        if type(value) in _DICTIONARIES:
            return tuple(value.values()) if len(value) <= _MOST_ENTRIES else ()
        if type(value) in CONTAINERS or isinstance(value, tuple):
            return tuple(value) if len(value) <= _MOST_ENTRIES else ()
        if isinstance(value, Entry | Attribute):
            return (value.take(),)
        if isinstance(value, type):
            return self._of_class(value)
        if isinstance(value, FunctionType):
            return () if _is_closed(value.__module__) else self._of_function(value)
        if isinstance(value, MethodType | BuiltinFunctionType):
            return (value.__self__, getattr(value, "__func__", None))
        if isinstance(value, functools.partial):
            return (value.func, value.args, value.keywords)
        if isinstance(value, nn.Module | Tensor | ModuleType):
            return ()
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return ()
        return (attributes, type(value)) if type(attributes) is dict else ()

    def _of_class(self, kind: type) -> Iterator[Any]:
        """Its methods, and the numbers that it has."""
        for base in kind.__mro__:
            if _is_closed(base.__module__):
                continue
            for name, member in vars(base).items():
                if name.startswith("__") and not isinstance(member, FunctionType):
                    continue
                if isinstance(member, staticmethod | classmethod):
                    yield member.__func__
                elif isinstance(member, property):
                    yield member.fget
                elif is_plain(member):
                    yield Attribute(base, name)
                else:
                    yield member

    def _of_function(self, function: FunctionType) -> Iterator[Any]:
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
        yield vars(function)
        for cell in function.__closure__ or ():
            yield from self._of_cell(cell)
        for name in _names_in(function.__code__):
            yield from self._of_name(name, function)

    def _of_cell(self, cell: CellType) -> Iterator[Any]:
        place = Attribute(cell, "cell_contents")
        if place.take() is not MISSING:
            yield place

    def _of_name(self, name: str, function: FunctionType) -> Iterator[Any]:
        """A global, and what the function may mean by an attribute of a module that it names."""
        space = function.__globals__
        if name == "random" and name not in space:
            yield random  # imported inside the function
        if name not in space or (id(space), name) in self._names:
            return
        self._names.add((id(space), name))
        value = space[name]
        if value is np:
            yield np.random
        elif isinstance(value, ModuleType) and not _is_closed(value.__name__):
            for attribute in _names_in(function.__code__):
                if attribute in vars(value):
                    yield Entry(vars(value), attribute)
        else:
            yield Entry(space, name)


def _names_in(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function's code, and in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_closed(name: str | None) -> bool:
    """True if a module is not entered."""
    return name is None or name.partition(".")[0] in _CLOSED


def _is_object_of_library(value: Any) -> bool:
    known = (*CONTAINERS, tuple, type, FunctionType, MethodType, BuiltinFunctionType)
    return not isinstance(value, (*known, Entry, Attribute)) and _is_closed(type(value).__module__)


def _items(container: Any) -> Any:
    return container.items() if type(container) in _DICTIONARIES else container


def _parts_of(item: Any) -> tuple[Any, ...]:
    return item if isinstance(item, tuple) else (item,)


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
