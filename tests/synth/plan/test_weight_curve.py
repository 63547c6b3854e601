"""Memory limits of schedules with weight passing: the least one, the bisection and the curve."""

import random
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from synth.costs.partition_costs import partition_costs
from synth.objective import BoundScope
from synth.plan.choose.candidates import Candidate
from synth.plan.memory_curve import curve_search
from synth.plan.memory_curve.curve_file import (
    MemoryCurve,
    cap_of,
    difference,
    empty_curve,
    knowledge_of,
    value_of,
)
from synth.plan.memory_curve.curve_search import Effort, trace
from synth.plan.memory_curve.least_cap_search import least_cap
from synth.plan.memory_curve.target import TimeTarget
from synth.plan.memory_curve.workers import Task, TaskResult, Workers
from synth.plan.memory_curve.workers import _solve as solve_task
from synth.plan.search_space import WeightPlaces
from synth.plan.weight_passing.choice import WeightPassingCandidate
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.schedule.model import Placement, Schedule
from synth.schedule.placements import everywhere
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import ScheduleError, check_deadlock, lower_checked
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.weight_passing import least_memory as least_memory_module
from synth.solver.weight_passing.least_memory import least_memory, limits_bytes
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.search import WeightPassingSearch
from tests.sweep import sweep
from tests.synth.every_order import true_value
from tests.synth.every_weight_schedule import (
    BUFFERINGS,
    gather_programs,
    on_all_ranks,
    ring_programs,
)
from tests.synth.plan.test_memory_curve import small_profile
from tests.synth.solver.test_weight_search import unequal_costs, weight_passing_problem

pytestmark = pytest.mark.usefixtures("kept_workers")

RING, GATHER = WeightMovement
EFFORT = Effort(points=4, time_limit_s=0.5, jobs=1, workers=1, gap=0)


@cache
def profile() -> Profile:
    """Two layers with gradients and optimizer state, on links of which a transfer takes a while."""
    four = small_profile()
    names = tuple(four.layer_profiles)[:2]
    sizes = {"parameter_bytes": 40, "gradient_bytes": 30, "optimizer_bytes": 50}
    kept = {name: four.layer_profiles[name].replace(**sizes) for name in names}
    links = Links(default=Link(latency_us=1, bandwidth_bytes_per_s=20e6))
    return four.replace(layers=four.layers[:2], layer_profiles=kept, links=links)


def candidates(*movements: WeightMovement, staying: bool = False) -> WeightPlaces:
    """Two ranks, one stage for each of two layers, and one micro-batch on each rank."""
    costs = partition_costs(profile(), (1, 1))
    problem = Problem(costs, everywhere(2, 2), 2, partition=(1, 1))
    on_line = Problem(costs, Placement.linear(2), 2, partition=(1, 1))
    return WeightPlaces(
        tuple(
            WeightPassingCandidate(f"{one}", WeightPassingProblem(problem, one))
            for one in movements
        ),
        (Candidate("linear", on_line),) if staying else (),
        profile(),
    )


def passing_of(space: WeightPlaces) -> WeightPassingProblem:
    """The first problem whose weights move."""
    first = space.moving[0]
    assert isinstance(first, WeightPassingCandidate)
    return first.passing


def true_curve(passing: WeightPassingProblem) -> list[tuple[int, int]]:
    """The Pareto front of (highest peak, makespan) over all schedules, the least memory first."""
    m = passing.problem.num_micro_batches
    if passing.movement == RING:
        every = [ring_programs(passing, rank) for rank in range(passing.num_ranks)]
        programs = [list(ranks) for ranks in product(*every)]
    else:
        programs = [on_all_ranks(passing, one) for one in gather_programs(passing)]
    times: dict[int, int] = {}
    # The verifier refuses programs that a kind of sharded state does not admit.
    flows = [passing.flow(sharded) for sharded in passing.levels]
    for ranks, buffering, flow in product(programs, BUFFERINGS[:2], flows):
        made = Schedule(
            passing.problem.placement, m, tuple(map(tuple, ranks)), "", buffering, weights=flow
        )
        try:
            lowered = lower_checked(made, passing.problem.costs)
            us, peak = check_deadlock(lowered).makespan_us, max(peak_bytes(lowered))
        except ScheduleError:
            continue
        times[peak] = min(us, times.get(peak, us))
    front: list[tuple[int, int]] = []
    for peak, us in sorted(times.items()):
        if not front or us < front[-1][1]:
            front.append((peak, us))
    return front


