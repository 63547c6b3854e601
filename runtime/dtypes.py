"""Dtypes by the names that workloads use."""

import torch

from synth.errors import SynthError
from synth.profile.workload import dtype_name

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def dtype_of(name: str) -> torch.dtype:
    """A dtype by its name, or a common short one.

    Raises:
        SynthError: no such dtype.
    """
    found = DTYPES.get(dtype_name(name))
    if found is None:
        raise SynthError(f"dtype {name!r} is unknown; known: {', '.join(DTYPES)}")
    return found
