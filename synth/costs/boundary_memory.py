"""The bytes of tensors at a boundary between two layers: what the op of each adds and frees.

See `layer_boundaries` for the rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from synth.op_kinds import OpKind
from synth.profile.layer_tensors import LayerTensors, last_of

B, BW, F, W = OpKind.B, OpKind.BW, OpKind.F, OpKind.W


class BoundaryMemory(NamedTuple):
    """Memory of what the last layer of a run returns.

    Attributes:
        until: the last op of these layers that needs it.
        holder: the place of the first of them that needs it after F; -1: none does.
        w_holder: the place of the first of them whose W needs it; -1: none does.
        taken: its number among what the run took from outside; -1: a layer of the run made it.
        is_new: True if the last layer made it.
    """

    num_bytes: int
    until: OpKind
    holder: int = -1
    w_holder: int = -1
    taken: int = -1
    is_new: bool = False

    def is_freed(self, place: int, kind: OpKind) -> bool:
        """True if B, W or BW of a layer frees it."""
        if kind == W:
            return place == self.w_holder
        return place == self.holder and kind in (BW, self.until)


@dataclass(slots=True)
class LayerBoundary:
    """The bytes that change in a stage where a layer follows others.

    Attributes:
        saved_bytes: what is held of the boundary after F.
        saved_w_bytes: what is held of it after B.
        gone_bytes: what F of the later layer frees.
        by_next: what an op of the later layer, which runs first, adds; negative: it frees.
        by_previous: the same of the layer right before.
        by_earlier: what B of layers still before adds, by their places.
    """

    saved_bytes: int
    saved_w_bytes: int
    gone_bytes: int
    by_next: dict[OpKind, int]
    by_previous: dict[OpKind, int]
    by_earlier: dict[int, int]

    @classmethod
    def of_gradients(cls, tensors: LayerTensors, following: LayerTensors) -> Self:
        """Return a boundary with the gradients of what a layer returns alone."""
        gradients = [(one.gradient_bytes, one.gradient_until) for one in tensors.returned]
        if len(following.taken) == len(gradients):
            for number, taken in enumerate(following.taken):
                size, until = gradients[number]
                gradients[number] = size + taken.gradient_excess_bytes, until
            for one in following.shared_gradients:  # the memory grows, and lives for all of them
                size, until = gradients[one.tensor]
                before, earlier_until = gradients[one.earlier]
                grown = before + size - min(size, one.num_bytes)
                gradients[one.earlier] = grown, last_of((until, earlier_until))
                gradients[one.tensor] = 0, B
        until_b, until_w = (bytes_until(gradients, kind) for kind in (B, W))
        both = until_b + until_w
        return cls(
            saved_bytes=0,
            saved_w_bytes=until_w,
            gone_bytes=0,
            by_next={B: both, BW: both, W: 0},
            by_previous={B: -until_b, BW: -both, W: -until_w},
            by_earlier={},
        )

    def add(self, memory: BoundaryMemory, until: OpKind, place: int) -> BoundaryMemory:
        """Add memory that the later layer takes and needs until an op; return what is known then.

        Args:
            place: of the later layer.
        """
        size, before = memory.num_bytes, memory.until
        if memory.is_new:
            self._hold(size, before, self.by_previous)
        until = last_of((before, until))
        holder, w_holder = memory.holder, memory.w_holder
        if before == F:
            self._hold(size, until, self.by_next)
            holder, w_holder = holders(place, until)
        elif before != until:  # B of an earlier layer would have freed it
            self.saved_w_bytes += size
            self.by_next[W] -= size
            w_holder = place
            if holder == place - 1:
                self.by_previous[B] += size
            else:
                self.by_earlier[holder] = self.by_earlier.get(holder, 0) + size
        return memory._replace(until=until, holder=holder, w_holder=w_holder, is_new=False)

    def _hold(self, size: int, until: OpKind, changes: dict[OpKind, int]) -> None:
        """Hold memory from F until an op of the layer that has these changes."""
        if until != F:
            self.saved_bytes += size
            self.saved_w_bytes += size if until == W else 0
            changes[BW] -= size
            changes[until] -= size


def bytes_until(parts: Sequence[tuple[int, OpKind]], *kinds: OpKind) -> int:
    """Add up the bytes that are needed until ops of some kinds."""
    return sum(size for size, until in parts if until in kinds)


def holders(place: int, until: OpKind) -> tuple[int, int]:
    """Return the place of a layer that needs memory until an op, as `holder` and `w_holder`."""
    return place if until != F else -1, place if until == W else -1
