"""Groups tensors for torch's multi-tensor kernels (`torch._foreach_*`): one launch for many."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..execution.gradients.all_reduce import is_sharded

# On CPU the norm of a tensor in another dtype copies the tensor to that dtype, which plans do not
# count. So a tensor of 16-bit numbers is taken in pieces of this many.
_PIECE_ELEMENTS = 1 << 16


def group_alike(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Lists of tensors that one `torch._foreach_*` call takes: of one class, device and dtype.

    Sharded tensors (DTensor) are alone, as they may be of different meshes.
    """
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        alike = is_sharded(tensor) and id(tensor), tensor.device, tensor.dtype
        groups.setdefault(alike, []).append(tensor)
    return list(groups.values())


def squared_norm(gradients: Iterable[Tensor], device: torch.device) -> Tensor:
    """The sum of squares, a float64 scalar on `device`.

    Each gradient's norm is taken in float32 at least. A sharded one counts as a whole, so the
    processes that hold its shards call this at the same time.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    for group in group_alike(gradients):
        real = [torch.view_as_real(g) if g.is_complex() else g for g in group]
        dtype = None if real[0].dtype == torch.float64 else torch.float32
        if dtype not in (None, real[0].dtype) and not is_sharded(real[0]):
            real = [piece for tensor in real for piece in _pieces(tensor)]
        norms = torch._foreach_norm(real, 2.0, dtype)
        whole = [n.full_tensor() if is_sharded(n) else n for n in norms]  # type: ignore[attr-defined]
        total += torch.stack(list(whole)).to(device).double().square().sum()
    return total


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """Views of at most `_PIECE_ELEMENTS` elements of a tensor; one with gaps stays as it is."""
    if tensor.numel() <= _PIECE_ELEMENTS or not tensor.is_contiguous():
        return (tensor,)
    return torch.split(tensor.view(-1), _PIECE_ELEMENTS)
