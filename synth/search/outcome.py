"""The end of a search: its reason, and the distance from a bound."""

from enum import StrEnum


class StoppedBy(StrEnum):
    """The reason why a search ended.

    Nothing better: all its parts have ended by themselves, and a gap is left, so that it is open
    whether there is a better schedule.
    """

    OPTIMAL = "optimal"
    GAP = "gap"
    TIME_LIMIT = "time limit"
    NOTHING_BETTER = "nothing better found"
    INTERRUPT = "interrupt"
    INFEASIBLE = "infeasible"


def reason_of_end(
    value: float | None,
    bound: float,
    gap: float,
    *,
    is_interrupted: bool,
    is_exhausted: bool,
    is_infeasible: bool = False,
) -> StoppedBy:
    """Return why a search that minimizes a value has ended.

    Args:
        value: the best value found; None: nothing was found.
        bound: a lower bound of the value, in the same unit.
        gap: the relative gap that is accepted.
        is_interrupted: the search was asked to stop.
        is_exhausted: nothing was left to try; else the time was over.
        is_infeasible: it is proven that there is no value.
    """
    if is_infeasible:
        return StoppedBy.INFEASIBLE
    if value is not None and value <= bound:
        return StoppedBy.OPTIMAL
    if is_interrupted:
        return StoppedBy.INTERRUPT
    if value is not None and relative_gap(value, bound) <= gap:
        return StoppedBy.GAP
    return StoppedBy.NOTHING_BETTER if is_exhausted else StoppedBy.TIME_LIMIT


def relative_gap(value: float, bound: float) -> float:
    """(value − bound) / value, 0 if both are 0."""
    return (value - bound) / value if value else 0.0


def rank_key(value_us: int | None) -> tuple[bool, int]:
    """The key that orders values, smaller first; no value is worst."""
    return value_us is None, value_us or 0
