"""Positions of iterators, files and generators of random numbers; each is a `StatePlace`."""

import io
import itertools
import operator
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import numpy as np

from synth.errors import SynthError

from .comparison import are_equal_states, is_plain

# Modules whose iterators say their position.
_BUILTIN = ("builtins", "itertools", "_collections")


@dataclass(frozen=True, eq=False, slots=True)
class Progress:
    """The position of an iterator or of a file, which can be noticed and not put back."""

    iterator: Any

    def take(self) -> Any:
        return _position(self.iterator)

    def put(self, value: Any) -> None:
        if self.differs(value):
            raise SynthError(
                f"a forward takes the next value of an iterator ({type(self.iterator).__name__}), "
                f"which cannot be rewound after a trial, or for a recomputation: keep a list and "
                f"the number of its next value in the module"
            )

    def differs(self, value: Any) -> bool:
        return bool(self.take() != value)


@dataclass(frozen=True, eq=False, slots=True)
class Generator:
    """The state of a generator of random numbers, as `get` returns it and `put` takes it."""

    source: Any
    get: Callable[[], Any]
    put: Callable[[Any], None]

    def take(self) -> Any:
        return self.get()

    def differs(self, value: Any) -> bool:
        return not are_equal_states(self.get(), value)


# The global generators are bound methods, which no program replaces.
PYTHON_RANDOM = Generator(random, random.getstate, random.setstate)
NUMPY_RANDOM = Generator(np.random, np.random.get_state, np.random.set_state)


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
            found.append(_position(part) if type(part).__module__ in _BUILTIN else None)
    return tuple(found)


def _place_in_file(file: Any) -> Any:
    try:
        return file.tell() if file.readable() else None
    except (OSError, ValueError):
        return None
