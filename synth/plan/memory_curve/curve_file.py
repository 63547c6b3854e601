"""The file of a memory curve, and the dominance between its points.

Every point is a complete plan under one limit for all ranks, so it can be saved and run. The best
time never rises with the limit. So a plan also serves all larger limits, and a proven bound holds
under all smaller ones: points are kept *closed* under both.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pydantic import NonNegativeInt, PositiveInt, field_validator, model_validator

from synth.errors import SynthError
from synth.objective import BoundScope, Objective
from synth.plan.memory_curve.cap_knowledge import CapKnowledge, KnownSchedule
from synth.plan.partition import bounds
from synth.plan.partition.balance import smallest_limit_of_any
from synth.plan.recompute.choice import Choice, limits_bytes, of_words, words
from synth.plan.weight_passing.candidates import WeightCandidates
from synth.profile import Profile
from synth.records.field_types import PlainText
from synth.records.record import FileRecord, Record
from synth.schedule.files.certificate import Certificate
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import current_placement_name
from synth.search.outcome import StoppedBy, relative_gap
from synth.solver.problem import Problem
from synth.system.display import Displayed
from synth.units import format_bytes, format_us
from synth.version import __version__

# Word for a curve whose points have partitions of their own.
_SEARCHED = "searched"

# Name of the time limit in a point's arguments.
TIME_LIMIT = "time_limit_s"


class FamilyPoint(Record):
    """A published schedule: its time and the highest peak of a rank."""

    name: PlainText
    value_us: NonNegativeInt
    peak_bytes: NonNegativeInt


@dataclass(frozen=True)
class Searched:
    """The result of a search under one limit; `time_limit_s` is the time that it had."""

    cap_bytes: int
    partition: tuple[int, ...]
    found: KnownSchedule
    lower_bound_us: int
    stopped_by: StoppedBy
    wall_s: float
    time_limit_s: float
    certificate: Certificate | None = None


class MemoryCurve(Displayed, FileRecord):
    """A file of plans for one problem under rising limits, and of published schedules.

    `least_cap_bytes` is a cap that the serial schedule keeps, and `never_below_bytes` one that
    nothing keeps less than; with one stage per rank they are the same. `has_end` is whether the
    search without a cap is there, as the point of the cap from which on its schedule fits.
    `recompute` are the stages that do, as `--recompute` takes them. With `partition_is_sought` each
    point has its own partition, its bound holds for all of them, and `partition` is the most even.
    `candidates` are the names of those of `--weights`, from which each point has the best, and
    `candidate_partitions` their partitions; `placement` and `partition` are those of the first one.
    There are none if weights stay.
    Version 2 has the FLOPs of a micro-batch in its plans, version 3 the candidates.
    """

    FORMAT: ClassVar[str] = "synth-frontier"
    VERSION: ClassVar[int] = 3
    OLDEST: ClassVar[int] = 2
    MADE_BY: ClassVar[tuple[str, ...]] = ("synth frontier",)

    profile_name: PlainText
    profile_fingerprint: str
    partition: tuple[PositiveInt, ...]
    partition_is_sought: bool = False
    placement: tuple[tuple[NonNegativeInt, ...], ...]
    num_micro_batches: PositiveInt
    objective: str
    recompute: str = "none"
    candidates: tuple[PlainText, ...] = ()
    candidate_partitions: tuple[tuple[PositiveInt, ...], ...] = ()
    never_below_bytes: NonNegativeInt
    least_cap_bytes: NonNegativeInt
    has_end: bool = False
    families: tuple[FamilyPoint, ...] = ()
    points: tuple[Plan, ...] = ()

    def __repr__(self) -> str:
        """List the points, one per line."""
        lines = [
            f"MemoryCurve of {self.profile_name}: {self.num_micro_batches} micro-batches, "
            f"{self.judged_by.words} by memory limit"
        ]
        for plan in self.points:
            claim = plan.claim
            lines.append(
                f"  {format_bytes(cap_of(plan)):>9}  {format_us(claim.value_us):>8}  lower bound "
                f"{format_us(claim.lower_bound_us):>8}  gap {claim.gap:.2%}"
            )
        return "\n".join(lines)

    __str__ = __repr__

    @property
    def judged_by(self) -> Objective:
        """Objective of the points' times."""
        return Objective.parse(self.objective)

    @property
    def bound_scope(self) -> BoundScope:
        """Scope of the points' bounds."""
        if len(self.candidates) > 1:
            return BoundScope.CANDIDATES
        return BoundScope.ALL if self.partition_is_sought else BoundScope.PARTITION

    @property
    def choice(self) -> Choice:
        """Stages that recompute."""
        return of_words(self.recompute)

    @field_validator("candidates")
    @classmethod
    def _with_current_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(current_placement_name, names))

    @model_validator(mode="after")
    def _rising(self) -> Self:
        Objective.parse(self.objective)
        of_words(self.recompute)
        if len(self.candidates) != len(self.candidate_partitions):
            raise ValueError("each candidate needs its partition")
        caps = [cap_of(plan) for plan in self.points]
        if caps != sorted(set(caps)):
            raise ValueError("the points' memory limits must rise")
        for plan in self.points:
            is_candidate = plan.partition in self.candidate_partitions or not self.candidates
            if difference(self, plan) is not None or not is_candidate:
                raise ValueError(f"the point at {cap_of(plan)} bytes is of another problem")
            time_limit_of_s(plan)
        return self

    def check(self) -> None:
        """Verify every plan.

        Raises:
            ScheduleError: one is not fit to run, or not what it claims.
        """
        for plan in self.points:
            plan.check()


