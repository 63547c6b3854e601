"""Constants of the published schedules whose weights move, as candidates of a search."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MovingFamiliesTuning:
    """The numbers that are tried, and their share of the time."""

    # Stages of a rank, and stages for which weights come in advance.
    rounds: tuple[int, ...] = (2, 3, 4, 6, 8)
    aheads: tuple[int, ...] = (0, 1, 2)
    # Shares of the remaining time, before the search for pipelines: if a search over rings or
    # all-gathers has found a schedule, and if not.
    share_beside_others: float = 0.15
    share_alone: float = 0.5
    # Ops that are simulated although it is over, if nothing else fits.
    first_ops: int = 100_000

    def share_of_left(self, *, is_alone: bool) -> float:
        """Return the share of the remaining time."""
        return self.share_alone if is_alone else self.share_beside_others


MOVING_FAMILIES = MovingFamiliesTuning()
