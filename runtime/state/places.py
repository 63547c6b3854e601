"""Places in a program's memory: containers, attributes, numbers, generators, positions."""

import io
import itertools
import operator
import random
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Protocol

import numpy as np

from synth.errors import SynthError

CONTAINERS = (dict, list, set, deque)
MISSING = object()


class StatePlace(Protocol):
    """A place in the memory of a program, whose value can be taken and put back."""

    def take(self) -> Any:
        """Return the value, as later changes do not reach it."""
        ...

    def put(self, value: Any) -> None:
        """Put a value back.

        Raises:
            SynthError: this place has changed, and cannot be put back.
        """
        ...

    def differs(self, value: Any) -> bool:
        """True if the place has another value than this one."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Entries:
    """The entries of a dictionary, in order; of a subclass, those of the class it extends.

    Attributes:
        container: the dictionary.
        left_out: a key whose entry is no part of the value.
    """

    container: Any
    left_out: str | None = None

    def take(self) -> dict[Any, Any]:
        """See `StatePlace`."""
        entries = dict(self._class.items(self.container))
        entries.pop(self.left_out, None)
        return entries

    def put(self, value: dict[Any, Any]) -> None:
        """See `StatePlace`."""
        kind, container, now = self._class, self.container, self.take()
        if list(now) != list(value):
            for key in now:
                kind.__delitem__(container, key)
            now = {}
        for key, entry in value.items():
            if now.get(key, MISSING) is not entry:
                kind.__setitem__(container, key, entry)

    def differs(self, value: dict[Any, Any]) -> bool:
        """See `StatePlace`."""
        now = self.container
        if len(now) == len(value) and (
            not now
            or (
                all(map(operator.is_, dict.values(now), value.values()))
                and all(map(operator.is_, now, value))
            )
        ):
            return False
        now = self.take()
        return list(now) != list(value) or bool(_changed_keys(now, value))

    def changed(self, value: dict[Any, Any]) -> list[Any]:
        """Return the keys whose entry is another one than in this value."""
        return _changed_keys(self.take(), value)

    @property
    def _class(self) -> Any:
        return OrderedDict if isinstance(self.container, OrderedDict) else dict


@dataclass(frozen=True, eq=False, slots=True)
class Items:
    """The items of a list, a deque or a set."""

    container: Any

    def take(self) -> list[Any]:
        """See `StatePlace`."""
        return list(self._class.__iter__(self.container))

    def put(self, value: list[Any]) -> None:
        """See `StatePlace`."""
        if isinstance(self.container, list):
            list.__setitem__(self.container, slice(None), value)
        elif isinstance(self.container, deque):
            deque.clear(self.container)
            deque.extend(self.container, value)
        else:
            set.intersection_update(self.container, value)
            set.update(self.container, value)

    def refuse_loss(self, value: list[Any]) -> None:
        """Raise an error if it is a set that has lost an element, whose order is lost too.

        Raises:
            SynthError: it has.
        """
        if isinstance(self.container, set) and not set.issuperset(self.container, value):
            raise SynthError(
                "a forward takes elements out of a set, whose order cannot be put back for a "
                "recomputation, or after a trial: keep a list in its place"
            )

    def differs(self, value: list[Any]) -> bool:
        """See `StatePlace`."""
        now = self.container
        return len(now) != len(value) or any(map(are_different, self._class.__iter__(now), value))

    @property
    def _class(self) -> Any:
        return next(kind for kind in (list, deque, set) if isinstance(self.container, kind))


@dataclass(frozen=True, eq=False, slots=True)
class Length:
    """The length of a container with so many entries that no copy is taken."""

    container: Any

    def take(self) -> int:
        """See `StatePlace`."""
        return len(self.container)

    def put(self, value: int) -> None:
        """See `StatePlace`."""
        if self.differs(value):
            raise SynthError(
                f"a forward changes the length of a {type(self.container).__name__} of "
                f"{len(self.container)} entries, of which no copy is taken for a recomputation, or "
                f"a trial: keep a tensor or an array in its place"
            )

    def differs(self, value: int) -> bool:
        """See `StatePlace`."""
        return len(self.container) != value


@dataclass(frozen=True, eq=False, slots=True)
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
        return are_different(self.take(), value)


@dataclass(frozen=True, eq=False, slots=True)
class Attribute:
    """A slot of an object, or what a closure holds (`cell_contents`)."""

    owner: Any
    name: str

    def take(self) -> Any:
        """See `StatePlace`."""
        try:
            return getattr(self.owner, self.name)
        except (AttributeError, ValueError):  # an empty slot or cell
            return MISSING

    def put(self, value: Any) -> None:
        """See `StatePlace`."""
        if value is not MISSING:  # also of a frozen class
            object.__setattr__(self.owner, self.name, value)
        elif self.take() is not MISSING:
            object.__delattr__(self.owner, self.name)

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return are_different(self.take(), value)


@dataclass(frozen=True, eq=False, slots=True)
class TupleItem:
    """An item of a tuple, which is another one after a change; `owner` is the tuple's place."""

    owner: StatePlace
    index: int

    def take(self) -> Any:
        """See `StatePlace`."""
        whole = self.owner.take()
        is_there = isinstance(whole, tuple) and self.index < len(whole)
        return whole[self.index] if is_there else MISSING

    def put(self, value: Any) -> None:
        """See `StatePlace`."""
        whole = self.owner.take()
        items = [*whole[: self.index], value, *whole[self.index + 1 :]]
        self.owner.put(whole._make(items) if hasattr(whole, "_make") else type(whole)(items))

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return are_different(self.take(), value)


