"""The name of a model: a factory, and the arguments that differ from its defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Argument = int | float | str | bool


@dataclass(frozen=True)
class ModelSpec:
    """`factory`: a built-in model or size ("gpt", "gpt2-small", …), or a user's function, as
    `path/to/file.py:function` or `package.module:function`."""

    factory: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
