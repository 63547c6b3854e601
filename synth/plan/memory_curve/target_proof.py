"""The proof of the least memory limit under which a time is met."""

from dataclasses import dataclass

from synth.solver.result import MemoryProof


@dataclass(frozen=True)
class TargetProof(MemoryProof):
    """The least memory limit under which a time is met.

    Attributes:
        fastest_us: the best time found under any limit.
        bound_us: the best lower bound of the time without a limit.
    """

    target_us: int
    fastest_us: int | None
    bound_us: int