def cap_of(plan: Plan) -> int:
    """Return the memory limit of a point, the same for all ranks."""
    assert plan.caps_bytes is not None
    return plan.caps_bytes[0]


def time_limit_of_s(plan: Plan) -> float:
    """Return the time limit of a point's search, in seconds.

    Raises:
        ValueError: the file says something else.
    """
    given = plan.arguments.get(TIME_LIMIT, "0")
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if math.isfinite(found):
        return found
    raise ValueError(
        f"the point at {cap_of(plan)} bytes has the {TIME_LIMIT} {given!r}; needed: seconds, such "
        f"as '30'"
    )


def value_of(plan: Plan) -> int:
    """Return the objective of a plan, in microseconds."""
    return plan.claim.value_us


def difference(one: MemoryCurve | Plan, other: MemoryCurve | Plan) -> str | None:
    """Return how two problems differ, as a word and both values; None if they do not."""
    names, others_names = _candidates(one), _candidates(other)
    is_point = isinstance(one, Plan) or isinstance(other, Plan)
    if names != others_names and not is_point:
        there, here = ("; ".join(words) or "stay" for words in (names, others_names))
        return f"weights: {there} there, {here} here"
    # Each candidate has a placement and a partition of its own.
    is_placed = not names and not others_names
    for name in ("profile_fingerprint", *(["placement"] if is_placed else []), "num_micro_batches"):
        mine, others = getattr(one, name), getattr(other, name)
        if mine != others:
            return f"{name.replace('_', ' ')}: {mine} there, {others} here"
    mine, others = _partition(one), _partition(other)
    if is_placed and mine != others and not (is_point and _SEARCHED in (mine, others)):
        return f"partition: {mine} there, {others} here"
    parts = zip(names, _candidate_partitions(one), _candidate_partitions(other), strict=False)
    for name, mine, others in parts:
        if mine != others:
            return f"partition of {name}: {mine} there, {others} here"
    mine, others = _recompute(one), _recompute(other)
    if None not in (mine, others) and mine != others:
        return f"recompute: {mine} there, {others} here"
    mine, others = _objective(one), _objective(other)
    return None if mine == others else f"objective: {mine} there, {others} here"


def _partition(of: MemoryCurve | Plan) -> tuple[int, ...] | str:
    """Return the partition of all points, or a word if each has its own."""
    return _SEARCHED if isinstance(of, MemoryCurve) and of.partition_is_sought else of.partition


def _candidates(of: MemoryCurve | Plan) -> tuple[str, ...]:
    """Return the candidates of a curve; a plan does not name any."""
    return of.candidates if isinstance(of, MemoryCurve) else ()


def _candidate_partitions(of: MemoryCurve | Plan) -> tuple[tuple[int, ...], ...]:
    """Return the partitions of a curve's candidates; a plan is of one that it does not name."""
    return of.candidate_partitions if isinstance(of, MemoryCurve) else ()


def _recompute(of: MemoryCurve | Plan) -> str | None:
    """Return the recomputation of a curve; None for a plan, where it is no part of the problem."""
    return of.recompute if isinstance(of, MemoryCurve) else None


def _objective(of: MemoryCurve | Plan) -> str:
    return of.objective if isinstance(of, MemoryCurve) else of.claim.objective


