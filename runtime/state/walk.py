"""Walks over all that code of modules and functions can reach: objects, containers, generators.

The walk goes over attributes, containers, the methods of classes, and the globals and closures that
these name. Code of PyTorch, NumPy and Python itself is not entered. Of code of other installed
packages only random generators are found: its other globals may belong to threads of its own.
"""

import functools
import gc
import opcode
import random
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.units import format_bytes

from .comparison import MISSING, is_plain
from .places import CONTAINERS, Attribute, ClassAttributes, StateItem, StatePlace, TupleItem

# Larger containers hold data, such as a list of token ids.
MOST_ENTRIES = 1 << 16
# So many objects are walked in a few seconds.
MOST_OBJECTS = 1 << 20

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_PYTHON = frozenset(sys.stdlib_module_names) - {"__main__"}
_CLOSED = _PYTHON | {"torch", "numpy", "synth"}
# Objects of these are machinery that the threads of a process share.
_MACHINERY = frozenset(
    {"torch", "numpy", "asyncio", "concurrent", "importlib", "logging", "multiprocessing"}
)
# What built-in objects of these modules hold is seen by the garbage collector alone.
_OPAQUE = frozenset({"builtins", "itertools", "functools", "collections", "_collections", "types"})
_STORE_GLOBAL = opcode.opmap["STORE_GLOBAL"]
_SEQUENCES = (*CONTAINERS, tuple, frozenset)
_BUILTIN_CONTAINERS = frozenset({*_SEQUENCES, OrderedDict, defaultdict})

# How a holder's name and a key's make the name of a part.
_ITEM, _ATTRIBUTE, _NAMESPACE, _HIDDEN = "[", ".", "vars", ""
WATCHED_REGISTRIES = frozenset({"_modules", "_buffers"})
# Registries whose own entries are not watched: hooks, and parameters, which wrappers replace.
UNWATCHED_REGISTRIES = (
    frozenset(k for k, v in vars(nn.Module()).items() if isinstance(v, dict | set))
    - WATCHED_REGISTRIES
)
_NAMESPACES = WATCHED_REGISTRIES | {"_parameters"}
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})

_Part = tuple[Any, Any, str]


class Way(NamedTuple):
    """How an object is reached: from a holder, whose own way comes before, by a key there."""

    before: "Way | None"
    holder: Any
    key: Any = ""
    mark: str = ""

    @property
    def name(self) -> str:
        """Where the object is, as in code."""
        start = "" if self.before is None else self.before.name
        if self.mark == _ITEM:
            return f"{start}[{self.key!r}]"
        own = str(self.key) if self.mark == _ATTRIBUTE or self.before is None else ""
        return f"{start}.{own}" if start and own else start or own

    @property
    def owner(self) -> StatePlace | None:
        """The place that holds it, if another object can be put there."""
        if isinstance(self.holder, StateItem | Attribute):
            return self.holder
        if isinstance(self.holder, dict | list):
            return StateItem(self.holder, self.key)
        above = self.before.owner if self.before and isinstance(self.holder, tuple) else None
        return None if above is None else TupleItem(above, self.key)


class ReachedObject(NamedTuple):
    """An object that code can reach.

    Attributes:
        value: the object; a `StateItem`, an `Attribute` or `ClassAttributes` stands for a place.
        is_foreign: True if an object of a library's has it.
        is_of_code: True if it is reached through a function or a class.
    """

    value: Any
    way: Way
    is_foreign: bool = False
    is_of_code: bool = False


class Gone:
    """Stands for an object that could not be kept, and raises an error when it is used."""

    def __init__(self, name: str, num_bytes: int) -> None:
        vars(self)["error"] = SynthError(
            f"a forward replaces {name}, and its recomputation reads what was there before, of "
            f"which {format_bytes(num_bytes)} were not kept: change a buffer (register_buffer) in "
            f"place, or do not recompute its layer"
        )

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise vars(self)["error"]

    __getattr__ = __setattr__ = __call__ = __iter__ = __len__ = __bool__ = _raise
    __getitem__ = __setitem__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = _raise
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = __neg__ = _raise
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = __rpow__ = _raise
    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, _: Any, __: Any, given: Any = (), named: Any = None) -> Any:
        next(x for x in (*given, *(named or {}).values()) if isinstance(x, Gone))._raise()


def root(value: Any, name: str) -> ReachedObject:
    """Begin a walk at an object."""
    return ReachedObject(value, Way(None, None, name))


