"""Who else holds a storage: torch's own count of references, for which it has no public call."""

import torch

from synth.errors import SynthError


def check_countable() -> None:
    """Find out before the first step whether storages can be counted.

    Raises:
        SynthError: this torch does not say.
    """
    try:
        storage = torch.empty(1).untyped_storage()
        counts = num_references(storage) == 1
    except (AttributeError, TypeError):
        counts = False
    if not counts:
        raise SynthError(
            f"torch {torch.__version__} does not tell who else holds a tensor, which must be known "
            f"where a schedule moves what forwards save; take a schedule without O, L, K and G, or "
            f"torch 2.13"
        )


def num_references(storage: torch.UntypedStorage) -> int:
    """How many tensors and handles hold a storage, the one given included."""
    found: int = torch._C._storage_Use_Count(storage._cdata)
    return found
