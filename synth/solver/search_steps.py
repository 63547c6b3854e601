"""The steps of a search as one table: order, share of the remaining time, and condition.

The solver (`solver.py`) runs the steps from the first to the last and ends as soon as the incumbent
is proven or the time is up. A step names an improver by its part. Numbers are in `tuning`, the
order of the bounds among each other in `bounds/bound_policy.py`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from synth.solver.bounds.prover import BoundStep
from synth.solver.options import Part
from synth.solver.search_setting import SearchSetting
from synth.solver.tuning import SEARCH


class Step(NamedTuple):
    """A run of an improver, or a step of the prover.

    Attributes:
        action: the improver's part, or the prover's step.
        share: the share of the time that remains. Improvers of rows with `_own` choose a smaller
            one, and a deterministic search counts effort by `tuning` instead.
        is_brief: the improver ends where little is gained, because other steps follow.
    """

    action: Part | BoundStep
    share: float = 1.0
    is_brief: bool = False


def _always(_: SearchSetting) -> bool:
    return True


def _never(_: SearchSetting) -> bool:
    return False


def _with(part: Part) -> Callable[[SearchSetting], bool]:
    """Return the condition that a part is not left out."""
    return lambda setting: setting.has(part)


def _all(_: SearchSetting) -> float:
    return 1.0


def _own(_: SearchSetting) -> float:
    """Leave it to the improver, which knows by itself how much time it is worth."""
    return 1.0


def _share_of_first_exact(setting: SearchSetting) -> float:
    if not (setting.is_tiny or setting.is_exact_alone):
        return SEARCH.brief_share
    return SEARCH.annealing_share if setting.anneals else 1.0


def _share_of_last_exact(setting: SearchSetting) -> float:
    return SEARCH.annealing_share if setting.anneals else 1.0


def _share_of_first_annealing(setting: SearchSetting) -> float:
    if setting.anneals_most:
        return SEARCH.annealing_share_first_of_several
    return SEARCH.annealing_share_first


def _share_of_windows(setting: SearchSetting) -> float:
    if setting.anneals_most:
        return SEARCH.window_share_beside_annealing
    return SEARCH.window_share if setting.is_small else SEARCH.window_share_of_large


def _share_of_annealing(setting: SearchSetting) -> float:
    return SEARCH.annealing_share_of_several if setting.anneals_most else SEARCH.annealing_share


class _Row(NamedTuple):
    """A step with its condition."""

    action: Part | BoundStep
    when: Callable[[SearchSetting], bool]
    share: Callable[[SearchSetting], float] = _all
    is_brief: Callable[[SearchSetting], bool] = _never


_FIRST = (_Row(Part.LIST_SCHEDULING, _with(Part.LIST_SCHEDULING), _own, is_brief=_always),)

_BY_MILP = (_Row(Part.EXACT, _always),)

_BY_CPSAT = (
    _Row(BoundStep.ONE_BY_ONE, lambda s: s.has(Part.BOUNDS) and s.waits_for_first_bounds),
    _Row(BoundStep.IN_BACKGROUND, _with(Part.BOUNDS)),
    _Row(
        Part.EXACT,
        lambda s: s.anneals and s.is_tiny and s.has(Part.EXACT),
        lambda _: SEARCH.brief_share,
    ),
    # Where ranks hold several stages blocks are found soon, and annealing makes more of them.
    _Row(Part.MODULO, lambda s: s.has(Part.MODULO) and s.holds_several, _own),
    _Row(Part.ANNEALING, lambda s: s.anneals, _share_of_first_annealing, is_brief=_always),
    _Row(
        Part.SHORT_INSTANCE,
        lambda s: s.has(Part.SHORT_INSTANCE, Part.EXACT) and not s.is_tiny,
        _own,
    ),
    _Row(Part.EXACT, lambda s: s.tries_exact, _share_of_first_exact),
    _Row(
        Part.LIST_SCHEDULING,
        lambda s: (
            s.has(Part.LIST_SCHEDULING) and not (s.is_small or s.is_exact_alone or s.anneals_most)
        ),
        _own,
    ),
    _Row(Part.MODULO, lambda s: s.has(Part.MODULO) and not s.holds_several, _own),
    _Row(BoundStep.IN_TURN, _with(Part.BOUNDS)),
    # On small problems the exact model may find more than a patient search, and where ranks hold
    # several stages long rounds of annealing do.
    _Row(
        Part.WINDOWS,
        _with(Part.WINDOWS),
        _share_of_windows,
        is_brief=lambda s: s.is_small or s.anneals_most,
    ),
    _Row(Part.ANNEALING, lambda s: s.anneals, _share_of_annealing),
    _Row(
        Part.EXACT,
        lambda s: (
            s.has(Part.EXACT)
            and s.num_ops <= SEARCH.exact_most_ops
            and not (s.anneals and s.is_tiny)
            and (s.is_small or not s.anneals_most)
        ),
        _share_of_last_exact,
    ),
    _Row(Part.ANNEALING, lambda s: s.anneals),
    _Row(BoundStep.AWAIT, _always),
)

_LAST = (
    _Row(Part.SIMPLIFICATION, _with(Part.SIMPLIFICATION)),
    _Row(Part.ROBUSTNESS, _with(Part.ROBUSTNESS)),
)


def steps(setting: SearchSetting) -> Iterator[Step]:
    """Yield the steps of a search in order; the search ends them once it is proven or late."""
    return _steps_of((*_FIRST, *(_BY_MILP if setting.uses_milp else _BY_CPSAT)), setting)


def last_steps(setting: SearchSetting) -> Iterator[Step]:
    """Yield the steps that end a search, in its grace period; none if it serves another one."""
    return _steps_of(() if setting.is_within else _LAST, setting)


def _steps_of(rows: Iterable[_Row], setting: SearchSetting) -> Iterator[Step]:
    for row in rows:
        if row.when(setting):
            yield Step(row.action, row.share(setting), row.is_brief(setting))
