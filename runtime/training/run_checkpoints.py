"""The checkpoints of a run; a run without a folder for them has none."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

from torch import nn

from ..checkpoint import CheckpointOptions, TrainingState
from ..execution.weights.shared_tensor import SharedParameter
from ..optimize import StageSteps

if TYPE_CHECKING:
    from ..checkpoint.checkpointer import Checkpointer


class RunCheckpoints:
    """Saves and restores checkpoints on one rank, if the run has any."""

    def __init__(self, checkpointer: "Checkpointer | None", every: int) -> None:
        """Take a rank's checkpointer.

        Args:
            checkpointer: None: nothing is saved, and nothing is restored.
            every: the number of steps between two checkpoints.
        """
        self._checkpointer, self._every = checkpointer, every

    @classmethod
    def open(
        cls,
        options: CheckpointOptions | None,
        layers: Mapping[str, nn.Module],
        optimizer: StageSteps,
        *,
        timeout_s: float,
        shared: Mapping[nn.Parameter, SharedParameter],
        restarted: bool,
    ) -> Self:
        """Open the folder; all ranks call this at the same time.

        Args:
            options: None: the run has no checkpoints.
            layers: see `Checkpointer`, as for the others.
            timeout_s: the time limit of messages between ranks.
            shared: parameters of which the rank holds a part.
            restarted: True if the run's processes were started again.

        Raises:
            SynthError: the folder cannot be used, or holds another run's checkpoints.
        """
        if options is None:
            return cls(None, 1)
        from ..checkpoint.checkpointer import Checkpointer  # slow to import

        made = Checkpointer(
            options, layers, optimizer, timeout_s=timeout_s, shared=shared, restarted=restarted
        )
        return cls(made, options.every)

    @property
    def are_wanted(self) -> bool:
        """True if the run has checkpoints."""
        return self._checkpointer is not None

    @property
    def failed_step(self) -> int | None:
        """The step of the last checkpoint, if it could not be written."""
        return None if self._checkpointer is None else self._checkpointer.failed_step

    def is_due(self, step: int) -> bool:
        """Return True if a checkpoint is to be saved after so many steps, by their interval."""
        return self.are_wanted and step % self._every == 0

    def restore(self, check: Callable[[TrainingState], None]) -> TrainingState | None:
        """Load a checkpoint as the options say; None: the run begins anew."""
        return None if self._checkpointer is None else self._checkpointer.restore(check)

    def save(self, state: TrainingState) -> None:
        """Begin to write a checkpoint."""
        if self._checkpointer is not None:
            self._checkpointer.save(state)

    def poll(self) -> None:
        """Complete a checkpoint that has been written meanwhile."""
        if self._checkpointer is not None:
            self._checkpointer.poll()

    def wait(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._checkpointer is not None:
            self._checkpointer.wait()
