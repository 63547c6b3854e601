"""Optimizer state that is no tensor, as JSON: numbers, texts, and lists, tuples, dicts of them.

Tensors inside it are stored like all others, and the JSON has their names. Whatever JSON lacks is
an object of one key: {"tensor": NAME}, {"tuple": [...]}, {"dict": [[KEY, VALUE], ...]}, and
{"float": "inf"} of a float that is not finite.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from synth.errors import SynthError

from .errors import Damaged


class NotStorable(SynthError):
    """A value of a type that a checkpoint cannot hold; the message is the type's name."""


def encode(value: object, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, and add its tensors by names that begin with `name`.

    Raises:
        NotStorable: it contains something else; subclasses are something else, too.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list | tuple) and kind in (list, tuple):
        items = [encode(item, f"{name}.{n}", tensors) for n, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if isinstance(value, dict) and kind is dict:
        pairs = [
            [encode(key, f"{name}.{n}.key", tensors), encode(item, f"{name}.{n}", tensors)]
            for n, (key, item) in enumerate(value.items())
        ]
        return {"dict": pairs}
    raise NotStorable(kind.__name__)


def decode(found: Any, tensor_of: Callable[[str], Tensor]) -> Any:
    """Return the value of some JSON; `tensor_of` gives the tensors by name.

    Raises:
        Damaged: `encode` did not make it.
    """
    if isinstance(found, list):
        return [decode(item, tensor_of) for item in found]
    if not isinstance(found, dict):
        return found
    match found:
        case {"tensor": str(name), **rest} if not rest:
            return tensor_of(name)
        case {"float": "inf" | "-inf" | "nan" as text, **rest} if not rest:
            return float(text)
        case {"tuple": list(items), **rest} if not rest:
            return tuple(decode(item, tensor_of) for item in items)
        case {"dict": list(pairs), **rest} if not rest:
            try:
                return {decode(k, tensor_of): decode(v, tensor_of) for k, v in pairs}
            except (TypeError, ValueError):
                pass
    raise Damaged("the manifest is damaged: optimizer_values has what no checkpoint writes")
