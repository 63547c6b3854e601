"""The steps of a search as one table: order, share of the remaining time, and condition.

The solver (`solver.py`) runs the steps from the first to the last and ends as soon as the incumbent
is proven or the time is up. A step names an improver by its part. Numbers are in `tuning.py`, the
order of the bounds among each other in `bounds/bound_policy.py`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from synth.schedule.model import Buffering
from synth.solve.bounds.prover import BoundStep
from synth.solve.instance.instance import Instance
from synth.solve.instance.memory_models import relaxed_memory, safe_memory
from synth.solve.options import Part, SolverName
from synth.solve.search_state import SearchState
from synth.solve.tuning import SEARCH


class Step(NamedTuple):
    """A run of an improver, or a step of the prover.

    Attributes:
        action: the improver's part, or the prover's step.
        share: of the time that remains.
        is_brief: the improver ends where little is gained, because other steps follow.
    """

    action: Part | BoundStep
    share: float = 1.0
    is_brief: bool = False


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
        is_within: True if the search serves another one.
    """

    without: frozenset[Part]
    num_ops: int
    holds_several: bool
    buffers_matter: bool
    proves_in_background: bool
    uses_milp: bool
    is_within: bool = False

    @classmethod
    def of(
        cls, state: SearchState, fusion_relaxed: Instance, *, proves_in_background: bool
    ) -> Self:
        """Read the facts off a search that begins."""
        unbuffered = safe_memory(state.problem, Buffering(0, 0))
        return cls(
            without=state.options.without,
            num_ops=fusion_relaxed.num_ops,
            holds_several=fusion_relaxed.holds_several,
            # A search that serves another one leaves exact memory to that.
            buffers_matter=bool(state.problem.caps_bytes)
            and not state.is_within
            and unbuffered != relaxed_memory(state.problem),
            proves_in_background=proves_in_background,
            uses_milp=state.options.solver == SolverName.MILP,
            is_within=state.is_within,
        )

    def has(self, *parts: Part) -> bool:
        """Return True if none of the parts is left out."""
        return self.without.isdisjoint(parts)

    @property
    def anneals(self) -> bool:
        """True if annealing on exact memory can gain something that models miss."""
        return self.buffers_matter and self.has(Part.ANNEALING)

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
        return self.without >= {Part.MODULO, Part.WINDOWS}

    @property
    def waits_for_first_bounds(self) -> bool:
        """True if bounds of one rank come before the search; else they begin in the background."""
        return self.is_small or not self.proves_in_background


def _always(_: SearchSetting) -> bool:
    return True


def _never(_: SearchSetting) -> bool:
    return False


def _with(part: Part) -> Callable[[SearchSetting], bool]:
    """Return the condition that a part is not left out."""
    return lambda setting: setting.has(part)


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

    action: Part | BoundStep
    when: Callable[[SearchSetting], bool]
    share: Callable[[SearchSetting], float] = _all
    is_brief: Callable[[SearchSetting], bool] = _never


_FIRST = (
    _Row(Part.LIST_SCHEDULING, _with(Part.LIST_SCHEDULING), is_brief=_always),
    _Row(Part.POLISH, _with(Part.POLISH)),
)

_BY_MILP = (_Row(Part.EXACT, _always),)

_BY_CPSAT = (
    _Row(BoundStep.ONE_BY_ONE, lambda s: s.has(Part.BOUNDS) and s.waits_for_first_bounds),
    _Row(BoundStep.IN_BACKGROUND, _with(Part.BOUNDS)),
    _Row(
        Part.EXACT,
        lambda s: s.anneals and s.is_tiny and s.has(Part.EXACT),
        lambda _: SEARCH.brief_share,
    ),
    _Row(
        Part.ANNEALING,
        lambda s: s.anneals,
        lambda _: SEARCH.annealing_share_first,
        is_brief=_always,
    ),
    _Row(Part.SHORT_INSTANCE, lambda s: s.has(Part.SHORT_INSTANCE, Part.EXACT) and not s.is_tiny),
    _Row(
        Part.EXACT,
        lambda s: s.has(Part.EXACT) and s.num_ops <= SEARCH.exact_brief_ops,
        _share_of_first_exact,
    ),
    _Row(
        Part.LIST_SCHEDULING,
        lambda s: s.has(Part.LIST_SCHEDULING) and not (s.is_small or s.is_exact_alone),
    ),
    _Row(Part.ONE_PER_PERIOD, _with(Part.ONE_PER_PERIOD)),
    _Row(Part.SEVERAL_PER_PERIOD, _with(Part.SEVERAL_PER_PERIOD)),
    _Row(BoundStep.IN_TURN, _with(Part.BOUNDS)),
    # On small problems the exact model may find more than a patient search.
    _Row(Part.WINDOWS, _with(Part.WINDOWS), _share_of_windows, is_brief=lambda s: s.is_small),
    _Row(Part.ANNEALING, lambda s: s.anneals, lambda _: SEARCH.annealing_share),
    _Row(
        Part.EXACT,
        lambda s: (
            s.has(Part.EXACT)
            and s.num_ops <= SEARCH.exact_most_ops
            and not (s.anneals and s.is_tiny)
        ),
        _share_of_last_exact,
    ),
    _Row(Part.ANNEALING, lambda s: s.anneals),
    _Row(BoundStep.AWAIT, _always),
)

_LAST = (
    _Row(Part.POLISH, _with(Part.POLISH)),
    _Row(Part.SIMPLIFICATION, _with(Part.SIMPLIFICATION)),
    _Row(Part.ROBUSTNESS, _with(Part.ROBUSTNESS)),
)


def steps(setting: SearchSetting) -> Iterator[Step]:
    """Yield the steps of a search in order, until it is proven or out of time."""
    return _steps_of((*_FIRST, *(_BY_MILP if setting.uses_milp else _BY_CPSAT)), setting)


def last_steps(setting: SearchSetting) -> Iterator[Step]:
    """Yield the steps that end a search, in its grace period; none if it serves another one."""
    return _steps_of(() if setting.is_within else _LAST, setting)


def _steps_of(rows: Iterable[_Row], setting: SearchSetting) -> Iterator[Step]:
    for row in rows:
        if row.when(setting):
            yield Step(row.action, row.share(setting), row.is_brief(setting))
