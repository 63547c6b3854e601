"""Names of a model's layers, and the token ids that they accept."""

import re
from collections.abc import Sequence

from torch import nn

from .block import CheckpointedBlock
from .cut.piece import Piece
from .gpt import GptEmbedding
from .head import Head
from .llama import LlamaEmbedding

_BLOCK = "block"

# `position`, `embed_positions`, `pos_emb`; GPT-2's own is `wpe`.
_OF_POSITIONS = re.compile("(^|_)pos|^wpe$")


def layer_names(layers: Sequence[nn.Module]) -> list[str]:
    """Unique names: "embedding", "block.0", …, "head"; a user's by class and index, or, if they
    were cut from a whole model, by their names in it."""
    return unique_names([base_name(layer) for layer in layers])


def base_name(layer: nn.Module) -> tuple[str, bool]:
    """A layer's name without its index, and whether it is a kind that the built-in models have."""
    if isinstance(layer, CheckpointedBlock):
        return _BLOCK, True
    if isinstance(layer, GptEmbedding | LlamaEmbedding):
        return "embedding", True
    if isinstance(layer, Head):
        return "head", True
    if isinstance(layer, Piece):
        return layer.name, True
    return type(layer).__name__, False


def unique_names(bases: Sequence[tuple[str, bool]]) -> list[str]:
    """Names of layers in order, from those of `base_name`."""
    names, blocks = [], 0
    for index, (base, is_built_in) in enumerate(bases):
        if is_built_in and base == _BLOCK:
            names.append(f"{base}.{blocks}")
            blocks += 1
        else:
            names.append(base if is_built_in else f"{base}.{index}")
    # A user's list may repeat built-in layers.
    return [
        name if names.count(name) == 1 else f"{name}.{index}" for index, name in enumerate(names)
    ]


def vocabulary_size(first_layer: nn.Module) -> int | None:
    """The number of token ids that the first layer accepts at most; None if it has no embedding."""
    return max(_embedding_sizes(first_layer), default=None)


def num_safe_ids(first_layer: nn.Module) -> int | None:
    """The number of token ids that it surely accepts; None if it has no embedding."""
    return min(_embedding_sizes(first_layer), default=None)


def _embedding_sizes(layer: nn.Module) -> list[int]:
    """The sizes of embeddings that may be of tokens; those of positions are excluded by name."""
    sizes = [
        (name.rpartition(".")[2].lower(), module.num_embeddings)
        for name, module in layer.named_modules()
        if isinstance(module, nn.Embedding)
    ]
    return [size for name, size in sizes if not _OF_POSITIONS.search(name)] or [
        size for _, size in sizes
    ]