@dataclass(frozen=True, eq=False, slots=True)
class ClassAttributes:
    """The attributes of a class, but for those of Python's own."""

    owner: type

    def take(self) -> dict[str, Any]:
        """See `StatePlace`."""
        return {k: v for k, v in vars(self.owner).items() if not k.startswith("__")}

    def put(self, value: dict[str, Any]) -> None:
        """See `StatePlace`."""
        for name in self.changed(value):
            if name in value:
                setattr(self.owner, name, value[name])
            else:
                delattr(self.owner, name)

    def differs(self, value: dict[str, Any]) -> bool:
        """See `StatePlace`."""
        return bool(self.changed(value))

    def changed(self, value: dict[str, Any]) -> list[str]:
        """Return the names whose attribute is another one than in this value."""
        return _changed_keys(self.take(), value)


@dataclass(frozen=True, eq=False, slots=True)
class Variable:
    """The value of a context variable."""

    variable: ContextVar[Any]

    def take(self) -> Any:
        """See `StatePlace`."""
        return self.variable.get(MISSING)

    def put(self, value: Any) -> None:
        """See `StatePlace`."""
        if value is not MISSING:
            self.variable.set(value)
        elif self.take() is not MISSING:
            try:
                self.variable.set(Context().run(self.variable.get))  # its default
            except LookupError as error:
                raise SynthError(
                    f"a forward sets the context variable {self.variable.name!r}, which had no "
                    f"value: set it before the first step, or give it a default"
                ) from error

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return are_different(self.take(), value)


@dataclass(frozen=True, eq=False, slots=True)
class Progress:
    """The position of an iterator or of a file, which can be noticed and not put back."""

    iterator: Any

    def take(self) -> Any:
        """See `StatePlace`."""
        return _position(self.iterator)

    def put(self, value: Any) -> None:
        """See `StatePlace`."""
        if self.differs(value):
            raise SynthError(
                f"a forward takes the next value of an iterator ({type(self.iterator).__name__}), "
                f"which cannot be rewound after a trial, or for a recomputation: keep a list and "
                f"the number of its next value in the module"
            )

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return bool(self.take() != value)


@dataclass(frozen=True, eq=False, slots=True)
class Generator:
    """The state of a generator of random numbers, as `get` returns it and `put` takes it."""

    source: Any
    get: Callable[[], Any]
    put: Callable[[Any], None]

    def take(self) -> Any:
        """See `StatePlace`."""
        return self.get()

    def differs(self, value: Any) -> bool:
        """See `StatePlace`."""
        return not are_equal_states(self.get(), value)


# The global generators are bound methods, which no program replaces.
PYTHON_RANDOM = Generator(random, random.getstate, random.setstate)
NUMPY_RANDOM = Generator(np.random, np.random.get_state, np.random.set_state)


def is_plain(value: Any) -> bool:
    """True for numbers, texts, and tuples of them."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def are_different(now: Any, before: Any) -> bool:
    """True if it is another object, and no equal number or text."""
    if now is before:
        return False
    if type(now) is tuple and type(before) is tuple and len(now) == len(before):
        return any(map(are_different, now, before))
    return not (is_plain(now) and type(now) is type(before) and now == before)


def are_equal_states(one: Any, other: Any) -> bool:
    """Compare states of generators: trees of numbers and arrays."""
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return all(are_equal_states(one[key], other[key]) for key in one)
    is_tuple = type(one) is tuple and any(isinstance(part, np.ndarray) for part in one)
    if is_tuple or isinstance(one, list):
        return len(one) == len(other) and all(map(are_equal_states, one, other))
    return bool(one == other)


def _changed_keys(now: dict[Any, Any], before: dict[Any, Any]) -> list[Any]:
    other = [key for key, old in before.items() if are_different(now.get(key, MISSING), old)]
    return [*other, *(key for key in now if key not in before)]


def _position(iterator: Any) -> Any:
    """Return what changes when the next value is taken; None if nothing shows it."""
    if isinstance(iterator, GeneratorType):
        frame = iterator.gi_frame
        if frame is None:
            return "ended"
        return frame.f_lasti, tuple(v for v in frame.f_locals.values() if is_plain(v))
    if isinstance(iterator, io.IOBase):
        return _place_in_file(iterator)
    if isinstance(iterator, itertools.count):
        return repr(iterator)
    is_counted = hasattr(iterator, "__length_hint__") and not hasattr(iterator, "__setstate__")
    if is_counted:
        return operator.length_hint(iterator)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            made = iterator.__reduce__()
    except TypeError:
        return None
    return _positions(made[1:])


def _positions(parts: Sequence[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for part in parts:
        if isinstance(part, tuple):
            found.append(_positions(part) if not is_plain(part) else part)
        elif is_plain(part):
            found.append(part)
        elif hasattr(part, "__next__"):
            found.append(_position(part) if _is_builtin(part) else None)
    return tuple(found)


def _is_builtin(iterator: Any) -> bool:
    return type(iterator).__module__ in ("builtins", "itertools", "_collections")


def _place_in_file(file: Any) -> Any:
    try:
        return file.tell() if file.readable() else None
    except (OSError, ValueError):
        return None
