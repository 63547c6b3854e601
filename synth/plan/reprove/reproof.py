"""The outcome of proving the bound of a plan again."""

from dataclasses import dataclass
from enum import StrEnum


class ProofVerdict(StrEnum):
    """The outcome of proving a bound again."""

    PROVEN = "proven again"
    OPEN = "not within the limit"
    FALSE = "false"


@dataclass(frozen=True)
class Reproof:
    """The outcome for a plan, and its scope.

    Attributes:
        verdict: the verdict of the claim, as far as `holds_for` goes.
        reached_us: the bound that was proven here.
        holds_for: the schedules that the bound was proven for.
        on_trust: the part of the claim that is not verified here; None: all of it is verified.
        witness_us: the value of a schedule that is below the claimed bound, if one was found.
        seconds: the time spent.
        proven_from: the provers used, in words.
        is_refuted: the plan's certificate does not prove the bound, whether or not it holds.
    """

    verdict: ProofVerdict
    reached_us: int
    holds_for: str
    on_trust: str | None = None
    witness_us: int | None = None
    seconds: float = 0.0
    proven_from: str = ""
    is_refuted: bool = False

    @property
    def is_proven(self) -> bool:
        """True if the claim is proven as far as `holds_for` goes."""
        return self.verdict == ProofVerdict.PROVEN
