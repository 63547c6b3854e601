"""Dtypes by the names that workloads use."""

import torch

from synth.errors import SynthError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def dtype_of(name: str) -> torch.dtype:
    """A dtype by name.

    Raises:
        SynthError: no such dtype.
    """
    if name not in DTYPES:
        raise SynthError(f"dtype {name!r} is unknown; known: {', '.join(DTYPES)}")
    return DTYPES[name]
