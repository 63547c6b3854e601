"""What is asked of the solver, and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from synth.certificate import Certificate
from synth.costs import Costs
from synth.errors import SynthError
from synth.objective import BoundScope, Objective
from synth.processors import num_processors
from synth.profile import Profile
from synth.schedule.model import Placement, Schedule
from synth.schedule.simulate import Timeline
from synth.solve.tuning import SEARCH


class StoppedBy(StrEnum):
    """Why a search ended; exhausted: every part searched to its end, and a gap is left."""

    OPTIMAL = "optimal"
    GAP = "gap"
    TIME_LIMIT = "time limit"
    EXHAUSTED = "exhausted"
    INTERRUPT = "interrupt"
    INFEASIBLE = "infeasible"


class Part(StrEnum):
    """A part of the search that can be left out, to see what it is good for."""

    FAMILIES = "families"
    LIST_SCHEDULING = "list scheduling"
    FEWER = "fewer micro-batches"
    PATTERNS = "patterns"
    WINDOWS = "windows"
    LOCAL_SEARCH = "local search"
    BOUNDS = "bounds"
    EXACT = "exact"
    SLACK = "slack"


class SolverName(StrEnum):
    """Which exact solver runs after the heuristics."""

    CPSAT = "cpsat"
    MILP = "milp"


@dataclass(frozen=True)
class Problem:
    """Find the order of F, B, W of every rank that is fastest within the caps.

    `caps_bytes[rank]` is the most that a rank may hold at any moment, everything counted; None is
    no limit. `partition`, the layers of each stage, only serves explanations; `partition_is_best`
    says that where it cannot keep the caps no other one can, nor a smaller limit for all ranks.
    `recomputed_layers` are those that B recomputes, which the costs count. `profile` has the layers
    where none of these is recomputed; with it a search may choose them (`plan.layer_choice`).
    """

    costs: Costs
    placement: Placement
    num_micro_batches: int
    caps_bytes: tuple[int, ...] | None = None
    objective: Objective = Objective.MAKESPAN
    partition: tuple[int, ...] | None = None
    partition_is_best: bool = False
    recomputed_layers: tuple[int, ...] = ()
    profile: Profile | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        num_stages = self.costs.num_stages
        if self.num_micro_batches < 1:
            raise SynthError(
                f"{self.num_micro_batches} micro-batches given; at least one is needed"
            )
        num_ops = 3 * self.num_micro_batches * num_stages
        if num_ops > SEARCH.most_ops:
            raise SynthError(
                f"{self.num_micro_batches} micro-batches in {num_stages} stages make {num_ops:,} "
                f"ops, more than the {SEARCH.most_ops:,} that the solver handles; give at most "
                f"{SEARCH.most_ops // (3 * num_stages):,} micro-batches"
            )
        if self.placement.num_stages != num_stages:
            raise SynthError(
                f"the placement has {self.placement.num_stages} stages, the costs {num_stages}; "
                f"cut the profile into as many stages as the placement has"
            )
        held = self.placement.held
        if not all(held):
            raise SynthError(
                f"the placement leaves rank {held.index(())} without a stage; use fewer ranks"
            )
        if self.num_micro_batches < self.num_replicas:
            raise SynthError(
                f"too few micro-batches ({self.num_micro_batches}) for {self.num_replicas} "
                f"replicas; give at least one for each, or a placement with one replica"
            )
        if self.caps_bytes is not None and len(self.caps_bytes) != self.num_ranks:
            raise SynthError(
                f"{len(self.caps_bytes)} caps given for {self.num_ranks} ranks; "
                f"give one for each rank"
            )

    @classmethod
    def linear(
        cls,
        costs: Costs,
        num_micro_batches: int,
        cap_bytes: int | None = None,
        objective: Objective = Objective.MAKESPAN,
    ) -> "Problem":
        """One stage per rank, one cap for all."""
        caps = None if cap_bytes is None else (cap_bytes,) * costs.num_stages
        placement = Placement.linear(costs.num_stages)
        return cls(costs, placement, num_micro_batches, caps, objective)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.placement.num_ranks

    @property
    def num_replicas(self) -> int:
        """Copies of the stages."""
        return len(self.placement.ranks)

    def share(self, replica: int) -> tuple[int, int]:
        """The first micro-batch of a replica, and how many pass it: as even as can be."""
        each, more = divmod(self.num_micro_batches, self.num_replicas)
        return each * replica + min(replica, more), each + (replica < more)

    def static_bytes(self, rank: int) -> int:
        """Parameters, gradients and optimizer state of what a rank holds."""
        held = self.placement.held[rank]
        return sum(self.costs.stages[stage].static_bytes for stage, _ in held)

    def reduction_us(self, stage: int) -> int:
        """The all-reduce of a stage's gradients between its copies."""
        ranks = sorted({ranks[stage] for ranks in self.placement.ranks})
        return self.costs.reduction_us(stage, ranks)


