"""Comparison of values in a program's memory: objects, numbers, texts, states of generators."""

from typing import Any

import numpy as np

# The value of a place that has none.
MISSING = object()


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


def changed_keys(now: dict[Any, Any], before: dict[Any, Any]) -> list[Any]:
    """Return the keys whose value is another one, or which only one of both has."""
    other = [key for key, old in before.items() if are_different(now.get(key, MISSING), old)]
    return [*other, *(key for key in now if key not in before)]
