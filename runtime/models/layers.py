"""Names and signatures of a model's layers."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import is_dataclass
from functools import partial

import torch
from torch import nn

from .block import CheckpointedBlock
from .gpt import GptEmbedding
from .head import Head
from .llama import LlamaEmbedding

SIMPLE = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size)

_BLOCK = "block"

# `layer_idx`, `layer_id`, `block_number`; `layer_name`, `prefix`, `fqn`.
_NUMBER_OF_PLACE = re.compile("(^|_)(idx|index|id|number|num|no|depth)$")
_NAME_OF_PLACE = re.compile("(^|_)(name|prefix|path|fqn)$")

# `position`, `embed_positions`, `pos_emb`; GPT-2's own is `wpe`.
_OF_POSITIONS = re.compile("(^|_)pos|^wpe$")


def layer_names(layers: Sequence[nn.Module]) -> list[str]:
    """Unique, readable names: "embedding", "block.0", …, "head"; a user's by class and index."""
    return unique_names([base_name(layer) for layer in layers])


def base_name(layer: nn.Module) -> tuple[str, bool]:
    """A layer's name without its index, and whether it is a kind that the built-in models have."""
    if isinstance(layer, CheckpointedBlock):
        return _BLOCK, True
    if isinstance(layer, GptEmbedding | LlamaEmbedding):
        return "embedding", True
    if isinstance(layer, Head):
        return "head", True
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


def layer_signature(layer: nn.Module, *, with_places: bool = True) -> Hashable:
    """A key that is equal for layers of equal cost, so that only one of them is measured.

    It covers the classes of all sub-modules, the shapes and dtypes of parameters and buffers, and
    the hyper-parameters. An attribute that is not a plain value distinguishes layers unless it is
    the same object, or a data class, a dictionary or a partial function of equal content. Compare
    only signatures of layers that are alive.

    Args:
        layer: the layer.
        with_places: False leaves out what tells a layer's place in the model, such as `layer_idx`,
            and the numbers in names.
    """
    parts = layer.named_modules()
    return tuple((name, _own_signature(module, with_places)) for name, module in parts)


def _own_signature(module: nn.Module, with_places: bool) -> Hashable:
    own = {**module._parameters, **module._buffers}
    tensors = tuple(
        (name, None if t is None else (tuple(t.shape), t.dtype, t.requires_grad))
        for name, t in own.items()
    )
    settings = tuple(
        (name, _value(value if with_places else _without_place(name, value)))
        for name, value in sorted(vars(module).items())
        if not name.startswith("_")
    )
    return type(module), tensors, settings


def _without_place(name: str, value: object) -> object:
    if type(value) is int and _NUMBER_OF_PLACE.search(name):
        return 0
    if type(value) is str and _NAME_OF_PLACE.search(name):
        return re.sub(r"\d+", "0", value)
    return value


def _value(value: object) -> Hashable:
    if isinstance(value, SIMPLE):
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(_value(item) for item in value)
    if isinstance(value, dict):
        return type(value), tuple((repr(key), _value(item)) for key, item in value.items())
    if isinstance(value, partial):
        return type(value), _value(value.func), _value(value.args), _value(value.keywords)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), _value(vars(value) if hasattr(value, "__dict__") else id(value))
    return type(value), id(value)


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
