"""The mini-batches of a run, one after the other, on this rank's device."""

import torch

from synth.schedule.file import Plan

from ..batch import Batch
from ..checkpoint import TrainingState
from .data import TokenData


class Batches:
    """Takes the next mini-batches of the data, in order."""

    def __init__(
        self,
        data: TokenData,
        plan: Plan,
        *,
        per_step: int,
        inputs: bool,
        targets: bool,
        device: torch.device,
    ) -> None:
        """Prepare to take.

        Args:
            data: all of it.
            plan: how many micro-batches of how many sequences.
            per_step: how many mini-batches an optimizer step takes.
            inputs: whether this rank needs them, as the one with the first stage.
            targets: the same for the last stage.
            device: where they go.

        Raises:
            SynthError: there is not enough data for one step.
        """
        self._data, self._plan, self._device = data, plan, device
        self._per_step, self._inputs, self._targets = per_step, inputs, targets
        self._next_sequence = 0
        data.check_enough(self.sequences_per_step)

    @property
    def sequences_per_step(self) -> int:
        """How many sequences an optimizer step takes."""
        return self._per_step * self._plan.num_micro_batches * self._plan.workload.micro_batch_size

    def go_to(self, sequence: int) -> None:
        """Take this sequence next: the data position of a checkpoint."""
        self._next_sequence = sequence

    def steps_left(self, start: TrainingState) -> int | None:
        """How many optimizer steps the data gives from there on; none: it has no end.

        Below 0 where more was trained on than the data holds.
        """
        held = self._data.num_sequences
        return None if held is None else (held - start.sequences) // self.sequences_per_step

    def take(self) -> list[Batch]:
        """The mini-batches of the next optimizer step.

        Raises:
            EndOfData: there are none left.
        """
        return [self._take_one() for _ in range(self._per_step)]

    def _take_one(self) -> Batch:
        """A mini-batch; nothing is drawn on a rank that needs neither inputs nor targets."""
        plan, device = self._plan, self._device
        size = plan.workload.micro_batch_size
        first = self._next_sequence
        self._next_sequence += plan.num_micro_batches * size
        if not self._inputs and not self._targets:
            return Batch()
        pairs = list(self._data.mini_batch(first, plan.num_micro_batches, size))
        return Batch(
            [x.to(device) for x, _ in pairs] if self._inputs else None,
            [y.to(device) for _, y in pairs] if self._targets else None,
        )