def empty_curve(
    profile: Profile,
    problem: Problem,
    recompute: Choice = (),
    *,
    search_partitions: bool = False,
    candidates: WeightCandidates | None = None,
) -> MemoryCurve:
    """Return the curve of a problem, without points.

    Args:
        problem: without caps, with its partition.
        recompute: the stages that do.
        search_partitions: each point has a partition of its own.
        candidates: the candidates of `--weights`, if each point has the best of them.

    Raises:
        SynthError: there is no partition; or there are no bounds over all partitions to search
            for one (`check_partitions_searchable`).
    """
    if problem.partition is None:
        raise SynthError("a curve needs the problem's partition, the layers of each stage")
    if candidates is not None:
        never, least = candidates.limits_bytes()
    elif search_partitions:
        check_partitions_searchable(problem, recompute)
        least = never = smallest_limit_of_any(profile, problem.num_ranks)
    else:
        never, least = limits_bytes(problem, recompute)
    return MemoryCurve(
        profile_name=profile.name,
        profile_fingerprint=profile.fingerprint(),
        partition=problem.partition,
        partition_is_sought=search_partitions,
        placement=problem.placement.ranks,
        num_micro_batches=problem.num_micro_batches,
        objective=str(problem.objective),
        recompute=words(recompute),
        candidates=() if candidates is None else candidates.names,
        candidate_partitions=() if candidates is None else candidates.partitions,
        never_below_bytes=never,
        least_cap_bytes=least,
    )


def check_partitions_searchable(problem: Problem, recompute: Choice) -> None:
    """Refuse problems without bounds over all partitions: a bound would not hold for other points.

    Raises:
        SynthError: several stages per rank, stages that recompute, or too many layers.
    """
    if bounds.is_linear(problem) and not bounds.applies(problem):
        raise SynthError(
            f"{sum(problem.partition or ())} layers on {problem.num_ranks} ranks have too many "
            f"partitions for bounds over all of them; give §partition even, or layers per stage"
        )
    if not bounds.is_linear(problem) or recompute != ():
        raise SynthError(
            "bounds over all partitions exist only for one stage per rank (§placement linear) and "
            "without §recompute; give §partition even, or layers per stage"
        )


def knowledge_of(points: Iterable[Plan]) -> CapKnowledge:
    """Collect what the points of a curve prove and find for all limits."""
    known = CapKnowledge()
    for plan in points:
        claim = plan.claim
        found = KnownSchedule(
            plan.schedule(),
            claim.makespan_us,
            claim.period_us,
            value_of(plan),
            claim.peak_bytes,
            claim.found_by,
            plan.partition,
        )
        known.add(cap_of(plan), found, claim.lower_bound_us, claim.certificate)
    return known


def plan_of(profile: Profile, frontier: MemoryCurve, searched: Searched, seed: int) -> Plan:
    """Return the point of a search."""
    found = searched.found
    claim = Claim(
        objective=frontier.objective,
        makespan_us=found.makespan_us,
        period_us=found.period_us,
        peak_bytes=found.peak_bytes,
        lower_bound_us=searched.lower_bound_us,
        gap=relative_gap(found.value_us, searched.lower_bound_us),
        bound_holds_for=frontier.bound_scope,
        certificate=searched.certificate,
        found_by=found.found_by,
        stopped_by=searched.stopped_by.value,
        seed=seed,
        solve_seconds=round(searched.wall_s, 3),
        synth_version=__version__,
    )
    return Plan.of(
        profile,
        searched.partition,
        found.schedule,
        claim=claim,
        caps_bytes=(searched.cap_bytes,) * found.schedule.num_ranks,
        arguments={TIME_LIMIT: f"{searched.time_limit_s:g}"},
    )


def closed(points: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return one point per limit, with the best plan within it and the best bound that holds.

    Of two points with the same cap the later one says how the search ended.
    """
    last = {cap_of(plan): plan for plan in points}
    result = []
    for cap in sorted(last):
        best = min((plan for plan in points if max(plan.claim.peak_bytes) <= cap), key=_rank_key)
        # Of equal bounds its own, so that closing is idempotent.
        holding = (last[cap].claim, *(plan.claim for plan in points if cap_of(plan) >= cap))
        bound = max(holding, key=lambda claim: claim.lower_bound_us)
        result.append(_with(last[cap], best, bound))
    return tuple(result)


def _rank_key(plan: Plan) -> tuple[int, int]:
    return value_of(plan), max(plan.claim.peak_bytes)


def _with(point: Plan, best: Plan, bound: Claim) -> Plan:
    """Return a point with another's schedule and a better bound, but its own time limit."""
    gap = relative_gap(value_of(best), bound.lower_bound_us)
    claim = best.claim.replace(
        lower_bound_us=bound.lower_bound_us,
        certificate=bound.certificate,
        gap=gap,
        stopped_by=_reason(gap, point.claim.stopped_by),
        solve_seconds=point.claim.solve_seconds,
        seed=point.claim.seed,
    )
    return best.replace(claim=claim, caps_bytes=point.caps_bytes, arguments=point.arguments)


def _reason(gap: float, before: str) -> str:
    """Return why the search of a point ended, by the gap that is left now."""
    if gap == 0:
        return StoppedBy.OPTIMAL
    return StoppedBy.EXHAUSTED if before == StoppedBy.OPTIMAL else before
