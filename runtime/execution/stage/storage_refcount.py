"""Reference counts of storages: torch keeps them, but has no public call for them."""

import torch

from synth.errors import SynthError


def check_countable() -> None:
    """Check, before the first step, that the references of storages can be counted."""
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
    """The number of tensors and handles that hold a storage, including the given one."""
    found: int = torch._C._storage_Use_Count(storage._cdata)
    return found
