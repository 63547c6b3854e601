"""The kinds of objects whose state is watched: containers, attributes, iterators and generators."""

import random
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import nn

from .places import (
    Attribute,
    ClassAttributes,
    Entries,
    Items,
    Length,
    StateItem,
    StatePlace,
    Variable,
)
from .positions import NUMPY_RANDOM, PYTHON_RANDOM, Generator, Progress
from .walk import MOST_ENTRIES, UNWATCHED_REGISTRIES, ReachedObject, Way, is_closed

# Wrappers for data parallelism, which keep state of their own.
_WRAPPERS = ("torch.nn.parallel", "torch.distributed.fsdp.fully_sharded")


def place_of(reached: ReachedObject) -> StatePlace | None:
    """Return the place of state that an object is; None: it holds none itself."""
    value = reached.value
    if isinstance(value, StateItem | Attribute | ClassAttributes):
        return value
    if isinstance(value, dict | list | set | deque):
        return _place_of_container(value, reached.way)
    if isinstance(value, ContextVar):
        return Variable(value)
    if isinstance(value, Iterator) and is_closed(type(value).__module__):
        return Progress(value)
    return _generator_of(value)


def _place_of_container(value: Any, way: Way) -> StatePlace | None:
    holder = way.before.holder if way.before is not None else None
    if isinstance(holder, nn.Module) and way.key in UNWATCHED_REGISTRIES:
        return None
    if isinstance(way.holder, nn.Module) and type(way.holder).__module__.startswith(_WRAPPERS):
        return None
    if len(value) > MOST_ENTRIES:
        return Length(value)
    if not isinstance(value, dict):
        return Items(value)
    # The rules of the split backward replace `forward` while a module runs.
    return Entries(value, "forward" if isinstance(way.holder, nn.Module) else None)


def _generator_of(value: Any) -> Generator | None:
    if isinstance(value, torch.Generator):
        return Generator(
            value, lambda: _torch_state(value), lambda state: _put_torch_state(value, state)
        )
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return Generator(value, value.getstate, value.setstate)
    if isinstance(value, np.random.RandomState):
        return Generator(value, value.get_state, value.set_state)
    if isinstance(value, np.random.BitGenerator):
        return Generator(value, lambda: value.state, lambda state: setattr(value, "state", state))
    if value is random:
        return PYTHON_RANDOM
    return NUMPY_RANDOM if value is np.random else None


def _torch_state(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _put_torch_state(generator: torch.Generator, state: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