@pytest.mark.parametrize("movement", WeightMovement)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_under_the_least_limit_known_there_is_a_schedule(
    movement: WeightMovement, num_ranks: int
) -> None:
    costs = unequal_costs(num_ranks, random.Random(num_ranks))
    only = WeightPassingCandidate("only", weight_passing_problem(movement, costs, num_ranks, 2))
    free = WeightPlaces((only,), (), profile())
    _, known = free.limits_bytes()
    options = SolveOptions(time_limit_s=0.02, deterministic=True, workers=1)
    caps = (known,) * num_ranks
    found = WeightPassingSearch(passing_of(free.within(known)), options).run()
    assert found.peak_bytes is not None and not exceeds_caps(found.peak_bytes, caps)


@pytest.mark.parametrize(
    ("movement", "seed"),
    sweep([(RING, 0), (GATHER, 0), (GATHER, 1), (RING, 1), (GATHER, 2), (GATHER, 3)], daily=2),
)
def test_the_least_peak_of_all_schedules_is_between_the_closed_form_and_the_known_one(
    movement: WeightMovement, seed: int
) -> None:
    passing = weight_passing_problem(movement, unequal_costs(2, random.Random(seed)), 2, 1)
    never, known = limits_bytes(passing)
    assert known is not None and never <= true_curve(passing)[0][0] <= known


@pytest.mark.parametrize("num_stages", [4, 6])
def test_the_least_memory_on_a_ring_is_known_with_several_stages_per_rank(num_stages: int) -> None:
    costs = unequal_costs(num_stages, random.Random(num_stages))
    passing = weight_passing_problem(RING, costs, 2, 2)
    never, known = limits_bytes(passing)
    found = least_memory(passing)
    assert found is not None and known == max(found.peak_bytes) >= never


