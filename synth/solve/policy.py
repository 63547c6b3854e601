"""The steps of a search as one table: order, share of the remaining time, and condition.

The solver (`solver.py`) runs the steps from the first to the last and ends as soon as the incumbent
is proven or the time is up. Numbers are in `tuning.py`, the order of the bounds among each other in
`bounds/bound_policy.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from synth.solve.options import Part
from synth.solve.tuning import SEARCH


class SearchAction(StrEnum):
    """A step's work."""

    QUICK_LIST_SCHEDULING = "list scheduling, briefly"
    POLISH = "polish"
    MILP = "mixed-integer program"
    BOUNDS_ONE_BY_ONE = "bounds of one rank at a time"
    BACKGROUND_BOUNDS = "bounds in the background"
    EXACT = "exact model"
    FIRST_ANNEALING = "annealing until it stalls"
    SHORT_INSTANCE = "short instance"
    LIST_SCHEDULING = "list scheduling"
    MODULO = "modulo scheduling"
    BOUNDS_IN_TURN = "bounds in turn with the search"
    WINDOWS = "windows"
    ANNEALING = "annealing"
    AWAIT_BOUNDS = "end of the bounds in the background"


class Step(NamedTuple):
    """An action, and its share of the time that remains."""

    action: SearchAction
    share: float = 1.0


@dataclass(frozen=True)
class SearchSetting:
    """The facts on which the steps depend; none of them changes during a search.

    Attributes:
        without: parts that are left out.
        num_ops: F, B and W of all stage copies.
        holds_several: True if some rank holds several stage copies.
        buffers_matter: True if the memory models only bracket the exact memory.
        proves_in_background: True if bounds have workers of their own.
        uses_milp: True if the exact solver is the mixed-integer program.
    """

    without: frozenset[Part]
    num_ops: int
    holds_several: bool
    buffers_matter: bool
    proves_in_background: bool
    uses_milp: bool

    def has(self, *parts: Part) -> bool:
        """Return True if none of the parts is left out."""
        return self.without.isdisjoint(parts)

    @property
    def anneals(self) -> bool:
        """True if annealing on exact memory can gain something that models miss."""
        return self.buffers_matter and self.has(Part.LOCAL_SEARCH)

    @property
    def is_tiny(self) -> bool:
        """True if the exact model gets all the time."""
        return self.num_ops <= SEARCH.exact_alone_ops

    @property
    def is_small(self) -> bool:
        """True if the exact model may find or prove something soon."""
        most_ops = SEARCH.small_ops_of_several if self.holds_several else SEARCH.small_ops
        return self.num_ops <= most_ops

    @property
    def is_exact_alone(self) -> bool:
        """True if only the exact model improves on the heuristics."""
        return self.without >= {Part.PATTERNS, Part.WINDOWS}

    @property
    def waits_for_first_bounds(self) -> bool:
        """True if bounds of one rank come before the search; else they begin in the background."""
        return self.is_small or not self.proves_in_background


def _always(_: SearchSetting) -> bool:
    return True


def _all(_: SearchSetting) -> float:
    return 1.0


def _share_of_first_exact(setting: SearchSetting) -> float:
    if not (setting.is_tiny or setting.is_exact_alone):
        return SEARCH.brief_share
    return SEARCH.annealing_share if setting.anneals else 1.0


def _share_of_last_exact(setting: SearchSetting) -> float:
    return SEARCH.annealing_share if setting.anneals else 1.0


def _share_of_windows(setting: SearchSetting) -> float:
    return SEARCH.window_share if setting.is_small else SEARCH.window_share_of_large


class _Row(NamedTuple):
    """A step with its condition."""

    action: SearchAction
    when: Callable[[SearchSetting], bool]
    share: Callable[[SearchSetting], float] = _all


_FIRST = (
    _Row(SearchAction.QUICK_LIST_SCHEDULING, lambda s: s.has(Part.LIST_SCHEDULING)),
    _Row(SearchAction.POLISH, _always),
)

_BY_MILP = (_Row(SearchAction.MILP, _always),)

_BY_CPSAT = (
    _Row(SearchAction.BOUNDS_ONE_BY_ONE, lambda s: s.has(Part.BOUNDS) and s.waits_for_first_bounds),
    _Row(SearchAction.BACKGROUND_BOUNDS, lambda s: s.has(Part.BOUNDS)),
    _Row(
        SearchAction.EXACT,
        lambda s: s.anneals and s.is_tiny and s.has(Part.EXACT),
        lambda _: SEARCH.brief_share,
    ),
    _Row(SearchAction.FIRST_ANNEALING, lambda s: s.anneals, lambda _: SEARCH.annealing_share_first),
    _Row(SearchAction.SHORT_INSTANCE, lambda s: s.has(Part.FEWER, Part.EXACT) and not s.is_tiny),
    _Row(
        SearchAction.EXACT,
        lambda s: s.has(Part.EXACT) and s.num_ops <= SEARCH.exact_brief_ops,
        _share_of_first_exact,
    ),
    _Row(
        SearchAction.LIST_SCHEDULING,
        lambda s: s.has(Part.LIST_SCHEDULING) and not (s.is_small or s.is_exact_alone),
    ),
    _Row(SearchAction.MODULO, lambda s: s.has(Part.PATTERNS)),
    _Row(SearchAction.BOUNDS_IN_TURN, lambda s: s.has(Part.BOUNDS)),
    _Row(SearchAction.WINDOWS, lambda s: s.has(Part.WINDOWS), _share_of_windows),
    _Row(SearchAction.ANNEALING, lambda s: s.anneals, lambda _: SEARCH.annealing_share),
    _Row(
        SearchAction.EXACT,
        lambda s: (
            s.has(Part.EXACT)
            and s.num_ops <= SEARCH.exact_most_ops
            and not (s.anneals and s.is_tiny)
        ),
        _share_of_last_exact,
    ),
    _Row(SearchAction.ANNEALING, lambda s: s.anneals),
    _Row(SearchAction.AWAIT_BOUNDS, _always),
)


def steps(setting: SearchSetting) -> Iterator[Step]:
    """Yield the steps of a search in order."""
    for row in (*_FIRST, *(_BY_MILP if setting.uses_milp else _BY_CPSAT)):
        if row.when(setting):
            yield Step(row.action, row.share(setting))