class StateWalk:
    """Yields some objects and all that code can reach from them, once each.

    Tensors come once for each of their holders.
    """

    def __init__(
        self,
        roots: Iterable[ReachedObject],
        *,
        known: Collection[int] = (),
        is_passed_over: Callable[[Any, Any], bool] | None = None,
    ) -> None:
        """Begin at the roots.

        Args:
            known: the ids of objects that are not walked.
            is_passed_over: tells, given a holder and a key, that what is there is not walked.
        """
        self._waiting = deque(roots)
        self._known = known
        self.seen: dict[int, Any] = {}  # which keeps them alive, so that ids stay theirs
        self._names: set[tuple[int, str]] = set()
        self._classes: set[type] = set()
        self._is_passed_over = is_passed_over

    def add(self, roots: Iterable[ReachedObject]) -> None:
        """Add objects to begin at."""
        self._waiting.extend(roots)

    @property
    def is_complete(self) -> bool:
        """False if there are too many objects, so that some have been left out."""
        return not self._waiting

    def __iter__(self) -> Iterator[ReachedObject]:
        while self._waiting and len(self.seen) < MOST_OBJECTS:
            reached = self._waiting.popleft()
            value, _, is_foreign, is_of_code = reached
            if is_plain(value):
                continue
            if isinstance(value, Tensor):  # which may be an activation: it is not kept alive
                yield reached
                continue
            if id(value) in self.seen or id(value) in self._known:
                continue
            self.seen[id(value)] = value
            yield reached
            is_of_code = is_of_code or isinstance(value, FunctionType | type)
            is_foreign = is_foreign or _is_object_of_library(value, is_of_code)
            inside = self.inside(ReachedObject(value, reached.way, is_foreign, is_of_code))
            passes = self._is_passed_over
            self._waiting += (
                inside
                if passes is None
                else (part for part in inside if not passes(value, part.way.key))
            )

    def inside(self, reached: ReachedObject) -> Iterator[ReachedObject]:
        """What an object holds directly."""
        value, way, is_foreign, is_of_code = reached
        for key, part, mark in self._inside(value, way.mark):
            kind = type(part)
            if kind not in _PLAIN and not (kind is nn.Parameter and part.requires_grad):
                yield ReachedObject(part, Way(way, value, key, mark), is_foreign, is_of_code)

    def _inside(self, value: Any, mark: str) -> Iterable[_Part]:
        if isinstance(value, nn.Module):
            return [("", vars(value), _NAMESPACE), ("", type(value), "")]
        if isinstance(value, dict):
            return [*_entries_of(value, mark), *_of_subclass(value)]
        if isinstance(value, _SEQUENCES):
            few = len(value) <= MOST_ENTRIES
            items = [(i, part, _ITEM) for i, part in enumerate(value)] if few else []
            return [*items, *_of_subclass(value)]
        if isinstance(value, StateItem | Attribute):
            return [("", value.take(), "")]
        if isinstance(value, ClassAttributes):
            return [(name, part, _ATTRIBUTE) for name, part in value.take().items()]
        if isinstance(value, type):
            return [("", part, "") for part in self._of_class(value)]
        if isinstance(value, FunctionType):
            return () if is_closed(value.__module__) else self._of_function(value)
        if isinstance(value, np.random.Generator):
            return [("", value.bit_generator, "")]
        if isinstance(value, ContextVar):
            return [("", value.get(None), "")]
        if isinstance(value, ModuleType | CodeType) or _package(value) == "synth":
            return ()
        if isinstance(value, np.ndarray):
            return [(i, part, _ITEM) for i, part in enumerate(value.flat)] if _holds(value) else ()
        return _attributes_of(value)

    def _of_class(self, kind: type) -> Iterator[Any]:
        """Its methods, and what it has besides."""
        for base in kind.__mro__:
            if is_closed(base.__module__) or issubclass(kind, Enum) or base in self._classes:
                continue
            self._classes.add(base)
            if not _is_installed(base.__module__):
                yield ClassAttributes(base)
            for member in list(vars(base).values()):
                if isinstance(member, staticmethod | classmethod):
                    yield member.__func__
                elif isinstance(member, property):
                    yield member.fget
                elif isinstance(member, FunctionType):
                    yield member

    def _of_function(self, function: FunctionType) -> Iterator[_Part]:
        if _is_installed(function.__module__):
            yield from (("", part, "") for part in _generators_of(function))
            return
        for part in (function.__defaults__, function.__kwdefaults__, vars(function)):
            yield "", part, ""
        code, space = function.__code__, function.__globals__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            place = Attribute(cell, "cell_contents")
            if place.take() is not MISSING:
                yield name, place, _ATTRIBUTE
        for name in sorted({name for part in _codes(code) for name in part.co_names}):
            if (id(space), name) not in self._names:
                self._names.add((id(space), name))
                yield from ((name, part, _ATTRIBUTE) for part in _of_name(name, function))


