"""A fingerprint of training data that is cheap however large its file is."""

import hashlib

import torch
from torch import Tensor

from .training_state import DataFingerprint

# Data of up to 4 Mi tokens is hashed whole, larger data in 64 blocks of 64 Ki tokens.
_BLOCK_TOKENS = 1 << 16
_NUM_BLOCKS = 64


def fingerprint(tokens: Tensor) -> DataFingerprint:
    """Take the fingerprint of token ids: [tokens].

    It is of the ids alone: the same ids in another dtype, or in text, have the same one. In large
    data blocks at even distances are hashed, the first and the last among them, so a change
    elsewhere that keeps the number of tokens is not noticed.
    """
    digest = hashlib.sha256()
    for start in _starts(len(tokens)):
        block = tokens[start : start + _BLOCK_TOKENS]
        digest.update(block.to(torch.int64).numpy().data)
    return DataFingerprint(tokens=len(tokens), sha256=digest.hexdigest())


def _starts(num_tokens: int) -> range | list[int]:
    """The first tokens of the blocks to hash."""
    if num_tokens <= _NUM_BLOCKS * _BLOCK_TOKENS:
        return range(0, num_tokens, _BLOCK_TOKENS)
    last = num_tokens - _BLOCK_TOKENS
    return [last * number // (_NUM_BLOCKS - 1) for number in range(_NUM_BLOCKS)]
