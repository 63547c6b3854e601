"""The values and open transfers that a rank holds during one step, each in a slot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Op, Value, ValueKind

from ...batch import Batch
from .boundary import Boundary, Tensors
from .channels import Pending
from .loss_terms import LossTerms

Shapes = Sequence[Sequence[Boundary]]
# The bytes of each storage of activations that move to another rank, by stage and micro-batch.
SavedSizes = Mapping[tuple[int, int], tuple[int, ...]]
_NO_TERMS = LossTerms(())


@dataclass
class StepTable:
    """The state of one step; empty between steps.

    Values and receives are indexed by slot, sends by their numbers, see `Slots`.
    """

    batch: Batch = field(default_factory=Batch)
    shapes: Shapes = ()
    saved_sizes: SavedSizes = field(default_factory=dict)
    terms: LossTerms = _NO_TERMS
    values: list[Tensors | None] = field(default_factory=list)
    arriving: list[Pending | None] = field(default_factory=list)
    leaving: dict[int, Pending] = field(default_factory=dict)
    updating: bool = False
    versions: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    """By stage and slot, autograd's counts of the changes of outputs when they were made."""

    def begin(
        self,
        batch: Batch,
        shapes: Shapes,
        saved_sizes: SavedSizes,
        terms: LossTerms,
        num_slots: int,
    ) -> None:
        """Begin a step without values."""
        self.batch, self.shapes, self.saved_sizes = batch, shapes, saved_sizes
        self.terms, self.updating = terms, False
        self.values = [None] * num_slots
        self.arriving = [None] * num_slots
        self.leaving = {}
        self.versions = {}

    def clear(self) -> None:
        """Drop everything of a step that has ended."""
        self.begin(Batch(), (), {}, _NO_TERMS, 0)

    @property
    def num_held(self) -> int:
        """The number of values and open transfers."""
        open_ones = (*self.values, *self.arriving, *self.leaving.values())
        return sum(x is not None for x in open_ones)

    def take_in(self, slot: int) -> None:
        """Wait for the transfer that arrives in a slot, and keep its value alone."""
        pending = self.arriving[slot]
        if pending is None:
            raise RuntimeError(f"slot {slot} has no open receive")
        self.values[slot] = pending.wait()
        self.arriving[slot] = None


@dataclass
class Slots:
    """Numbers the values that appear in the executor's table, and the sends."""

    numbers: dict[Value, int] = field(default_factory=dict)
    sends: dict[Transfer, int] = field(default_factory=dict)

    def of(self, kind: ValueKind, stage: int, op: Op) -> int:
        """Return the slot of a value of an op's micro-batch."""
        return self.number(Value(kind, stage, op.microbatch, op.replica))

    def number(self, value: Value) -> int:
        """Return the slot of a value, a new one for a new value."""
        return self.numbers.setdefault(value, len(self.numbers))

    def send_number(self, transfer: Transfer) -> int:
        """Return the number of a send; a value may be sent to several ranks, or to the host too."""
        return self.sends.setdefault(transfer, len(self.sends))