@pytest.mark.parametrize("movement", WeightMovement)
def test_the_least_memory_is_sought_once_and_until_it_is_that_of_the_closed_form(
    movement: WeightMovement, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[int] = []

    def counted(problem: Problem, schedule: Schedule, name: str) -> EvaluatedSchedule | None:
        found = evaluate(problem, schedule, name)
        evaluated.append(max(found.peak_bytes) if found else 0)
        return found

    monkeypatch.setattr(least_memory_module, "evaluate", counted)
    monkeypatch.setattr(least_memory_module, "_KNOWN", deque())
    asked = candidates(movement)
    never, known = asked.limits_bytes()
    assert never == known and evaluated.count(never) == 1 and evaluated[-1] == never
    searched = len(evaluated)
    assert asked.within(known).limits_bytes() == (never, known)
    assert len(evaluated) == searched


@cache
def traced(movement: WeightMovement) -> MemoryCurve:
    asked = candidates(movement)
    return trace(profile(), asked, EFFORT)


@cache
def truth_of(movement: WeightMovement) -> list[tuple[int, int]]:
    return true_curve(passing_of(candidates(movement)))


@pytest.mark.parametrize("movement", WeightMovement)
def test_the_curve_encloses_that_of_all_schedules(movement: WeightMovement) -> None:
    curve, truth = traced(movement), truth_of(movement)
    curve.check()
    known = knowledge_of(curve.points)
    assert curve.never_below_bytes == truth[0][0] == curve.least_cap_bytes
    assert cap_of(curve.points[0]) == curve.least_cap_bytes
    for cap in range(curve.least_cap_bytes, truth[-1][0] + 3):
        value = true_value(truth, cap)
        assert value is not None and known.bound_us(cap) <= value
    # The search of all-gathers has the exact model; on a ring it may miss some schedules.
    most = 1.0 if movement == GATHER else 1.15
    for plan in curve.points:
        value = true_value(truth, cap_of(plan))
        assert value is not None and value_of(plan) <= most * value
    for column in (
        list(map(value_of, curve.points)),
        [p.claim.lower_bound_us for p in curve.points],
    ):
        assert column == sorted(column, reverse=True)
    assert len(set(map(value_of, curve.points))) > 1


@pytest.mark.parametrize("movement", WeightMovement)
def test_the_least_limit_for_a_target_and_its_proof_enclose_that_of_all_schedules(
    movement: WeightMovement,
) -> None:
    asked = candidates(movement)
    peak, us = truth_of(movement)[1]
    options = SolveOptions(time_limit_s=1, workers=1)
    result = least_cap(asked, TimeTarget(time_us=us), options)
    least = result.memory
    assert least is not None and least.cap_bytes is not None and least.not_below_bytes is not None
    assert least.not_below_bytes <= peak
    assert least.cap_bytes <= (peak if movement == GATHER else 1.1 * peak)
    assert result.value_us is not None and result.value_us <= us


def test_the_curve_of_all_places_of_weights_is_below_each_of_theirs_and_is_continued() -> None:
    asked = candidates(RING, GATHER, staying=True)
    begun = trace(profile(), asked, Effort(points=2, time_limit_s=1, workers=1))
    more = Effort(points=3, time_limit_s=1, workers=1)
    curve = trace(profile(), asked, more, begun)
    curve.check()
    assert {cap_of(plan) for plan in begun.points} <= {cap_of(plan) for plan in curve.points}
    assert curve.candidates == ("ring", "gather", "linear", "data-parallel")
    assert all(plan.claim.bound_holds_for == BoundScope.CANDIDATES for plan in curve.points)
    assert MemoryCurve.from_json(curve.to_json(), "again") == curve
    alone = traced(GATHER)
    assert value_of(curve.points[-1]) <= value_of(alone.points[-1])
    assert curve.least_cap_bytes <= alone.least_cap_bytes
    assert difference(alone, curve, small_profile()) == (
        "weights: gather there, ring; gather; linear; data-parallel here"
    )


def test_a_curve_in_another_partition_is_another_problem_and_so_are_its_points() -> None:
    four = small_profile()

    def only(*partition: int) -> WeightPlaces:
        problem = Problem(
            partition_costs(four, partition), everywhere(2, 2), 2, partition=partition
        )
        ring = WeightPassingCandidate("ring", WeightPassingProblem(problem, RING))
        return WeightPlaces((ring,), (), four)

    there, here = (empty_curve(four, one) for one in (only(1, 3), only(2, 2)))
    assert difference(there, there, four) is None
    assert difference(there, here, four) == "partition of ring: (1, 3) there, (2, 2) here"
    curve = traced(RING)
    with pytest.raises(ValueError, match="is of another problem"):
        curve.replace(candidate_partitions=((2, 2),))


class InThisProcess(Workers):
    """One worker that searches in this process; its second search is stopped at its beginning."""

    def __init__(self, stop: threading.Event) -> None:
        self.stopping, self.tasks, self.num_done = stop, list[Task](), 0

    def __exit__(self, *_: object) -> None:
        """End nothing."""

    @property
    def has_free(self) -> bool:
        """True if there is no search."""
        return not self.tasks

    @property
    def has_busy(self) -> bool:
        """True if there is a search."""
        return bool(self.tasks)

    def start(self, task: Task) -> None:
        """Take a search."""
        self.tasks.append(task)

    def stop(self) -> None:
        """Do nothing; the search is stopped already."""

    def outcomes(self, timeout_s: float) -> Iterator[TaskResult]:
        """Search."""
        self.num_done += 1
        if self.num_done == 2:
            self.stopping.set()
        yield solve_task(self.tasks.pop(), self.stopping)


@pytest.mark.parametrize("movement", WeightMovement)
def test_a_curve_that_is_stopped_before_a_search_has_found_anything_keeps_its_points(
    movement: WeightMovement, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, asked = threading.Event(), candidates(movement)
    monkeypatch.setattr(curve_search, "Workers", lambda _: InThisProcess(stop))
    quick = replace(EFFORT, time_limit_s=0.05)
    curve = trace(profile(), asked, quick, stop=stop)
    assert stop.is_set() and len(curve.points) == 1 and curve.has_end
