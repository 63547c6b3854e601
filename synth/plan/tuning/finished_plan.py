"""Constants for finished plans: proofs made again, and the sentence of reasons."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReproveTuning:
    """Proving the bounds of a plan again."""

    # Share of the time for the plan's own partition if all provers run; the rest is for all others.
    own_partition_share: float = 0.5


@dataclass(frozen=True)
class ReasonTuning:
    """The known schedule that a plan is compared with."""

    # F, B and W ops beyond which ZB-V is not generated. Fitting it to the times of the
    # stages takes 0.1 ms for each op.
    most_ops_of_v: int = 10_000


REPROVE = ReproveTuning()
REASON = ReasonTuning()
