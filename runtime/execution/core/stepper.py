"""What the executor needs of whoever carries out STEP."""

from typing import Protocol


class Stepper(Protocol):
    """Whoever carries out STEP, and keeps the gradients."""

    late: bool
    """Whether a step is known to be right only some time after it was taken: `validate`."""

    def begin(self) -> None:
        """Called when an iteration begins."""
        ...

    def validate(self) -> bool:
        """Called if late, before the first op that writes gradients.

        Returns:
            Whether the step before was right. If not it was put right, everything that the
            iteration changed was put back, and it begins again.
        """
        ...

    def synchronize(self) -> None:
        """Called before the first STEP, when all gradients are there: a global norm, say."""
        ...

    def step(self, stage: int) -> None:
        """Update one stage's parameters; called once for each stage on this rank."""
        ...

    def finish(self) -> bool:
        """Called between iterations, on all ranks, where parameters are to be read: make the last
        step final.

        Returns:
            Whether it was right as it was taken.
        """
        ...
