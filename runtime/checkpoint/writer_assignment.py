"""Assignment of a checkpoint's tensors to ranks: each is written once, with balanced bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from synth.errors import SynthError

from ..execution.gradients.all_reduce import is_sharded
from .rank_file import check_storable


@dataclass
class Holding:
    """Announcement of a rank to the others before a checkpoint is written.

    Attributes:
        sizes: bytes of its tensors by name; of a tensor with several names, the first one's.
        aliases: the other names of such tensors, with the first one.
        not_finite: the name of the first tensor that is not finite.
        refusal: why a tensor cannot be stored, with its name.
        obstacle: the reason why the checkpoint cannot be written now; None: it can.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    not_finite: str | None = None
    refusal: str | None = None
    obstacle: str | None = None


@dataclass(frozen=True)
class WriterAssignment:
    """The rank that writes each tensor, by the tensor's name, and the further names of all."""

    writers: dict[str, int]
    aliases: dict[str, str]


def holding_of(tensors: Mapping[str, Tensor]) -> Holding:
    """Announce a rank's tensors."""
    found = Holding()
    first: dict[object, str] = {}
    for name, tensor in tensors.items():
        try:
            check_storable(name, tensor)
        except SynthError as error:
            found.refusal = str(error)
            break
        primary = first.setdefault(_identity(tensor), name)
        if primary != name:
            found.aliases[name] = primary
            continue
        found.sizes[name] = tensor.numel() * tensor.element_size()
        if found.not_finite is None and not _is_finite(tensor):
            found.not_finite = name
    return found


def assign_writers(holdings: Sequence[Holding]) -> WriterAssignment:
    """Assign each tensor to one of its holders: largest tensors first, to the least loaded rank."""
    holders: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for rank, holding in enumerate(holdings):
        for name, size in holding.sizes.items():
            holders.setdefault(name, []).append(rank)
            sizes[name] = size
    written = [0] * len(holdings)
    writers = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        writer = min(holders[name], key=lambda rank: (written[rank], rank))
        writers[name] = writer
        written[writer] += sizes[name]
    aliases = {a: name for h in holdings for a, name in h.aliases.items() if a not in writers}
    return WriterAssignment(writers, aliases)


def _identity(tensor: Tensor) -> object:
    """Return a key that is equal for two names of the same numbers in memory."""
    if is_sharded(tensor) or tensor.numel() == 0:
        return id(tensor)
    layout = tensor.data_ptr(), tensor.shape, tensor.stride()
    return tensor.device, tensor.dtype, tensor.is_conj(), tensor.is_neg(), *layout


def _is_finite(tensor: Tensor) -> bool:
    if is_sharded(tensor):
        tensor = tensor.to_local()  # type: ignore[attr-defined]
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    if tensor.element_size() == 1:  # float8 has no comparisons
        tensor = tensor.float()
    low, high = torch.aminmax(tensor)  # a nan is both; needs no copy of the tensor
    return bool(torch.isfinite(low) and torch.isfinite(high))
