"""Memory between the layers of a stage: what the op of each layer adds and frees of it.

Between two layers lie the tensors that one returns and the next takes, and their gradients. The
backward runs last to first:

    layer i    ── tensors ────►    layer i + 1
               ◄── gradients ──

B (or BW) of layer i + 1 makes the gradients, and that of layer i frees each unless W needs it. A
tensor may be in memory that several layers have, as those between pass it on or change it in place.
Such memory counts once. In the backward the first of the layers that need it frees it, as that runs
last; memory that W of a layer needs is freed in W. What came into the stage from outside does not
count here, nor does what leaves it: they are values of the schedule (`StageEnds`).
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from synth.costs.boundary_memory import BoundaryMemory, LayerBoundary, bytes_until, holders
from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile
from synth.profile.layer_tensors import LayerTensors, SharedMemory, last_of

B, BW, F, W = OpKind.B, OpKind.BW, OpKind.F, OpKind.W

BACKWARDS = (B, W, BW)


def own_change(layer: LayerProfile, kind: OpKind) -> int:
    """Return the bytes that B, W or BW of a layer adds, boundaries aside; negative: it frees."""
    if kind == W:
        return -layer.saved_w_bytes
    return (layer.saved_w_bytes if kind == B else 0) - layer.saved_bytes


class StageEnds(NamedTuple):
    """The part of its input and of its output that a stage holds beyond F.

    Attributes:
        input_until: the last op that needs the whole input.
        output_until: the last op that needs the whole output.
        saved_bytes: what is held after F of ends of which ops need but a part, less `held`.
        saved_w_bytes: the same after B.
        parts_bytes: what is saved of ends of which ops need but a part.
        held: memory that layers before the last one need, and that the output is held as.
        sent_bytes: what the output takes besides what is held anyway; None: all of it.
        saved: memory that the last layer made and needs, and that is saved: it has been sent before
            the backward frees it.
    """

    input_until: OpKind
    output_until: OpKind
    saved_bytes: int
    saved_w_bytes: int
    parts_bytes: int = 0
    held: tuple[BoundaryMemory, ...] = ()
    sent_bytes: int | None = None
    saved: tuple[BoundaryMemory, ...] = ()

    def kept(self, place: int, kind: OpKind) -> int:
        """Return the bytes of `held` that B, W or BW of a layer would free, were it not held.

        Those of `saved`, which it frees, count against them.
        """
        held, saved = (
            sum(one.num_bytes for one in memories if one.is_freed(place, kind))
            for memories in (self.held, self.saved)
        )
        return held - saved


class StageLayers(NamedTuple):
    """Layers that follow each other in a stage, as far as the layers behind them depend on it.

    Attributes:
        place: of the last layer, counted from 0.
        taken: by memory that came from outside, its bytes and the last op that needs it.
        memories: of what the last layer returns.
        returned: by tensor that it returns, the number of its memory.
        tensors: of the last layer.
    """

    place: int
    taken: tuple[tuple[int, OpKind], ...]
    memories: tuple[BoundaryMemory, ...]
    returned: tuple[int, ...]
    tensors: LayerTensors

    @classmethod
    def of(cls, layer: LayerProfile, shared: Sequence[SharedMemory] = ()) -> Self:
        """Return the run of a stage's first layer.

        Args:
            shared: see `Profile.shared_inputs`; on a rank that has the stage before, too, what
                needs one of the tensors holds the memory of all.
        """
        tensors = layer.boundary_tensors
        apart = set(range(len(tensors.taken))).difference(*(one.tensors for one in shared))
        rows = sorted([(at,) for at in apart] + [one.tensors for one in shared])
        sizes = {one.tensors: one.num_bytes for one in shared}
        taken = tuple(
            (
                sizes.get(row, tensors.taken[row[0]].num_bytes),
                last_of([tensors.taken[at].until for at in row]),
            )
            for row in rows
        )
        came = [BoundaryMemory(*both, taken=number) for number, both in enumerate(taken)]
        numbers = {at: number for number, row in enumerate(rows) for at in row}
        return cls._behind(tensors, 0, taken, came, [numbers[at] for at in sorted(numbers)])

    @classmethod
    def _behind(
        cls,
        tensors: LayerTensors,
        place: int,
        taken: tuple[tuple[int, OpKind], ...],
        came: Sequence[BoundaryMemory],
        numbers: Sequence[int],
    ) -> Self:
        """Return the run that ends with a layer of these tensors.

        Args:
            came: the memories that it takes.
            numbers: by tensor that it takes, the number of its memory.
        """
        made = [
            BoundaryMemory(one.num_bytes, one.until, *holders(place, one.until), is_new=True)
            for one in tensors.made
        ]
        memories = [*came, *made]
        row = [*numbers, *range(len(came), len(memories))]
        returned = [row[one.memory] for one in tensors.returned]
        kept = list(dict.fromkeys(returned))
        return cls(
            place,
            taken,
            tuple(memories[number] for number in kept),
            tuple(map(kept.index, returned)),
            tensors,
        )

    def then(self, layer: LayerProfile) -> tuple[Self, LayerBoundary]:
        """Return the run with one more layer, and the boundary before that one."""
        place, numbers = self.place + 1, self.returned
        boundary = LayerBoundary.of_gradients(self.tensors, layer.boundary_tensors)
        tensors = layer.boundary_tensors
        untils = [one.until for one in tensors.taken]
        if len(untils) != len(numbers):  # not measured for itself: it takes several as one
            tensors = layer.opaque_tensors
            untils = [tensors.taken[0].until] * len(numbers)
            numbers = (0,)
        taken, came = list(self.taken), []
        for number, memory in enumerate(self.memories):
            both = zip(self.returned, untils, strict=True)
            until = last_of([own for at, own in both if at == number])
            if memory.taken < 0:
                memory = boundary.add(memory, until, place)
            else:
                memory = memory._replace(until=last_of((memory.until, until)))
                taken[memory.taken] = memory.num_bytes, memory.until
            came.append(memory)
        run = self._behind(tensors, place, tuple(taken), came, numbers)
        count = len(tensors.taken)
        passed = {numbers[one.memory] for one in tensors.returned if one.memory < count}
        boundary.gone_bytes = sum(
            memory.num_bytes
            for number, memory in enumerate(came)
            if number not in passed and memory.until == F and memory.taken < 0
        )
        return run, boundary

    @property
    def open_bytes(self) -> int:
        """The bytes of what the last layer returns that layers of the run have made."""
        return sum(memory.num_bytes for memory in self.memories if memory.taken < 0)

    @property
    def unsaved_bytes(self) -> int:
        """The part of them that does not count as saved, as no layer behind is known to need it."""
        return sum(
            memory.num_bytes
            for memory in self.memories
            if memory.taken < 0 and (memory.is_new or memory.until == F)
        )

    @property
    def figures(self) -> tuple[int, ...]:
        """Numbers by which runs of the same layers are compared; less is never worse.

        What is held already, a layer behind neither adds nor frees: so none is less than another.
        """
        held = [one.until.rank_in_chain for one in self.memories if not one.is_new]
        taken = (until.rank_in_chain for _, until in self.taken)
        return (*taken, *held, *(-rank for rank in held))

    def least_ends(self) -> StageEnds:
        """Return ends of which no choice of recomputation holds less."""
        held = [(one.num_bytes, one.until) for one in self.memories if not one.is_new]
        saved = tuple(one for one in self.memories if one.is_new)
        sizes = -bytes_until(held, B, W), -bytes_until(held, W)
        return StageEnds(F, F, *sizes, sent_bytes=0, saved=saved)

    def below(self, other: Self) -> tuple[Self, int]:
        """Return a run of the same layers after which no layer holds more than after either.

        Also return how many bytes more a layer behind may free after one of them.
        """
        taken = [
            (size, min(own, their, key=_in_chain))
            for (size, own), (_, their) in zip(self.taken, other.taken, strict=True)
        ]
        memories = [
            own if own.is_new else max(own, their, key=lambda one: _in_chain(one.until))
            for own, their in zip(self.memories, other.memories, strict=True)
        ]
        freed_bytes = sum(
            own.num_bytes
            for own, their in zip(self.memories, other.memories, strict=True)
            if own.until != their.until
        )
        return self._replace(taken=tuple(taken), memories=tuple(memories)), freed_bytes

    def ends(self, *, is_first: bool) -> StageEnds:
        """Return what a stage of these layers holds of its ends.

        Where ops need some of the tensors of an end for longer than others, the end as a whole is
        needed until F, and the others count as saved. So they do where the output is a copy.

        Args:
            is_first: True if it is the first stage, which holds no input.
        """
        taken = () if is_first else self.taken
        made = [one if one.taken < 0 else one._replace(until=F) for one in self.memories]
        input_until = _shared(taken)
        output_until = _shared([(one.num_bytes, one.until) for one in made])
        if self.tensors.has_copies:
            output_until = F  # the copies are free when they are sent
        more = [one for one in taken if input_until == F]
        more += [(one.num_bytes, one.until) for one in made if output_until == F and one.is_new]
        held = tuple(one for one in made if output_until != F and not one.is_new)
        less = [(one.num_bytes, one.until) for one in held]
        parts = [(one.num_bytes, one.until) for one in made if output_until == F]
        parts += [one for one in taken if input_until == F]
        return StageEnds(
            input_until,
            output_until,
            saved_bytes=bytes_until(more, B, W) - bytes_until(less, B, W),
            saved_w_bytes=bytes_until(more, W) - bytes_until(less, W),
            parts_bytes=bytes_until(parts, B, W),
            held=held,
            sent_bytes=self._sent_bytes(taken) if output_until == F else None,
            saved=tuple(one for one in made if output_until == F and one.is_new),
        )

    def _sent_bytes(self, taken: Sequence[tuple[int, OpKind]]) -> int:
        """Return the bytes of copies, and of memory that the output has and no op needs after F.

        Args:
            taken: what the stage holds of its input; empty: nothing.
        """
        sent = sum(one.num_bytes for one in self.tensors.returned if one.is_copied)
        for number, memory in enumerate(self.memories):
            until = memory.until
            if memory.taken >= 0:
                until = taken[memory.taken][1] if taken else F
            both = zip(self.returned, self.tensors.returned, strict=True)
            if until == F and any(at == number and not one.is_copied for at, one in both):
                sent += memory.num_bytes
        return sent


def _in_chain(kind: OpKind) -> int:
    return kind.rank_in_chain


def _shared(end: Sequence[tuple[int, OpKind]]) -> OpKind:
    """Return the last op that needs the tensors of an end, if it is the same of all; else F."""
    kinds = {until for size, until in end if size} or {until for _, until in end}
    return kinds.pop() if len(kinds) == 1 else F


def first_layers(
    layers: Sequence[LayerProfile], shared: Sequence[SharedMemory] = ()
) -> tuple[list[StageLayers], list[LayerBoundary]]:
    """Return the runs of a stage's first layers, and the boundaries between the layers.

    Args:
        shared: of what the first layer takes; see `Profile.shared_inputs`.
    """
    runs, boundaries = [StageLayers.of(layers[0], shared)], []
    for layer in layers[1:]:
        run, boundary = runs[-1].then(layer)
        runs.append(run)
        boundaries.append(boundary)
    return runs, boundaries
