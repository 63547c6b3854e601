"""The built-in models and their sizes by name: the one place to add a size."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from . import gpt, llama
from .spec import Argument


@dataclass(frozen=True)
class ModelSize:
    """A factory with the arguments that make it this size; a user's own override them."""

    factory: Callable[..., list[nn.Module]]
    arguments: Mapping[str, Argument] = field(default_factory=dict)


def _gpt2(num_blocks: int, width: int, num_heads: int) -> ModelSize:
    return ModelSize(gpt.gpt, {"num_blocks": num_blocks, "width": width, "num_heads": num_heads})


SIZES: Mapping[str, ModelSize] = {
    "gpt": ModelSize(gpt.gpt),
    "gpt-bytes": ModelSize(
        gpt.gpt,
        {
            "vocabulary_size": 256,
            "width": 256,
            "num_blocks": 8,
            "num_heads": 4,
            "context_length": 256,
        },
    ),
    "gpt2-small": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "llama": ModelSize(llama.llama),
    "llama-7b": ModelSize(
        llama.llama,
        {
            "vocabulary_size": 32000,
            "width": 4096,
            "num_blocks": 32,
            "num_heads": 32,
            "num_kv_heads": 32,
            "hidden_width": 11008,
            "context_length": 2048,
            "epsilon": 1e-6,
        },
    ),
    "llama3-8b": ModelSize(
        llama.llama,
        {
            "vocabulary_size": 128256,
            "width": 4096,
            "num_blocks": 32,
            "num_heads": 32,
            "num_kv_heads": 8,
            "hidden_width": 14336,
            "context_length": 8192,
            "rope_base": 500000.0,
        },
    ),
}
