"""Places in a program's memory: containers, attributes, variables; each is a `StatePlace`."""

import operator
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from synth.errors import SynthError

from .comparison import MISSING, are_different, changed_keys

CONTAINERS = (dict, list, set, deque)


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
        left_out: a key whose entry is no part of the value.
    """

    container: Any
    left_out: str | None = None

    def take(self) -> dict[Any, Any]:
        entries = dict(self._class.items(self.container))
        entries.pop(self.left_out, None)
        return entries

    def put(self, value: dict[Any, Any]) -> None:
        kind, container, now = self._class, self.container, self.take()
        if list(now) != list(value):
            for key in now:
                kind.__delitem__(container, key)
            now = {}
        for key, entry in value.items():
            if now.get(key, MISSING) is not entry:
                kind.__setitem__(container, key, entry)

    def differs(self, value: dict[Any, Any]) -> bool:
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
        return list(now) != list(value) or bool(changed_keys(now, value))

    def changed(self, value: dict[Any, Any]) -> list[Any]:
        """Return the keys whose entry is another one than in this value."""
        return changed_keys(self.take(), value)

    @property
    def _class(self) -> Any:
        return OrderedDict if isinstance(self.container, OrderedDict) else dict


@dataclass(frozen=True, eq=False, slots=True)
class Items:
    """The items of a list, a deque or a set."""

    container: Any

    def take(self) -> list[Any]:
        return list(self._class.__iter__(self.container))

    def put(self, value: list[Any]) -> None:
        if isinstance(self.container, list):
            list.__setitem__(self.container, slice(None), value)
        elif isinstance(self.container, deque):
            deque.clear(self.container)
            deque.extend(self.container, value)
        else:
            set.intersection_update(self.container, value)
            set.update(self.container, value)

    def refuse_loss(self, value: list[Any]) -> None:
        """Raise an error if it is a set that has lost an element, whose order is lost too."""
        if isinstance(self.container, set) and not set.issuperset(self.container, value):
            raise SynthError(
                "a forward takes elements out of a set, whose order cannot be put back for a "
                "recomputation, or after a trial: keep a list in its place"
            )

    def differs(self, value: list[Any]) -> bool:
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
        return len(self.container)

    def put(self, value: int) -> None:
        if self.differs(value):
            raise SynthError(
                f"a forward changes the length of a {type(self.container).__name__} of "
                f"{len(self.container)} entries, of which no copy is taken for a recomputation, or "
                f"a trial: keep a tensor or an array in its place"
            )

    def differs(self, value: int) -> bool:
        return len(self.container) != value


class _OneValue(ABC):
    """A place of one value, which is compared by identity, or as a number or text."""

    __slots__ = ()

    @abstractmethod
    def take(self) -> Any: ...

    def differs(self, value: Any) -> bool:
        return are_different(self.take(), value)


@dataclass(frozen=True, eq=False, slots=True)
class StateItem(_OneValue):
    """One value of a dictionary or a list, or an attribute of a module of Python's."""

    container: Any
    key: Any

    def take(self) -> Any:
        try:
            return self.container[self.key]
        except (KeyError, IndexError):
            return MISSING

    def put(self, value: Any) -> None:
        if value is MISSING:
            self.container.pop(self.key, None)
        else:
            self.container[self.key] = value


@dataclass(frozen=True, eq=False, slots=True)
class Attribute(_OneValue):
    """A slot of an object, or what a closure holds (`cell_contents`)."""

    owner: Any
    name: str

    def take(self) -> Any:
        try:
            return getattr(self.owner, self.name)
        except (AttributeError, ValueError):  # an empty slot or cell
            return MISSING

    def put(self, value: Any) -> None:
        if value is not MISSING:  # also of a frozen class
            object.__setattr__(self.owner, self.name, value)
        elif self.take() is not MISSING:
            object.__delattr__(self.owner, self.name)


@dataclass(frozen=True, eq=False, slots=True)
class TupleItem(_OneValue):
    """An item of a tuple, which is another one after a change; `owner` is the tuple's place."""

    owner: StatePlace
    index: int

    def take(self) -> Any:
        whole = self.owner.take()
        is_there = isinstance(whole, tuple) and self.index < len(whole)
        return whole[self.index] if is_there else MISSING

    def put(self, value: Any) -> None:
        whole = self.owner.take()
        items = [*whole[: self.index], value, *whole[self.index + 1 :]]
        self.owner.put(whole._make(items) if hasattr(whole, "_make") else type(whole)(items))


@dataclass(frozen=True, eq=False, slots=True)
class ClassAttributes:
    """The attributes of a class, but for those of Python's own."""

    owner: type

    def take(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self.owner).items() if not k.startswith("__")}

    def put(self, value: dict[str, Any]) -> None:
        for name in self.changed(value):
            if name in value:
                setattr(self.owner, name, value[name])
            else:
                delattr(self.owner, name)

    def differs(self, value: dict[str, Any]) -> bool:
        return bool(self.changed(value))

    def changed(self, value: dict[str, Any]) -> list[str]:
        """Return the names whose attribute is another one than in this value."""
        return changed_keys(self.take(), value)


@dataclass(frozen=True, eq=False, slots=True)
class Variable(_OneValue):
    """The value of a context variable."""

    variable: ContextVar[Any]

    def take(self) -> Any:
        return self.variable.get(MISSING)

    def put(self, value: Any) -> None:
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
