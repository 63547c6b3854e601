"""The interface of an improver, and the search that it is a part of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from synth.objective import Spans
from synth.solver.instance.instance import Instance
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.search_setting import SearchSetting
from synth.solver.search_state import SearchState
from synth.solver.watch import OnImprovement


@dataclass(frozen=True)
class SearchContext:
    """The search that improvers are parts of.

    Attributes:
        setting: the facts on which steps depend.
        state: takes schedules and bounds; has the budget and the known orders.
        fusion_relaxed: the instance whose bounds hold for split and fused schedules.
        work: closed-form bounds of makespan and period.
        workers: threads that the bounds in the background leave.
        on_optimum: called when the relaxed instance is solved to its optimum.
        search: solves another problem within the limits of this search.
    """

    setting: SearchSetting
    state: SearchState
    fusion_relaxed: Instance
    work: Spans
    workers: int
    on_optimum: Callable[[], None]
    search: Callable[[Problem, SolveOptions, OnImprovement], Result]


class Improver(Protocol):
    """A heuristic that offers schedules to a search; made once for each search.

    Attributes:
        part: the part of the search that it is, by which steps name it and it is left out.
    """

    part: ClassVar[Part]

    def __init__(self, context: SearchContext) -> None: ...

    def run(self, share: float, *, is_brief: bool) -> None:
        """Offer schedules to the state of the search; a second run continues the first.

        Args:
            share: the share of the remaining time. Improvers that take little time, or know by
                themselves how much they are worth, may ignore it.
            is_brief: end where little is gained, because other steps follow.
        """
        ...
