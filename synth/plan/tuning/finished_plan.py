"""Constants for finished plans: proofs made again, the sentence of reasons, and explanations."""

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


@dataclass(frozen=True)
class ExplainTuning:
    """What is told of a plan's idle time, and the changes whose gain is computed."""

    # Share of idle time below which a rank has no room for more work.
    little_idle_share: float = 0.05

    # Ops beyond which eager orders are not simulated; each takes 0.1 ms for each op, or more.
    most_eager_ops: int = 10_000

    # The part of its time that the slowest stage keeps when it is faster.
    faster_share: float = 0.9
    times_as_fast: float = 2.0
    more_bytes: int = 10**9


REPROVE = ReproveTuning()
REASON = ReasonTuning()
EXPLAIN = ExplainTuning()
