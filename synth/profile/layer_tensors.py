"""The tensors between layers where one number for each boundary does not describe them.

A layer may take or return several tensors, pass one on, or write to one. What it returns is then
the memory of a tensor that it took, or memory of its own, which are numbered in one row:

    taken 0, taken 1, …, made 0, made 1, …        (h, encoded) → (h', encoded):  returned 2, 1
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from synth.op_kinds import OpKind
from synth.records.field_types import Whole
from synth.records.record import BriefRecord, Record
from synth.units import MOST_SUMMABLE, counted

Bytes = Annotated[Whole, Field(ge=0, le=MOST_SUMMABLE)]


# CUDA's allocator hands out multiples of this.
CUDA_BLOCK_BYTES = 512


class TakenTensor(BriefRecord):
    """A tensor that a layer takes from the one before.

    Attributes:
        until: the last op of the layer that needs its memory, also as a part of its output.
        is_changed: True if F writes to it.
        is_unused: True if the layer computes no gradient of it. A stage that begins with the layer
            sends zeros, which no rise of the layer has.
        gradient_excess_bytes: by which the memory of its gradient is larger than all gradients in
            it, as where the layer appends to what it takes.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("is_changed", "is_unused", "gradient_excess_bytes")

    num_bytes: Bytes
    until: OpKind
    is_changed: bool = False
    is_unused: bool = False
    gradient_excess_bytes: Bytes = 0


class MadeMemory(Record):
    """Memory that a layer allocates for its output, and the last op of the layer that needs it."""

    num_bytes: Bytes
    until: OpKind


class ReturnedTensor(BriefRecord):
    """A tensor that a layer returns.

    Attributes:
        memory: the number of its memory, first those taken and then those made.
        num_bytes: its elements.
        gradient_bytes: the gradient that comes back; 0 if none does.
        gradient_until: B or W, the last op of the layer that needs that gradient.
        is_copied: True if it is not contiguous: a stage that ends here holds and sends a copy.
        is_given: True if it is a part of the inputs of the model.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("is_copied", "is_given")

    memory: Whole = Field(ge=0)
    num_bytes: Bytes
    gradient_bytes: Bytes
    gradient_until: OpKind
    is_copied: bool = False
    is_given: bool = False


class SharedGradient(Record):
    """The gradient of a taken tensor that has memory with that of an earlier one.

    They are one tensor where the layer adds both, and parts of one where it stacks them.
    `num_bytes` is what both have of it; `tensor` and `earlier` are numbers of taken tensors.
    """

    tensor: Whole = Field(ge=0)
    earlier: Whole = Field(ge=0)
    num_bytes: Bytes


class SharedMemory(NamedTuple):
    """Memory of several tensors that a layer takes, or of one that is a part of it.

    Attributes:
        tensors: their numbers.
        num_bytes: of the whole memory, or of the tensors apart if they take more.
    """

    tensors: tuple[int, ...]
    num_bytes: int


class LayerTensors(BriefRecord):
    """All tensors that a layer takes and returns; what the first layer takes is not counted.

    Attributes:
        changes_given: True if F writes to the inputs of the model, or to the targets.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("shared_gradients", "changes_given")

    taken: tuple[TakenTensor, ...]
    made: tuple[MadeMemory, ...]
    returned: tuple[ReturnedTensor, ...]
    shared_gradients: tuple[SharedGradient, ...] = ()
    changes_given: bool = False

    @model_validator(mode="after")
    def _known(self) -> Self:
        count = len(self.taken) + len(self.made)
        for tensor in self.returned:
            if tensor.memory >= count:
                raise ValueError(f"memory {tensor.memory} of {count} is returned; the first is 0")
        for kind in (*(one.until for one in self.taken), *(one.until for one in self.made)):
            if kind not in (OpKind.F, OpKind.B, OpKind.W):
                raise ValueError(f"until is {kind}; needed: F or B or W")
        for tensor in self.returned:
            if tensor.gradient_until not in (OpKind.B, OpKind.W):
                raise ValueError(f"gradient_until is {tensor.gradient_until}; needed: B or W")
        for shared in self.shared_gradients:
            if not shared.earlier < shared.tensor < len(self.taken):
                raise ValueError(
                    f"tensor {shared.tensor} shares the gradient of {shared.earlier}; needed: an "
                    f"earlier one of {len(self.taken)}, the first being 0"
                )
        return self

    @property
    def are_plain(self) -> bool:
        """True if there is at most one tensor on each side, of memory of its own, none changed.

        It is also contiguous, and so is its gradient.
        """
        return (
            len(self.taken) <= 1
            and [one.memory for one in self.returned] in ([], [len(self.taken)])
            and not self.changes_input
            and not self.has_copies
            and not any(one.is_given for one in self.returned)
            and not any(one.gradient_excess_bytes for one in self.taken)
        )

    @property
    def changes_input(self) -> bool:
        """True if F writes to a tensor that it takes."""
        return self.changes_given or any(one.is_changed for one in self.taken)

    @property
    def has_copies(self) -> bool:
        """True if a stage that ends here sends a copy of a tensor."""
        return any(one.is_copied for one in self.returned)

    @property
    def shown_taken(self) -> str:
        """The number and bytes of what is taken, in words."""
        return _shown([one.num_bytes for one in self.taken])

    @property
    def shown_returned(self) -> str:
        """The number and bytes of what is returned, in words."""
        return _shown([one.num_bytes for one in self.returned])

    @property
    def made_bytes(self) -> int:
        """The bytes of the memory made for the output."""
        return sum(one.num_bytes for one in self.made)

    def made_until(self, *kinds: OpKind) -> int:
        """The bytes of the memory made for the output that some ops need last."""
        return sum(one.num_bytes for one in self.made if one.until in kinds)

    @property
    def shared_gradient_bytes(self) -> int:
        """The bytes by which the gradients of what is taken need less memory than numbers.

        Negative: they need more.
        """
        excess = sum(one.gradient_excess_bytes for one in self.taken)
        return sum(one.num_bytes for one in self.shared_gradients) - excess

    @property
    def unused_bytes(self) -> int:
        """The bytes of zeros that a stage sends which begins with the layer."""
        return sum(one.num_bytes for one in self.taken if one.is_unused)

    def recomputed(self) -> Self:
        """The tensors of the layer where B computes it again: its input is there until then."""
        taken = [one.replace(until=last_of((one.until, OpKind.B))) for one in self.taken]
        made = [one.replace(until=OpKind.F) for one in self.made]
        return self.replace(taken=tuple(taken), made=tuple(made))


