"""A change of a plan's conditions, and what it gives: a record of something recomputed."""

from enum import StrEnum

from synth.records.record import Record


class How(StrEnum):
    """How the value of a change was computed."""

    SAME_ORDER = "same order"
    SEARCH = "new search"


class WhatIf(Record):
    """The value of a plan under changed conditions.

    Attributes:
        how: the plan's order was simulated again, or an order was searched for.
        value_us: the value of the objective; None: there is none, see `note`.
        change_share: the value for each micro-batch against the plan's, less 1: below 0 is shorter.
            0 for a search whose value is not below what is proven for the plan's own conditions.
        note: what else there is to say; may be empty.
    """

    change: str
    how: How
    value_us: int | None = None
    change_share: float | None = None
    note: str = ""


def compared(change: str, how: How, value_us: int, own_us: float, note: str = "") -> WhatIf:
    """Return a what-if with its share of the plan's own value, both in microseconds."""
    share = value_us / own_us - 1 if own_us else 0.0
    return WhatIf(change=change, how=how, value_us=value_us, change_share=share, note=note)
