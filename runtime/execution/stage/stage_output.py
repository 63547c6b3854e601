"""The output of a stage's forward: detached, and apart from what later forwards may change."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from synth.errors import SynthError

from ...state.tensor_numbers import storage_key
from ..base.boundary import Boundary, Tensors, settled


def kept_memory(module: nn.Module) -> frozenset[int]:
    """The memory of a module's buffers, which its forwards change in place."""
    return frozenset(key for b in module.buffers() if (key := storage_key(b)) is not None)


def given_away(tensors: Tensors, kept: Collection[int]) -> Tensors:
    """Return a stage's output without its graph.

    What is a buffer or a parameter, or a part of one, is copied: the module may change it before
    the output has been sent.

    Args:
        kept: see `kept_memory`.
    """
    return tuple(
        [settled(t.detach().clone() if _is_kept(t, kept) else t.detach()) for t in tensors]
    )


def _is_kept(tensor: Tensor, kept: Collection[int]) -> bool:
    base = tensor._base
    if tensor.requires_grad and not tensor.is_leaf and (base is None or not base.is_leaf):
        return False  # computed
    if isinstance(tensor, nn.Parameter) or isinstance(base, nn.Parameter):
        return True
    return bool(kept) and storage_key(tensor) in kept


def versions_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Autograd's counts of the changes of tensors in place."""
    return tuple([0 if t.is_inference() else t._version for t in tensors])


def check_loss(output: object) -> None:
    """Refuse a loss that is no tensor; () stands for none that is wanted."""
    if not isinstance(output, Tensor) and output != ():
        raise SynthError(
            f"the last stage gave a {type(output).__name__}, where it must give the loss, one "
            f"tensor: give the pipeline a loss function that returns nothing beside the loss"
        )


@contextmanager
def overlaps_unchanged(tensors: Tensors, entry: Boundary | None) -> Iterator[None]:
    """Refuse a forward that changes in place what overlaps another one of its inputs.

    In one process such inputs are views of one tensor, and the other one would change, too; the
    received ones have memory of their own.
    """
    shared = [] if entry is None else [tensors[place] for place in entry.overlapping]
    before = versions_of(shared)
    yield
    if versions_of(shared) != before:
        raise SynthError(
            "a stage changes an input in place that shared memory with another one where the stage "
            "before gave both, and here does no longer: change a copy of it"
        )
