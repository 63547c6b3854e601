"""A comparison of schedules on one profile: the question, its entries and its refusals."""

from dataclasses import dataclass, field
from typing import NamedTuple

from synth.costs.recomputation import Recomputation
from synth.objective import Objective
from synth.plan.choose.candidates import Partitioning
from synth.plan.partition.unequal_ranks import rank_orders
from synth.plan.planners.planned import Prediction
from synth.plan.published.order_scores import Score
from synth.plan.recompute.choice import Choice
from synth.plan.runtimes import DEFAULT, Allowed
from synth.profile import Profile
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement, Schedule
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import relative_gap
from synth.solver.result import Incumbent
from synth.solver.weight_passing.problem import WeightMovement
from synth.system.display import MOST_ROWS, Displayed
from synth.units import counted, format_bytes, format_us

# Prefix of the rows of published planners.
PLANNED = "planned "

# Prefix of the solver's rows before the placement, and suffix if stages or layers recompute.
SOLVED = "solved "
WITH_R = "+R"


class SearchRequest(NamedTuple):
    """A search to be made: its name, placement, stages that recompute, and movement of weights.

    None as placement or as stages leaves them to the solver; as movement, weights stay. With
    `never_flushes` the name is that of the versions of weights (`2bw:every=8`).
    """

    name: str
    placement: Placement | None
    recompute: Choice = ()
    movement: WeightMovement | None = None
    never_flushes: bool = False

    @property
    def title(self) -> str:
        """Name of the row in the table."""
        has_row_without = self.placement is not None and self.recompute != ()
        return f"{SOLVED}{self.name}{WITH_R if has_row_without else ''}"


@dataclass(frozen=True)
class Question:
    """The comparison asked for: model, ranks, mini-batch, limits and objective.

    `partition`, if given, is for placements of as many stages; on others a published schedule has
    the best one for it. With `partition_is_sought` the solver searches for the partition, and
    published schedules have any; without they have the best one of equal or balanced stages.
    `caps_bytes` is the memory limit of each rank; None: no limit. `allowed` limits the solver's
    schedules, not the published ones. With `published_recompute` a published schedule is also shown
    with recomputed layers, if it only fits or is faster with them. With `chooses_layers` a search
    that chooses recomputation chooses single layers, too. With `orders_ranks` ranks that differ in
    speed or memory are tried in several orders.
    """

    profile: Profile
    num_ranks: int
    num_micro_batches: int
    caps_bytes: tuple[int, ...] | None = None
    objective: Objective = Objective.MAKESPAN
    partition: tuple[int, ...] | None = None
    partition_is_sought: bool = False
    allowed: Allowed = DEFAULT
    published_recompute: bool = True
    chooses_layers: bool = False
    orders_ranks: bool = False

    def orders(self, where: Placement) -> list[Placement]:
        """Return a placement with its ranks as given, or in all orders to be tried."""
        if not self.orders_ranks:
            return [where]
        speeds = self.profile.rank_speeds or (1.0,) * self.num_ranks
        return rank_orders(where, speeds, self.caps_bytes)

    def over_ideal(self, entry: "Entry") -> float:
        """Return how much longer a schedule takes than ranks that are never idle, as a share."""
        ideal_us = self.profile.ideal_us(self.num_micro_batches, self.num_ranks)
        return self.objective.over_ideal(entry, ideal_us)

    @property
    def partitioning(self) -> Partitioning:
        """Way in which the solver partitions the model."""
        if self.partition_is_sought:
            return Partitioning.SEARCHED
        return Partitioning.EVEN if self.partition is None else Partitioning.GIVEN


