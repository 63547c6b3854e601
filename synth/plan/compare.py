"""Every published schedule on one profile, each on its own placement, and the solver beside them.

The model is cut for each placement as `synth solve` would cut it, so schedules are compared as they
would be run, with the peak, the weights and the traffic of each.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synth.costs import HOST, Costs, partition_costs
from synth.errors import SynthError
from synth.families import family_placement, generate, variants_for
from synth.objective import Objective
from synth.plan.choose.candidates import Candidate, Partitioning, placements_to_try
from synth.plan.choose.trials import solve_best_of
from synth.plan.claim import claim_of
from synth.plan.partition.balance import balance, is_proven_best
from synth.plan.recompute.choice import Choice
from synth.plan.recompute.repartition import solve_repartitioning
from synth.profile import Profile
from synth.schedule.files.plan_file import Claim, Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.memory import peak_bytes, static_bytes
from synth.schedule.model import Placement, Schedule
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.solve.options import SolveOptions
from synth.solve.problem import Problem
from synth.solve.result import Result, relative_gap
from synth.solve.tuning import SEARCH

# Before the placement in the name of what the solver found, and behind it where stages recompute.
SOLVED = "solved "
WITH_R = "+R"


class Search(NamedTuple):
    """A search of the solver: its name, its placement, and the stages that recompute.

    Without a placement the solver chooses one; without stages (None) those that serve best.
    """

    name: str
    placement: Placement | None
    recompute: Choice = ()

    @property
    def title(self) -> str:
        """The name of its row."""
        has_row_without = self.placement is not None and self.recompute != ()
        return f"{SOLVED}{self.name}{WITH_R if has_row_without else ''}"


@dataclass(frozen=True)
class Question:
    """The comparison asked for: model, ranks, mini-batch, limits and objective.

    `partition`, where given, holds for the placements of as many stages; where it is sought, the
    solver seeks it, and published schedules are cut evenly. `caps_bytes` is what each rank may
    hold, none: no limit.
    """

    profile: Profile
    num_ranks: int
    num_micro_batches: int
    caps_bytes: tuple[int, ...] | None = None
    objective: Objective = Objective.MAKESPAN
    partition: tuple[int, ...] | None = None
    partition_is_sought: bool = False

    @property
    def partitioning(self) -> Partitioning:
        """The solver's way of cutting the model."""
        if self.partition_is_sought:
            return Partitioning.SEARCHED
        return Partitioning.EVEN if self.partition is None else Partitioning.GIVEN