def _of_name(name: str, function: FunctionType) -> Iterator[Any]:
    """A global, and what the function may mean by an attribute of a module that it names."""
    space, codes = function.__globals__, list(_codes(function.__code__))
    value = space.get(name, MISSING)
    if value is MISSING:
        if name == "random":
            yield random  # imported inside the function
        if any(_may_store(code) and name in code.co_names for code in codes):
            yield StateItem(space, name)
    elif not isinstance(value, ModuleType):
        yield StateItem(space, name)
    elif value is random or value is np.random:
        yield value
    elif value is np:
        yield np.random
    elif not is_closed(value.__name__) and not _is_installed(value.__name__):
        for attribute in sorted({name for code in codes for name in code.co_names}):
            if attribute in vars(value):
                yield StateItem(vars(value), attribute)


def _may_store(code: CodeType) -> bool:
    """True if it assigns to a global, perhaps to one that does not exist yet."""
    return _STORE_GLOBAL in code.co_code[::2]


def _entries_of(value: dict[Any, Any], mark: str) -> list[_Part]:
    if len(value) > MOST_ENTRIES:
        return []
    entries = list(dict.items(value))
    if mark != _NAMESPACE:
        return [(key, part, _ITEM) for key, part in entries]
    return [
        (key, part, _NAMESPACE if key in _NAMESPACES else _ATTRIBUTE)
        for key, part in entries
        if key not in UNWATCHED_REGISTRIES or part
    ]


def _of_subclass(value: Any) -> Iterable[_Part]:
    return () if type(value) in _BUILTIN_CONTAINERS else _attributes_of(value)


def _attributes_of(value: Any) -> list[_Part]:
    """Return an object's attributes, its slots and its class; of built-in ones what they hold."""
    kind = type(value)
    found: list[_Part] = [(name, Attribute(value, name), _ATTRIBUTE) for name in _slots_of(kind)]
    if isinstance(value, threading.local):
        found.append(("", vars(value), _NAMESPACE))
    else:
        try:
            attributes = object.__getattribute__(value, "__dict__")
            found.append(("", attributes, _NAMESPACE))
        except AttributeError:
            pass
    if is_closed(kind.__module__):
        inside = kind.__module__ in _OPAQUE and gc.is_tracked(value)
        parts = gc.get_referents(value) if inside else ()
        return [*found, *(("", x, "") for x in parts if not isinstance(x, type | ModuleType))]
    return [*found, ("", kind, "")]


def _slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        members = () if is_closed(base.__module__) else vars(base).items()
        yield from (name for name, member in members if isinstance(member, MemberDescriptorType))


def _generators_of(function: FunctionType) -> Iterator[Any]:
    """The random generators that a function names, and functions of its package, which may too."""
    space, cells = function.__globals__, function.__closure__ or ()
    names = function.__code__.co_names
    named = [space.get(name, random if name == "random" else None) for name in names]
    for value in [*named, *(Attribute(cell, "cell_contents").take() for cell in cells)]:
        is_near = isinstance(value, FunctionType) and _package(value) == _package(function)
        if value is np:
            yield np.random
        elif is_near or isinstance(value, _GENERATORS) or value is random or value is np.random:
            yield value


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _holds(values: "np.ndarray[Any, Any]") -> bool:
    return values.dtype.hasobject and values.size <= MOST_ENTRIES


def _package(value: Any) -> str:
    """The top package of a function, or of an object's class."""
    of = value if isinstance(value, FunctionType) else type(value)
    return (of.__module__ or "").partition(".")[0]


def is_closed(name: str | None) -> bool:
    """True if a module is not entered."""
    return name is None or name.partition(".")[0] in _CLOSED


@functools.cache
def _is_installed(name: str | None) -> bool:
    """True if a module is of an installed package."""
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return file is not None and not _INSTALLED.isdisjoint(Path(file).parts)


def _is_object_of_library(value: Any, is_of_code: bool) -> bool:
    if isinstance(value, nn.Module | type | FunctionType):
        return False
    return _package(value) in _MACHINERY or (is_of_code and _is_installed(type(value).__module__))