@dataclass(frozen=True)
class Entry:
    """One schedule's figures, simulated on the costs of its own partition.

    Traffic is in one iteration over all links: `sent_bytes` between stages and for activations
    offloaded to other ranks, `reduced_bytes` for all-reduces of copies' gradients, `host_bytes` to
    the hosts' memory and back. `claim` is the solver's, for its placement and partition; None for a
    published schedule. `delay` is the most updates between the weights that a gradient was computed
    with and those that it updates, over all stages, and `versions` the most that a stage holds.
    `steady_us` is the time of a micro-batch in the long run: with a flush the period over their
    number, without one that while the pipeline is full (None: it never is). `prediction` is that of
    the published planner whose choice the schedule is. `recomputed_layers` are those of which F
    keeps only the input, and `recomputation` says how they were chosen. `above_limit` is the
    fastest partition tried that exceeds the limit, with its score, if a slower one is shown.
    """

    name: str
    schedule: Schedule
    partition: tuple[int, ...]
    makespan_us: int
    period_us: int
    work_us: int
    mean_work_us: float
    peak_bytes: tuple[int, ...]
    static_bytes: tuple[int, ...]
    sent_bytes: int
    reduced_bytes: int
    host_bytes: int
    fits: bool | None
    claim: Claim | None = None
    delay: int = 0
    versions: int = 1
    steady_us: float | None = None
    prediction: Prediction | None = None
    recomputed_layers: tuple[int, ...] = ()
    recomputation: str = ""
    above_limit: tuple[tuple[int, ...], Score] | None = None

    @property
    def recomputed(self) -> Recomputation:
        """The recomputed layers with their policies."""
        return Recomputation(self.recomputed_layers)

    @property
    def lower_bound_us(self) -> int | None:
        """Lower bound of the objective; None without a proof."""
        return None if self.claim is None else self.claim.lower_bound_us

    @property
    def bubble_rates(self) -> tuple[float, float]:
        """1 − (largest work of a rank) / makespan, and the same of the period."""
        spans = (self.makespan_us, self.period_us)
        return spans[0] and 1 - self.work_us / spans[0], spans[1] and 1 - self.work_us / spans[1]

    @property
    def mean_idle(self) -> tuple[float, float]:
        """1 − (mean work of a rank) / makespan, and the same of the period."""
        spans, work_us = (self.makespan_us, self.period_us), self.mean_work_us
        return spans[0] and 1 - work_us / spans[0], spans[1] and 1 - work_us / spans[1]

    def gap(self, objective: Objective) -> float | None:
        """Return (value − bound) / value; None without a proof."""
        if self.lower_bound_us is None:
            return None
        return relative_gap(objective.value_us(self), self.lower_bound_us)


@dataclass(frozen=True)
class Refusal:
    """A schedule that does not apply, and the reason."""

    name: str
    reason: str


@dataclass
class Comparison(Displayed):
    """Results of a comparison so far: simulated schedules and refusals.

    `searching` has the best schedule so far of each search that is not over, by its title.
    `ended_early` are the published schedules that might be faster: the time limit ended the search
    for their partition or their recomputed layers.
    """

    question: Question
    entries: list[Entry] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    ended_early: list[str] = field(default_factory=list)
    searching: dict[str, BestSoFar[Incumbent]] = field(default_factory=dict)

    def __repr__(self) -> str:
        """List the best entries, one per line, and count the rest."""
        asked, ranked = self.question, self.ranked()
        longest = max((len(entry.name) for entry in ranked[:MOST_ROWS]), default=0)
        lines = [
            f"Comparison on {asked.profile.name}: {counted(asked.num_ranks, 'rank')}, "
            f"{counted(asked.num_micro_batches, 'micro-batch')}, by {asked.objective.words}"
        ]
        for entry in ranked[:MOST_ROWS]:
            fits = {None: "", True: "  fits", False: "  exceeds the limit"}[entry.fits]
            lines.append(
                f"  {entry.name:<{longest}}  {format_us(asked.objective.value_us(entry)):>8}  "
                f"peak {format_bytes(max(entry.peak_bytes)):>8}{fits}"
            )
        if len(ranked) > MOST_ROWS:
            lines.append(f"  … and {len(ranked) - MOST_ROWS} more")
        return "\n".join(lines)

    def ranked(self) -> list[Entry]:
        """Return the entries, best objective first; of equals, the least peak."""
        objective = self.question.objective
        return sorted(self.entries, key=lambda e: (objective.value_us(e), max(e.peak_bytes)))

    def plan(self, entry: Entry) -> Plan:
        """Return the plan file of an entry, with its claim."""
        return Plan.of(
            self.question.profile,
            entry.partition,
            entry.schedule,
            claim=entry.claim,
            caps_bytes=self.question.caps_bytes if entry.fits else None,
            recomputed_layers=entry.recomputed_layers,
        )
