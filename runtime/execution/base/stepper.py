"""The interface between the executor and the optimizer steps."""

from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable


class Stepper(Protocol):
    """Carries out STEP, and owns the gradients."""

    late: bool
    """True if steps are validated some time after they were taken, by `validate`."""

    def begin(self) -> None:
        """Called at the start of an iteration."""
        ...

    def validate(self) -> bool:
        """Called if `late`, before the first op that writes gradients.

        Returns:
            True if the previous step was right. If it was not, it has been corrected, the state
                that the iteration changed has been restored, and the iteration begins again.
        """
        ...

    def synchronize(self) -> None:
        """Called before the first STEP, when all gradients are complete, for a global norm."""
        ...

    def step(self, stage: int) -> None:
        """Update one stage's parameters: once in an iteration, or at each STEP without a flush."""
        ...

    def finish(self) -> bool:
        """Make the last step final; called on all ranks before parameters are read.

        Returns:
            True if the step was right as it was taken.
        """
        ...


class WeightRead(NamedTuple):
    """The version of a stage's weights that a forward reads.

    Attributes:
        delay: the updates between this version and the one that the forward's gradient updates.
        is_newest: True if no update has replaced this version.
    """

    stage: int
    delay: int
    is_newest: bool


@runtime_checkable
class ForwardPredictor(Protocol):
    """A stepper that can change the weights for the time of a forward."""

    predicts: bool
    """True if it does."""

    def around_forward(self, read: WeightRead) -> AbstractContextManager[None]:
        """Enter a context for a forward; the weights are the same after it."""
        ...
