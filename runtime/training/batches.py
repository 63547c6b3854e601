"""The mini-batches of a run, in order, on this rank's device."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from synth.schedule.files.plan_file import Plan

from ..batch import Batch
from ..checkpoint import TrainingState
from .function_data import FunctionData
from .run_data import RunData
from .staging import Copy, PinnedStaging, PlainStaging


class MiniBatch(NamedTuple):
    """One mini-batch, and the number of its first sequence in the data."""

    first_sequence: int
    batch: Batch


class Batches:
    """Takes the next mini-batches of the data, in order.

    Data-parallel pipelines take turns: of two, one takes the mini-batches 0, 2, 4, …, the other
    1, 3, 5, …
    """

    def __init__(
        self,
        data: RunData,
        plan: Plan,
        *,
        per_step: int,
        inputs: bool,
        targets: bool,
        device: torch.device,
        pipeline: int = 0,
        num_pipelines: int = 1,
    ) -> None:
        """Prepare to load mini-batches.

        Args:
            plan: the number of micro-batches, and the sequences in each.
            per_step: mini-batches per optimizer step and pipeline.
            inputs: True if this rank needs inputs, for the first stage.
            targets: True if it needs targets, for the last stage.
            device: the device to copy them to.
            num_pipelines: the pipelines that share the data.

        Raises:
            SynthError: there is not enough data for one step.
        """
        self._data, self._plan = data, plan
        self._per_step, self._inputs, self._targets = per_step, inputs, targets
        self._pipeline, self._num_pipelines = pipeline, num_pipelines
        self._next_sequence = 0
        self._staging = self._make_staging(device)
        data.check_enough(self.sequences_per_step)

    @property
    def sequences_per_step(self) -> int:
        """Number of sequences that an optimizer step takes, of all pipelines together."""
        return self._per_step * self._num_pipelines * self._sequences_per_batch

    @property
    def _sequences_per_batch(self) -> int:
        return self._plan.num_micro_batches * self._plan.workload.micro_batch_size

    def go_to(self, sequence: int) -> None:
        """Continue at this sequence: the data position of a checkpoint."""
        self._next_sequence = sequence

    def steps_left(self, start: TrainingState) -> int | None:
        """The number of optimizer steps that the data holds from there on; None: unlimited.

        It is negative if training has used more than the data holds.
        """
        held = self._data.num_sequences
        return None if held is None else (held - start.sequences) // self.sequences_per_step

    def take(self) -> list[MiniBatch]:
        """Load this pipeline's mini-batches of the next optimizer step.

        Raises:
            EndOfData: there are none left.
        """
        numbers = range(self._pipeline, self._per_step * self._num_pipelines, self._num_pipelines)
        firsts = [self._next_sequence + n * self._sequences_per_batch for n in numbers]
        self._next_sequence += self.sequences_per_step
        with self._staging.step() as copy:
            return [MiniBatch(first, self._load(first, copy)) for first in firsts]

    def _make_staging(self, device: torch.device) -> PinnedStaging | PlainStaging:
        """Make the staging to the device; on CUDA with pinned memory if this rank needs data."""
        sides = self._inputs + self._targets
        if device.type != "cuda" or not sides or isinstance(self._data, FunctionData):
            return PlainStaging(device)
        workload = self._plan.workload
        shape = (workload.micro_batch_size, workload.sequence_length)
        return PinnedStaging(device, shape, self._per_step * self._plan.num_micro_batches * sides)

    def _load(self, first: int, copy: Copy) -> Batch:
        """Load a mini-batch; an empty one on a rank that needs neither inputs nor targets."""
        if not self._inputs and not self._targets:
            return Batch()
        plan = self._plan
        size = plan.workload.micro_batch_size
        pairs = list(self._data.mini_batch(first, plan.num_micro_batches, size))
        return Batch(
            [_copied(x, copy) for x, _ in pairs] if self._inputs else None,
            [_copied(y, copy) for _, y in pairs] if self._targets else None,
        )


def _copied(tree: Any, copy: Copy) -> Any:
    return pytree.tree_map_only(Tensor, copy, tree)
