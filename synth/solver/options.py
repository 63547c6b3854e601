"""Options of a search: limits, seed, exact solver, and the parts to leave out."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from synth.costs.recomputation import NOT_RECOMPUTED, Recomputation
from synth.errors import SynthError
from synth.schedule.model import Schedule
from synth.search.clock import Clock
from synth.solver.result import Result
from synth.system.processors import num_processors


class Part(StrEnum):
    """A part of the search, which can be left out to measure its worth.

    Each bound and each improver is one, and so are the passing pairs of the bounds' models.
    `BOUNDS` stands for all bounds that take time (`GROUPS`).
    Values stand in plan files and in benchmark results, so they outlive renamed members. Older
    files may name parts that were removed since.
    """

    FAMILIES = "families"
    LIST_SCHEDULING = "list scheduling"
    SHORT_INSTANCE = "fewer micro-batches"
    MODULO = "patterns"
    WINDOWS = "windows"
    ANNEALING = "local search"
    BOUNDS = "bounds"
    CLOSED_FORMS = "closed forms"
    RANK_SUBSETS = "rank subsets"
    FORWARD_SPACING = "forward spacing"
    IDLE_TIME = "idle time"
    PASSING_PAIRS = "passing pairs"
    EXACT = "exact"
    SIMPLIFICATION = "simplification"
    ROBUSTNESS = "slack"


# Parts that stand for several others.
GROUPS = {Part.BOUNDS: frozenset({Part.RANK_SUBSETS, Part.FORWARD_SPACING, Part.IDLE_TIME})}


def with_groups(parts: Iterable[Part]) -> frozenset[Part]:
    """Add the members of each group, and each group of which all members are there."""
    given = frozenset(parts)
    all_parts = given.union(*(GROUPS[part] for part in given & GROUPS.keys()))
    return all_parts | {group for group, members in GROUPS.items() if members <= all_parts}


class SolverName(StrEnum):
    """The exact solver."""

    CPSAT = "cpsat"
    MILP = "milp"


@dataclass(frozen=True)
class SolveOptions:
    """Limits, seed and parts of a search.

    Attributes:
        time_limit_s: seconds of the clock, or deterministic seconds of CP-SAT.
        gap: relative gap at which the search may stop.
        workers: threads, by default one per processor.
        deterministic: the same input gives the same output; the limit then counts effort.
        hint: a schedule to begin from.
        hint_found_by: the name under which the hint is reported.
        hint_layers: the layers that B recomputes in the hint, if recomputation is to be chosen.
        verbose: called with each line of CP-SAT's log.
        on_part: called with each part that takes a step, each time, from any thread.
        tries_less_memory: a race also runs under a lower memory limit for a part of the time.
        without: parts that are left out, with the members of groups and the groups of all members.
    """

    time_limit_s: float = 60.0
    gap: float = 0.0
    workers: int | None = None
    seed: int = 0
    deterministic: bool = False
    hint: Schedule | None = None
    hint_found_by: str = "hint"
    hint_layers: Recomputation = NOT_RECOMPUTED
    solver: SolverName = SolverName.CPSAT
    verbose: Callable[[str], None] | None = None
    on_part: Callable[[Part], None] | None = None
    tries_less_memory: bool = True
    without: frozenset[Part] = frozenset()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise SynthError(f"the seed is {self.seed}; give 0 or more")
        object.__setattr__(self, "without", with_groups(self.without))

    def clock(self, stop: threading.Event | None = None, least_share: float = 0.0) -> Clock:
        """Begin the time limit.

        Args:
            stop: set from outside to end the search early.
            least_share: share of the limit that a part needs at least.
        """
        return Clock(
            self.time_limit_s,
            is_deterministic=self.deterministic,
            stop=stop,
            least_s=least_share * self.time_limit_s,
        )

    @property
    def num_workers(self) -> int:
        """Threads to use, by default one for each processor that this process may use."""
        return self.workers or num_processors()

    def report_part(self, part: Part) -> None:
        """Tell the listener, if there is one, that a part takes a step."""
        if self.on_part is not None:
            self.on_part(part)

    def going_on_from(self, found: Result) -> "SolveOptions":
        """Return these options with a result's schedule, if it has one, as the hint."""
        if found.schedule is None:
            return self
        by = found.found_by or self.hint_found_by
        layers = found.problem.recomputed_layers
        return replace(self, hint=found.schedule, hint_found_by=by, hint_layers=layers)
