"""The whole model that a piece is of: its class, and the names of its parameters and buffers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor, nn

from .whole import is_of_transformers


@dataclass(frozen=True)
class Origin:
    """A whole model, without its weights.

    Attributes:
        config: of a model of transformers; None: it is none.
        adapters: the configs of PEFT's adapters in it, by name.
        names: by each name of a parameter or buffer with a checkpoint all names of it, the first
            of them first. Tied ones have several.
    """

    kind: type[nn.Module]
    config: Any = None
    adapters: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Describe a model."""
        by_tensor: dict[int, list[str]] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor):
                by_tensor.setdefault(id(tensor), []).append(name)
        names = {name: tuple(all_of) for all_of in by_tensor.values() for name in all_of}
        if not is_of_transformers(model):
            return cls(type(model), names=names)
        return cls(type(model), model.config, getattr(model, "peft_config", {}), names)

    def __deepcopy__(self, memo: Any) -> Self:
        """A copy of a piece is of the same model."""
        return self
