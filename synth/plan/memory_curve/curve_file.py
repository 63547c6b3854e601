"""The file of a memory curve, and the dominance between its points.

Every point is a complete plan under one limit for all ranks, so it can be saved and run. The best
time never rises with the limit. So a plan also serves all larger limits, and a proven bound holds
under all smaller ones: points are kept *closed* under both.
"""

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

from pydantic import NonNegativeInt, PositiveInt, field_validator, model_validator

from synth.errors import SynthError
from synth.objective import BoundScope, Objective
from synth.plan.choose.candidates import Candidate
from synth.plan.memory_curve.cap_knowledge import CapKnowledge
from synth.plan.recompute.choice import Choice, of_words, words
from synth.plan.search_space import LimitedSpace, Placements, WeightPlaces
from synth.profile import Profile
from synth.records.field_types import PlainText
from synth.records.record import FileRecord, Record
from synth.schedule.files.check_against_profile import larger_rises
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import current_placement_name
from synth.search.outcome import StoppedBy, relative_gap
from synth.system.display import Displayed
from synth.units import counted, format_bytes, format_us

# Word for a curve whose points have partitions of their own.
_SEARCHED = "searched"

# Name of the time limit in a point's arguments.
TIME_LIMIT = "time_limit_s"


class FamilyPoint(Record):
    """A published schedule: its time and the highest peak of a rank."""

    name: PlainText
    value_us: NonNegativeInt
    peak_bytes: NonNegativeInt


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
            f"MemoryCurve of {self.profile_name}: "
            f"{counted(self.num_micro_batches, 'micro-batch')}, {self.judged_by.words} by memory "
            f"limit"
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
            if not self._is_of_problem(plan):
                raise ValueError(f"the point at {cap_of(plan)} bytes is of another problem")
            time_limit_of_s(plan)
        return self

    def _is_of_problem(self, plan: Plan) -> bool:
        own = self.profile_fingerprint, self.num_micro_batches, self.objective
        if own != (plan.profile_fingerprint, plan.num_micro_batches, plan.claim.objective):
            return False
        if self.candidates:
            return plan.partition in self.candidate_partitions
        is_cut_alike = self.partition_is_sought or plan.partition == self.partition
        return plan.placement == self.placement and is_cut_alike

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


def difference(there: MemoryCurve, here: MemoryCurve, profile: Profile) -> str | None:
    """Return how two problems differ, as a word and both values; None if they do not.

    Args:
        profile: that of `here`.
    """
    one, other = _identity(there), _identity(here)
    differing = (name for name in one if one[name] != other.get(name))
    found = next((f"{name}: {one[name]} there, {other[name]} here" for name in differing), None)
    if found is None and any(larger_rises(plan, profile) > 0 for plan in there.points):
        return "memory of backwards: as an earlier synth counted it there, less here"
    return found


def _identity(curve: MemoryCurve) -> dict[str, object]:
    """Return what tells one problem from another, the weights first."""
    # Each candidate has a placement and a partition of its own.
    is_placed = not curve.candidates
    partition = _SEARCHED if curve.partition_is_sought else curve.partition
    of_candidates = zip(curve.candidates, curve.candidate_partitions, strict=True)
    return {
        "weights": "; ".join(curve.candidates) or "stay",
        "profile fingerprint": curve.profile_fingerprint,
        **({"placement": curve.placement} if is_placed else {}),
        "num micro batches": curve.num_micro_batches,
        **({"partition": partition} if is_placed else {}),
        **{f"partition of {name}": sizes for name, sizes in of_candidates},
        "recompute": curve.recompute,
        "objective": curve.objective,
    }


def empty_curve(profile: Profile, space: LimitedSpace) -> MemoryCurve:
    """Return the curve of a space without memory limits, without points.

    Raises:
        SynthError: there is no partition; or the memory limit of the space cannot vary.
    """
    problem = space.problem
    if problem.partition is None:
        raise SynthError("a curve needs the problem's partition, the layers of each stage")
    never, least = space.limits_bytes()
    candidates = space.all_candidates if isinstance(space, WeightPlaces) else ()
    # Where weights move, nothing else is recomputed than in the pipelines beside them.
    choices = [one.choice for one in space.all_candidates if isinstance(one, Candidate)]
    return MemoryCurve(
        profile_name=profile.name,
        profile_fingerprint=profile.fingerprint(),
        partition=problem.partition,
        partition_is_sought=isinstance(space, Placements),
        placement=problem.placement.ranks,
        num_micro_batches=problem.num_micro_batches,
        objective=str(problem.objective),
        recompute=words(choices[0] if choices else ()),
        candidates=tuple(one.name for one in candidates),
        candidate_partitions=tuple(one.problem.partition or () for one in candidates),
        never_below_bytes=never,
        least_cap_bytes=least,
    )


def knowledge_of(points: Iterable[Plan]) -> CapKnowledge[Claim]:
    """Collect what the points of a curve prove and find for all limits."""
    known = CapKnowledge[Claim]()
    for plan in points:
        claim = plan.claim
        known.add(cap_of(plan), claim, claim.lower_bound_us, claim.certificate)
    return known


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
    return StoppedBy.NOTHING_BETTER if before == StoppedBy.OPTIMAL else before
