"""The layers of a model as the parts of a language model, known by their names.

Frameworks name embedding, decoder layers, layers of multi-token prediction (MTP) and head. A name
that is none of them for certain is not guessed.
"""

import re
from collections.abc import Sequence
from enum import IntEnum


class ModelPart(IntEnum):
    """A part of a language model, in forward order."""

    EMBEDDING = 0
    DECODER = 1
    MTP = 2
    HEAD = 3


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_EMBEDDING = _listed("embed embedding embeddings wte wpe")
_HEAD = _listed("head output norm ln loss logits layernorm unembed unembedding")
_DECODER = _listed("block blocks layer layers decoder transformer moe dense h")
_MTP = _listed("mtp nextn")

# Words of layers that are no whole decoder layer, or of a model beside the decoder.
_OTHER = _listed(
    "encoder enc projector proj adapter connector resampler vision visual vit image audio speech "
    "video patch time timestep pooler router expert experts attention attn mlp ffn linear conv "
    "mamba ssm double single down up mid"
)

# "RMSNorm" is the words rms and norm, "lm_head" lm and head.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NUMBER = re.compile(r"[._-]?\d+$")


def base_of(name: str) -> str:
    """Return the name of a layer without its number: `block` of `block.3`."""
    return _NUMBER.sub("", name)


def model_parts(names: Sequence[str]) -> list[ModelPart | None]:
    """Return the parts that the layers of a model stand for; None where it is not known."""
    is_one_class = len({base_of(name) for name in names if _is_decoder(name)}) == 1
    return [_part(name, is_one_class) for name in names]


def _part(name: str, is_one_class: bool) -> ModelPart | None:
    """Return the part that a name stands for; None: it is not known."""
    words = _words(name)
    if not words or not _OTHER.isdisjoint(words):
        return None
    if not _MTP.isdisjoint(words) or "multitokenprediction" in "".join(words):
        return ModelPart.MTP if (_EMBEDDING | _HEAD).isdisjoint(words) else None
    if _is_decoder(name):
        return ModelPart.DECODER if is_one_class or _DECODER.issuperset(words) else None
    ends_as = words[:-1] if words[-1] == "layer" else words
    if not _EMBEDDING.isdisjoint(ends_as):
        return None if "decoder" in words else ModelPart.EMBEDDING
    return None if _HEAD.isdisjoint(ends_as[-2:]) else ModelPart.HEAD


def _is_decoder(name: str) -> bool:
    words = _words(name)
    apart = _OTHER | _EMBEDDING | _HEAD | _MTP
    return bool(words) and words[-1] in _DECODER and apart.isdisjoint(words)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(base_of(name))]
