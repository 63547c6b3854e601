"""The name of a model: a factory, and the arguments that differ from its defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Argument = int | float | str | bool


@dataclass(frozen=True)
class CutSpec:
    """The micro-batch for which a whole module is cut, and the places of the cuts.

    Attributes:
        shape: of a micro-batch of token ids, [batch, time].
        batch: makes the inputs and targets of a micro-batch, if they are no token ids.
        dtype: of the parameters and buffers, by name.
        autocast: the dtype in which the model computes where torch.autocast says so, by name.
        at: modules at which layers begin, as `cut_model` takes them; None: at its blocks.
        check: compare the layers with the whole.
    """

    shape: tuple[int, int] = (1, 16)
    batch: Callable[[], tuple[Any, Any]] | None = None
    dtype: str = "float32"
    autocast: str | None = None
    at: str | None = None
    check: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """A model by its address.

    Attributes:
        factory: a built-in model or size ("gpt", "gpt2-small", …); a user's function, as
            `path/to/file.py:function` or `package.module:function`; or `hf:` and a name, folder or
            config.json of Hugging Face.
        arguments: of the function, or of the config.
        cut: for a factory that makes one whole module.
        empty: parameters of a user's model, or of Hugging Face's, have no values where its code
            allows that; a file has them.
    """

    factory: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    cut: CutSpec = field(default=CutSpec(), compare=False)
    empty: bool = field(default=False, compare=False)
