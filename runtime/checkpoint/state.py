"""What a checkpoint says besides its tensors: enough to go on, and to refuse the wrong model."""

from typing import ClassVar

from pydantic import NonNegativeInt

from synth.errors import Mismatch, SynthError
from synth.record import FileRecord


class TrainingState(FileRecord):
    """Where training stands after `step` optimizer steps.

    There is no generator state: every random number of a run is a function of the seed and of
    what it is for (a layer's weights, the n-th sequence, a layer's dropout in a micro-batch of a
    step), so the seed and the two counts are the whole of it, under any partition.
    """

    FORMAT: ClassVar[str] = "synth-checkpoint"
    VERSION: ClassVar[int] = 1
    MADE_BY: ClassVar[str] = "synth run --checkpoint"

    step: NonNegativeInt
    sequences: NonNegativeInt
    """The data position: how many sequences have been trained on."""
    seed: NonNegativeInt
    model: str
    layers: tuple[str, ...]
    plan: str

    def check_goes_on(self, found: "TrainingState", steps: int) -> None:
        """Whether this run of so many steps may go on from a checkpoint's state.

        Raises:
            SynthError: it is of other layers or another seed, or goes beyond.
        """
        if found.layers != self.layers:
            raise Mismatch(
                f"the checkpoint is of {found.model!r} with {len(found.layers)} layers "
                f"({', '.join(found.layers[:3])}, …), the plan of {self.model!r} with "
                f"{len(self.layers)} ({', '.join(self.layers[:3])}, …)"
            )
        if found.seed != self.seed:
            raise SynthError(
                f"the checkpoint was made with seed {found.seed}, this run has {self.seed}: its "
                f"data would come in another order; give --seed {found.seed}"
            )
        if found.step > steps:
            raise SynthError(
                f"the checkpoint already holds {found.step} steps, this run has only {steps}; give "
                f"more --steps or --epochs"
            )