def _shown(sizes: Sequence[int]) -> str:
    return f"{counted(len(sizes), 'tensor')} of {', '.join(map(str, sizes)) or 0} bytes"


def last_of(kinds: Sequence[OpKind]) -> OpKind:
    """Return the one of some ops of a micro-batch that runs last; F if there are none."""
    return max(kinds, key=lambda kind: kind.rank_in_chain, default=OpKind.F)


def shared_inputs(layers: Sequence[LayerTensors]) -> tuple[tuple[SharedMemory, ...], ...]:
    """Return by layer the memory of what it takes, where it is not that of each tensor alone.

    Args:
        layers: the tensors of all layers of a model, on one rank.
    """
    found: list[tuple[SharedMemory, ...]] = []
    came: list[list[int]] = []  # by tensor, the bytes of its memory; one object for each memory
    copied: set[int] = set()
    for tensors in layers:
        sizes = [one.num_bytes for one in tensors.taken]
        if len(came) != len(sizes):
            came = [[size] for size in sizes]
        places: dict[int, list[int]] = {}
        for at in (at for at in range(len(came)) if at not in copied):
            places.setdefault(id(came[at]), []).append(at)
        shared = (
            SharedMemory(tuple(row), max(came[row[0]][0], sum(sizes[at] for at in row)))
            for row in places.values()
        )
        found.append(
            tuple(
                one
                for one in shared
                if len(one.tensors) > 1 or one.num_bytes > sizes[one.tensors[0]]
            )
        )
        row = [*came, *([one.num_bytes] for one in tensors.made)]
        came = [row[one.memory] for one in tensors.returned]
        copied = {at for at, one in enumerate(tensors.returned) if one.is_copied}
    return tuple(found)