@dataclass(frozen=True)
class Entry:
    """One schedule's figures, simulated on the costs of its own partition.

    `sent_bytes` is what ranks send each other between stages or to keep for them, `reduced_bytes`
    what they send to add up the gradients of copies, `host_bytes` what goes to the hosts' memory
    and back, all in one iteration over all links. `claim` is what the solver proved, for its own
    placement and partition; none for a published schedule.
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

    @property
    def lower_bound_us(self) -> int | None:
        """The bound on the objective, where one is proven."""
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
        """(value − bound) / value, where a bound is proven."""
        if self.lower_bound_us is None:
            return None
        return relative_gap(objective.value_us(self), self.lower_bound_us)


@dataclass(frozen=True)
class Refusal:
    """A schedule that cannot be, and the rule that says so."""

    name: str
    reason: str


@dataclass
class Comparison:
    """The schedules that can be, those that cannot; the more of both, the longer it ran."""

    question: Question
    entries: list[Entry] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def ranked(self) -> list[Entry]:
        """Best objective first; of equals, the least peak."""
        objective = self.question.objective
        return sorted(self.entries, key=lambda e: (objective.value_us(e), max(e.peak_bytes)))

    def plan(self, entry: Entry) -> Plan:
        """The schedule file of an entry, with what is proven about it."""
        return Plan.of(
            self.question.profile,
            entry.partition,
            entry.schedule,
            claim=entry.claim,
            caps_bytes=self.question.caps_bytes if entry.fits else None,
        )


def compare(
    question: Question,
    names: Sequence[str] | None = None,
    searches: Sequence[Search] = (),
    options: SolveOptions | None = None,
    on_begin: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    so_far: Comparison | None = None,
) -> Comparison:
    """Simulate published schedules, and let the solver search on placements.

    What is named twice is looked at once.

    Args:
        question: on what, and what for.
        names: of families, with their options; none: all families in all ways, those with rounds
            also with as many as divide the layers evenly.
        searches: the solver's searches.
        options: the time limit is for each search, and for all published schedules together;
            schedules that do not finish in time are refused.
        on_begin: called with the name of each schedule before it is made, or searched.
        stop: set it to leave out what has not been searched.
        so_far: an empty one to fill, which can be read from other threads meanwhile.

    Raises:
        SynthError: a name that no family has, a partition of other layers or for no placement, or
            too many micro-batches.
    """
    running = _Comparing(
        so_far or Comparison(question), options or SolveOptions(), stop or threading.Event()
    )
    if names is None:
        names = variants_for(question.num_ranks, len(question.profile.layers))
    _check_size(question)
    names, searches = tuple(dict.fromkeys(names)), tuple(dict.fromkeys(searches))
    # A name that is unknown is no refusal, so all are looked up first.
    placements = [family_placement(name, question.num_ranks) for name in names]
    searched = [search.placement for search in searches if search.placement is not None]
    _check_partition(question, [*placements, *searched])
    for name in names:
        if running.begins(name, on_begin):
            running.add_published(name)
    for search in searches:
        if running.begins(search.title, on_begin):
            running.add_solved(search)
    return running.comparison


def _check_size(question: Question) -> None:
    most = SEARCH.most_ops // (3 * question.num_ranks)
    if question.num_micro_batches > most:
        raise SynthError(
            f"{question.num_micro_batches} micro-batches on {question.num_ranks} ranks make more "
            f"than {SEARCH.most_ops:,} ops, which take minutes to simulate; give at most {most:,} "
            f"micro-batches"
        )


def _check_partition(question: Question, placements: list[Placement]) -> None:
    sizes = question.partition
    if sizes is None:
        return
    partition_costs(question.profile, sizes)
    known = sorted({where.num_stages for where in placements})
    if len(sizes) not in known:
        raise SynthError(
            f"the partition has {len(sizes)} stages, the placements asked for have "
            f"{', '.join(map(str, known))}; give one for one of them, or none"
        )


class _Comparing:
    """The comparison so far; partitions and costs by placement, which many families share."""

    def __init__(
        self, comparison: Comparison, options: SolveOptions, stop: threading.Event
    ) -> None:
        self.question, self.options, self.stop = comparison.question, options, stop
        self.comparison = comparison
        self.began, self.longest_s = time.monotonic(), 0.0
        self._known: dict[Placement, tuple[tuple[int, ...], Costs]] = {}

    def begins(self, name: str, on_begin: Callable[[str], None] | None) -> bool:
        """Return False if the comparison was stopped; otherwise announce the schedule."""
        if on_begin is not None and not self.stop.is_set():
            on_begin(name)
        return not self.stop.is_set()

    def add_published(self, name: str) -> None:
        """A family's schedule, or the rule that refuses it; the first one in any case."""
        began = time.monotonic()
        if self.longest_s and self._is_late(self.longest_s):
            reason = (
                f"not simulated: the time limit of {self.options.time_limit_s:g} s for all "
                "published schedules is over; allow more --time-limit"
            )
            self.comparison.refusals.append(Refusal(name, reason))
            return
        self._simulate(name)
        self.longest_s = max(self.longest_s, time.monotonic() - began)

    def _is_late(self, more_s: float = 0.0) -> bool:
        """True if the time for published schedules would be over after so many seconds."""
        return time.monotonic() - self.began + more_s > self.options.time_limit_s

    def _simulate(self, name: str) -> None:
        asked = self.question
        try:
            sizes, costs = self._cut(family_placement(name, asked.num_ranks))
            schedule = generate(
                name,
                asked.num_ranks,
                asked.num_micro_batches,
                costs=costs,
                caps_bytes=asked.caps_bytes,
            )
        except SynthError as error:
            self.comparison.refusals.append(Refusal(name, str(error)))
        else:
            self._add(name, sizes, verify(schedule, costs))

    def add_solved(self, search: Search) -> None:
        """Add the solver's schedule on a placement, or the reason why there is none."""
        name = search.title
        try:
            result = self._solve(search)
        except SynthError as error:
            self.comparison.refusals.append(Refusal(name, str(error)))
            return
        if result.schedule is None:
            reason = result.message or "nothing was found"
            self.comparison.refusals.append(Refusal(name, reason))
            return
        solved = result.problem
        assert solved.partition is not None
        simulated = verify(result.schedule, solved.costs)
        claim = claim_of(result, solved, self.options)
        self._add(name, solved.partition, simulated, claim)

    def _solve(self, search: Search) -> Result:
        asked, options = self.question, self.options
        if search.placement is not None and not asked.partition_is_sought:
            problem = self._problem(search.placement)
            profile = asked.profile if asked.partition is None else None
            return solve_repartitioning(profile, problem, search.recompute, options, stop=self.stop)
        candidates = self._candidates(search)
        chosen = solve_best_of(
            candidates, asked.profile, asked.partitioning, options, stop=self.stop
        )
        return chosen.result

    def _candidates(self, search: Search) -> list[Candidate]:
        """The placement of a search, or those there are to choose from and that can be.

        Raises:
            SynthError: none can be.
        """
        asked, choice = self.question, search.recompute
        if search.placement is not None:
            return [Candidate(search.name, self._problem(search.placement), choice)]
        found, reasons = [], []
        every = placements_to_try(asked.num_ranks, len(asked.profile.layers))
        for name, where in every.items():
            if asked.partition is None or len(asked.partition) == where.num_stages:
                try:
                    found.append(Candidate(name, self._problem(where), choice))
                except SynthError as error:
                    reasons.append(str(error))
        if not found:
            raise SynthError((*reasons, "no placement has as many stages as the partition")[0])
        return found

    def _cut(self, where: Placement) -> tuple[tuple[int, ...], Costs]:
        """The partition given, if it has as many stages, else the one that `synth solve` takes."""
        if where not in self._known:
            asked = self.question
            sizes = asked.partition
            if sizes is None or len(sizes) != where.num_stages:
                sizes = balance(
                    asked.profile,
                    where,
                    asked.caps_bytes,
                    asked.num_micro_batches,
                    should_stop=self._is_late,
                )
            self._known[where] = sizes, partition_costs(asked.profile, sizes)
        return self._known[where]

    def _problem(self, where: Placement) -> Problem:
        asked = self.question
        sizes, costs = self._cut(where)
        is_best = is_proven_best(where, asked.partition)
        return Problem(
            costs,
            where,
            num_micro_batches=asked.num_micro_batches,
            caps_bytes=asked.caps_bytes,
            objective=asked.objective,
            partition=sizes,
            partition_is_best=is_best,
        )

    def _add(
        self,
        name: str,
        sizes: tuple[int, ...],
        simulated: tuple[Lowered, Timeline],
        claim: Claim | None = None,
    ) -> None:
        entry = _entry(self.question, name, sizes, simulated, claim)
        self.comparison.entries.append(entry)


def _entry(
    question: Question,
    name: str,
    sizes: tuple[int, ...],
    simulated: tuple[Lowered, Timeline],
    claim: Claim | None,
) -> Entry:
    (lowered, line), caps = simulated, question.caps_bytes
    peaks, transfer_table = peak_bytes(lowered), lowered.transfer_table
    of_host = (transfer_table.source == HOST) | (transfer_table.target == HOST)
    return Entry(
        name=name,
        schedule=lowered.schedule,
        partition=sizes,
        makespan_us=line.makespan_us,
        period_us=line.period_us,
        work_us=max(line.work_us),
        mean_work_us=line.mean_work_us,
        peak_bytes=peaks,
        static_bytes=tuple(static_bytes(lowered, rank) for rank in range(lowered.num_ranks)),
        sent_bytes=int(transfer_table.num_bytes[~of_host].sum()),
        # A ring passes every byte around twice, less what each rank has of it already.
        reduced_bytes=sum(2 * (len(r.ranks) - 1) * r.num_bytes for r in lowered.reductions),
        host_bytes=int(transfer_table.num_bytes[of_host].sum()),
        fits=None if caps is None else all(p <= c for p, c in zip(peaks, caps, strict=True)),
        claim=claim,
    )