@dataclass(frozen=True)
class SolveOptions:
    """How long and how to search.

    `gap` is the relative gap at which the search may stop. With `deterministic`, the same input
    gives the same output: the limit then counts CP-SAT's deterministic seconds, not the clock's.
    `without` leaves parts of the search out. `hint_found_by` is what the hint is named for.
    """

    time_limit_s: float = 60.0
    gap: float = 0.0
    workers: int | None = None
    seed: int = 0
    deterministic: bool = False
    hint: Schedule | None = None
    hint_found_by: str = "hint"
    solver: SolverName = SolverName.CPSAT
    verbose: Callable[[str], None] | None = None
    without: frozenset[Part] = frozenset()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise SynthError(f"the seed is {self.seed}; give 0 or more")

    @property
    def num_workers(self) -> int:
        """Threads to use, by default one for each processor that this process may use."""
        return self.workers or num_processors()

    def going_on_from(self, found: "Result") -> "SolveOptions":
        """The same with what was found as the hint, if anything was."""
        if found.schedule is None:
            return self
        by = found.found_by or self.hint_found_by
        return replace(self, hint=found.schedule, hint_found_by=by)


@dataclass(frozen=True)
class Baseline:
    """A published schedule on the same costs.

    `work_us` is the largest work of a rank, `mean_work_us` that of a rank on average, what is done
    twice counted twice; `fits` is whether it keeps the caps; `keeps_saved` whether what F saves
    stays where it is, as the search takes for granted: its bounds say nothing of those that rebuild
    or move it.
    """

    name: str
    makespan_us: int
    period_us: int
    work_us: int
    peak_bytes: tuple[int, ...]
    fits: bool
    keeps_saved: bool = True
    mean_work_us: float = 0.0


@dataclass(frozen=True)
class Incumbent:
    """A step of progress: a better verified schedule, or a better bound on the same one."""

    elapsed_s: float
    schedule: Schedule
    timeline: Timeline
    value_us: int
    lower_bound_us: int
    found_by: str
    peak_bytes: tuple[int, ...]
    bound_scope: BoundScope = BoundScope.PARTITION
    certificate: Certificate | None = None

    @property
    def gap(self) -> float:
        """(value − bound) / value."""
        return relative_gap(self.value_us, self.lower_bound_us)


@dataclass(frozen=True)
class Result:
    """The best schedule found, with what is proven about it.

    `schedule`, `timeline`, `value_us`, `gap` and `found_by` are None when there is no schedule;
    `message` then says why. Every value is an exact simulation of a verified schedule.
    `certificate` is that of the bound, where it has one.
    """

    problem: Problem
    schedule: Schedule | None
    timeline: Timeline | None
    value_us: int | None
    lower_bound_us: int
    peak_bytes: tuple[int, ...] | None
    found_by: str | None
    stopped_by: StoppedBy
    baselines: tuple[Baseline, ...]
    wall_s: float
    message: str | None = None
    bound_scope: BoundScope = BoundScope.PARTITION
    certificate: Certificate | None = None

    @property
    def gap(self) -> float | None:
        """(value − bound) / value."""
        return None if self.value_us is None else relative_gap(self.value_us, self.lower_bound_us)


def relative_gap(value_us: int, bound_us: int) -> float:
    """(value − bound) / value, 0 where both are 0."""
    return (value_us - bound_us) / value_us if value_us else 0.0


def rank_key(value_us: int | None) -> tuple[bool, int]:
    """Smaller is better; no value is worst."""
    return value_us is None, value_us or 0
