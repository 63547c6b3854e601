"""The state that a module's code can change: attributes, containers, plain tensors, generators.

It is found by walking from the module over attributes, containers, the methods of its classes, and
the globals and closures that these name. Code of PyTorch, NumPy and Python itself is not entered.
Of code of other installed packages only random generators are found: its other globals may belong
to threads of its own.
"""

import functools
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .state_places import (
    CONTAINERS,
    DICTIONARIES,
    ITERATORS,
    MISSING,
    NUMPY_RANDOM,
    PYTHON_RANDOM,
    ArrayValues,
    Attribute,
    Contents,
    Generator,
    Progress,
    StateItem,
    StatePlace,
    TensorValues,
    is_plain,
)

_REGISTRIES = ("_parameters", "_buffers", "_modules")

# Larger containers hold data, such as a list of token ids.
_MOST_ENTRIES = 1 << 16
# Larger plain tensors are data or tables, too; a copy of each would not fit beside a model.
_MOST_COPIED_BYTES = 1 << 26
# So many objects are walked in about a second.
_MOST_OBJECTS = 1 << 18

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)

_CLOSED = {*sys.stdlib_module_names, "torch", "numpy", "synth"} - {"__main__"}


def find_places(*roots: Any) -> list[StatePlace]:
    """Find the places that code of modules and functions can change.

    Parameters and buffers are left out, and so are tensors of more than 64 MiB.
    """
    modules = [root for root in roots if isinstance(root, nn.Module)]
    kept = [vars(part) for module in modules for part in module.modules()]
    registries = [own[name] for own in kept for name in _REGISTRIES if type(own.get(name)) is dict]
    code = [type(part) for module in modules for part in module.modules()]
    others = [root for root in roots if not isinstance(root, nn.Module)]
    buffers = {id(buffer) for module in modules for buffer in module.buffers()}
    found: list[StatePlace] = []
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
                is_to_go = _has_new_meta_tensor(place, value)
            else:
                is_to_go = place.differs(value)
            if is_to_go:
                place.put(value)


def _has_new_meta_tensor(contents: Contents, before: list[Any]) -> bool:
    """True if a tensor without data is in what a container did not hold before."""
    old = {id(part) for item in before for part in _parts_of(item)}
    new = [part for item in contents.take() for part in _parts_of(item) if id(part) not in old]
    return any(isinstance(found, Tensor) and found.is_meta for found, _ in _Walk(new))


def _places_of(value: Any, is_foreign: bool, buffers: set[int]) -> Iterable[StatePlace]:
    if type(value) in CONTAINERS:
        return [Contents(value, is_foreign)] if len(value) <= _MOST_ENTRIES else []
    if isinstance(value, StateItem | Attribute | Tensor | np.ndarray | Iterator):
        return [] if is_foreign or id(value) in buffers else _place_of_value(value)
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


def _place_of_value(value: Any) -> Iterable[StatePlace]:
    if isinstance(value, StateItem | Attribute):
        return [value]
    if isinstance(value, Tensor):
        return [TensorValues(value)] if _is_plain_tensor(value) else []
    if isinstance(value, Iterator):
        return [Progress(value)] if type(value) in ITERATORS else []
    is_small = value.nbytes <= _MOST_COPIED_BYTES and not value.dtype.hasobject
    return [ArrayValues(value)] if is_small and value.flags.writeable else []


def _is_plain_tensor(tensor: Tensor) -> bool:
    small = tensor.numel() * tensor.element_size() <= _MOST_COPIED_BYTES
    dense = type(tensor) is Tensor and tensor.layout == torch.strided and not tensor.is_quantized
    return small and dense and not tensor.is_meta and not tensor.requires_grad


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
        if type(value) in DICTIONARIES:
            return tuple(value.values()) if len(value) <= _MOST_ENTRIES else ()
        if type(value) in CONTAINERS or isinstance(value, tuple):
            return tuple(value) if len(value) <= _MOST_ENTRIES else ()
        if isinstance(value, StateItem | Attribute):
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
        return _attributes_of(value)

    def _of_class(self, kind: type) -> Iterator[Any]:
        """Its methods, and what it has besides."""
        for base in kind.__mro__:
            if _is_closed(base.__module__) or issubclass(kind, Enum):
                continue
            is_own = not _is_installed(base.__module__)
            for name, member in list(vars(base).items()):
                if isinstance(member, staticmethod | classmethod):
                    yield member.__func__
                elif isinstance(member, property):
                    yield member.fget
                elif isinstance(member, FunctionType):
                    yield member
                elif is_own and not name.startswith("__"):
                    yield Attribute(base, name) if is_plain(member) else member

    def _of_function(self, function: FunctionType) -> Iterator[Any]:
        if _is_installed(function.__module__):
            yield from _generators_of(function)
            return
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
        elif _is_own_module(value):
            for attribute in _names_in(function.__code__):
                if attribute in vars(value):
                    yield StateItem(vars(value), attribute)
        else:
            yield StateItem(space, name)


def _generators_of(function: FunctionType) -> Iterator[Any]:
    """The random generators that a function names, and functions of its package, which may too."""
    space, cells = function.__globals__, function.__closure__ or ()
    names = function.__code__.co_names
    named = [space.get(name, random if name == "random" else None) for name in names]
    for value in [*named, *(Attribute(cell, "cell_contents").take() for cell in cells)]:
        if value is np:
            yield np.random
        elif (
            _is_random_module(value)
            or isinstance(value, _GENERATORS)
            or (isinstance(value, FunctionType) and _package(value) == _package(function))
        ):
            yield value


def _is_random_module(value: Any) -> bool:
    return value is random or value is np.random


def _package(function: FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]


def _attributes_of(value: Any) -> list[Any]:
    """Return an object's attributes, its slots and its class."""
    kind = type(value)
    if _is_closed(kind.__module__) and not hasattr(value, "__dict__"):
        return []
    slots = [Attribute(value, name) for name in _slots_of(kind)]
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return [*slots, kind]
    return [*slots, attributes, kind] if type(attributes) is dict else [*slots, kind]


def _slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        members = () if _is_closed(base.__module__) else vars(base).items()
        yield from (name for name, member in members if isinstance(member, MemberDescriptorType))


def _names_in(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function's code, and in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_closed(name: str | None) -> bool:
    """True if a module is not entered."""
    return name is None or name.partition(".")[0] in _CLOSED


@functools.cache
def _is_installed(name: str | None) -> bool:
    """True if a module is of an installed package."""
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return file is not None and not _INSTALLED.isdisjoint(Path(file).parts)


def _is_own_module(value: Any) -> bool:
    """True for a module of Python's that is the user's own."""
    if not isinstance(value, ModuleType):
        return False
    return not _is_closed(value.__name__) and not _is_installed(value.__name__)


def _is_object_of_library(value: Any) -> bool:
    known = (*CONTAINERS, tuple, type, FunctionType, MethodType, BuiltinFunctionType)
    if isinstance(value, (*known, StateItem, Attribute)):
        return False
    module = type(value).__module__
    return _is_closed(module) or _is_installed(module)


def _parts_of(item: Any) -> tuple[Any, ...]:
    return item if isinstance(item, tuple) else (item,)
