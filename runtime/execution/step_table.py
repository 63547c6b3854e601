"""What a rank holds during one step: values and open transfers, each in a slot of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from synth.schedule.ops import Op, Value, ValueKind

from ..batch import Batch
from .boundary import Boundary, Tensors
from .channels import Pending

Shapes = Sequence[Sequence[Boundary]]
# By stage and micro-batch, of what moves to another rank: the bytes of each storage.
SavedSizes = Mapping[tuple[int, int], tuple[int, ...]]


@dataclass
class StepTable:
    """What lives during one step. Values and transfers are by slot, see `Slots`."""

    batch: Batch
    shapes: Shapes
    weight: float
    values: list[Tensors | None]
    arriving: list[Pending | None]
    leaving: list[Pending | None]
    saved_sizes: SavedSizes
    updating: bool = False

    @classmethod
    def begun(
        cls,
        batch: Batch,
        shapes: Shapes,
        weight: float,
        num_slots: int,
        saved_sizes: SavedSizes,
    ) -> "StepTable":
        """A step that holds nothing yet."""
        none = [None] * num_slots
        return cls(batch, shapes, weight, [*none], [*none], [*none], saved_sizes)

    @classmethod
    def none(cls) -> "StepTable":
        """Between steps."""
        return cls.begun(Batch(), (), 1.0, 0, {})

    @property
    def num_held(self) -> int:
        """How many values and open transfers there are."""
        return sum(x is not None for x in (*self.values, *self.arriving, *self.leaving))

    def take_in(self, slot: int) -> None:
        """Wait for what is on its way here; nothing else holds it then."""
        pending = self.arriving[slot]
        assert pending is not None
        self.values[slot] = pending.wait()
        self.arriving[slot] = None


@dataclass
class Slots:
    """Numbers the values that ever lie in the executor's table: activations and gradients."""

    numbers: dict[Value, int] = field(default_factory=dict)

    def of(self, kind: ValueKind, stage: int, op: Op) -> int:
        """The slot of a value of an op's micro-batch."""
        return self.number(Value(kind, stage, op.microbatch, op.replica))

    def number(self, value: Value) -> int:
        """The slot of a value."""
        return self.numbers.setdefault(value, len(self.numbers))
