"""The curve of time against memory: true, closed, continued, stopped, refused."""

import json
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from synth.costs.costs import uniform_costs
from synth.costs.partition_costs import partition_costs
from synth.errors import RunFailure, SynthError
from synth.objective import Objective
from synth.op_kinds import MEASURED, OpKind
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.memory_curve.cap_knowledge import CapKnowledge
from synth.plan.memory_curve.curve_file import MemoryCurve, cap_of, closed, knowledge_of, value_of
from synth.plan.memory_curve.curve_search import Effort, trace
from synth.plan.memory_curve.least_cap_search import least_cap
from synth.plan.memory_curve.target import TimeTarget
from synth.plan.memory_curve.workers import Task, Workers
from synth.plan.recompute.choice import Choice
from synth.plan.search_space import OneCandidate, Placements
from synth.profile import Profile, Provenance
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.workload import Workload
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import placement
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.system.child_process import ChildProcess
from tests.sweep import sweep
from tests.synth.effort import HOURS_S
from tests.synth.every_order import true_curve, true_value

pytestmark = pytest.mark.usefixtures("kept_workers")

QUICK = Effort(points=7, time_limit_s=300, jobs=2, workers=1, gap=0)


# Times of F, B and W, what F keeps, and what B leaves of it.
_Layers = Sequence[tuple[int, int, int, int, int]]

# B of the third keeps more than it frees.
UNEQUAL = ((3, 4, 2, 9, 5), (5, 3, 4, 7, 6), (2, 6, 3, 5, 8), (4, 4, 5, 8, 2))

# Under tight caps 1 and 3 layers serve best, under others 2 and 2.
HEAVY_FIRST = ((2, 2, 3, 30, 19), (4, 1, 1, 30, 26), (4, 3, 2, 7, 7), (4, 4, 2, 8, 2))


def small_profile(layers: _Layers = UNEQUAL) -> Profile:
    """Four layers."""
    profiles = {}
    for name, (f, b, w, saved, left) in zip("abcd", layers, strict=True):
        times = {OpKind.F: f, OpKind.B: b, OpKind.W: w, OpKind.BW: b + w, OpKind.STEP: 1}
        profiles[name] = LayerProfile(
            time_us={kind: Timing.exactly(us) for kind, us in times.items()},
            parameter_bytes=10,
            gradient_bytes=0,
            optimizer_bytes=0,
            output_bytes=0,
            saved_bytes=saved,
            saved_w_bytes=left,
            # BW with as much workspace as B and W have one after the other gains nothing.
            rise_bytes={**dict.fromkeys(MEASURED, 20), OpKind.F: saved, OpKind.W: 0},
        )
    return Profile(
        name="small",
        provenance=Provenance(source="invented", device="none", date="2024-01-01"),
        workload=Workload(model="none", micro_batch_size=1, sequence_length=1, runnable=False),
        layer_profiles=profiles,
        layers=tuple(Layer(name=name, profile=name) for name in profiles),
    )


PROFILE = small_profile()


def small_problem(m: int = 3, objective: Objective = Objective.MAKESPAN) -> Problem:
    """Two ranks with two layers each."""
    problem = Problem.linear(partition_costs(PROFILE, (2, 2)), m, None, objective)
    return replace(problem, partition=(2, 2))


def one(problem: Problem, choice: Choice = ()) -> OneCandidate:
    """The space of one problem."""
    return OneCandidate(Candidate("one", problem, choice))


def in_any_partition(profile: Profile, problem: Problem, choice: Choice = ()) -> Placements:
    """The space of a problem in all partitions."""
    return Placements((Candidate("one", problem, choice),), profile, Partitioning.SEARCHED)


@cache
def traced() -> tuple[MemoryCurve, list[int]]:
    """The curve of the small problem, and how many points there were after each search."""
    counts: list[int] = []
    curve = trace(
        PROFILE, one(small_problem()), QUICK, None, lambda c: counts.append(len(c.points))
    )
    return curve, counts


@pytest.mark.slow
def test_the_curve_encloses_that_of_all_orders_at_every_cap() -> None:
    curve, _ = traced()
    truth, known = true_curve(small_problem()), knowledge_of(curve.points)
    curve.check()
    assert curve.least_cap_bytes == curve.never_below_bytes == truth[0][0]
    for cap in range(truth[0][0], truth[-1][0] + 3):
        value, best = true_value(truth, cap), known.best_within(cap)
        assert value is not None and best is not None
        assert known.bound_us(cap) <= value <= best.value_us


@pytest.mark.slow
def test_the_ends_are_the_least_cap_and_the_best_time() -> None:
    curve, counts = traced()
    truth = true_curve(small_problem())
    assert cap_of(curve.points[0]) == truth[0][0]
    assert (value_of(curve.points[0]), value_of(curve.points[-1])) == (truth[0][1], truth[-1][1])
    assert counts == list(range(1, len(curve.points) + 1))
    assert {family.name for family in curve.families} >= {"1f1b", "zb-h1", "gpipe"}


@pytest.mark.slow
def test_enough_points_find_every_bend() -> None:
    begun, _ = traced()
    whole = trace(PROFILE, one(small_problem()), replace(QUICK, points=60), begun)
    steps = sorted({(max(p.claim.peak_bytes), value_of(p)) for p in whole.points})
    truth = true_curve(small_problem())
    assert {value for _, value in steps} >= {value for _, value in truth}
    assert len(whole.points) < 60


@pytest.mark.slow
def test_values_and_bounds_fall_with_the_cap_and_caps_are_kept() -> None:
    points = traced()[0].points
    for column in (list(map(value_of, points)), [p.claim.lower_bound_us for p in points]):
        assert column == sorted(column, reverse=True)
    assert all(max(p.claim.peak_bytes) <= cap_of(p) for p in points)


def worse(plan: Plan, by: Plan, bound_us: int) -> Plan:
    """A point with another's slower plan, and a weaker bound."""
    gap = (value_of(by) - bound_us) / value_of(by)
    claim = by.claim.replace(lower_bound_us=bound_us, gap=gap)
    return by.replace(claim=claim, caps_bytes=plan.caps_bytes)


@pytest.mark.slow
def test_closing_gives_better_plans_upwards_and_better_bounds_downwards() -> None:
    points = traced()[0].points
    first, last = points[0], points[-1]
    spoilt = (worse(first, first, 1), worse(last, first, last.claim.lower_bound_us))
    bettered = closed(spoilt)
    assert [p.claim.lower_bound_us for p in bettered] == [last.claim.lower_bound_us] * 2
    assert closed((*spoilt, *points)) == points
    for plan in bettered:
        plan.check()


def test_what_is_known_of_one_cap_holds_for_others_on_the_right_side_only() -> None:
    known = CapKnowledge[Claim]()
    known.add(100, None, 7)
    known.add(None, None, 5)
    assert [known.bound_us(cap) for cap in (99, 100, 101, None)] == [7, 7, 5, 5]
    assert known.best_within(100) is None


def test_a_curve_is_continued_and_what_is_there_is_kept(tmp_path: Path) -> None:
    begun = trace(PROFILE, one(small_problem()), replace(QUICK, points=2))
    begun.save(tmp_path / "curve.json")
    loaded = MemoryCurve.load(tmp_path / "curve.json")
    assert loaded == begun
    searches: list[MemoryCurve] = []
    more = trace(PROFILE, one(small_problem()), replace(QUICK, points=4), loaded, searches.append)
    assert len(searches) == 2 and len(more.points) == 4
    assert set(map(cap_of, begun.points)) < set(map(cap_of, more.points))


@pytest.mark.slow
def test_a_curve_that_is_done_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    curve, _ = traced()
    monkeypatch.delattr("synth.plan.memory_curve.curve_search.Workers")
    searches: list[MemoryCurve] = []
    enough = replace(QUICK, points=len(curve.points))
    assert trace(PROFILE, one(small_problem()), enough, curve, searches.append) == curve
    assert searches == []


def large_problem() -> tuple[Profile, Problem]:
    """Eight ranks, sixty-four micro-batches: no point in between is proven in seconds."""
    layers = tuple(Layer(name=f"l{i}", profile="abcd"[i * i % 4]) for i in range(24))
    profile = PROFILE.replace(layers=layers)
    problem = Problem.linear(partition_costs(profile, (3,) * 8), 64)
    return profile, replace(problem, partition=(3,) * 8)


def test_a_stop_keeps_what_is_there_and_the_rest_comes_later() -> None:
    profile, problem = large_problem()
    stop = threading.Event()

    def stop_after_the_ends(curve: MemoryCurve) -> None:
        if len(curve.points) == 2:
            threading.Timer(3, stop.set).start()

    # The two ends are proven at once; in between a search would go on for an hour.
    effort = Effort(points=40, time_limit_s=HOURS_S, jobs=1, workers=1, gap=0)
    curve = trace(profile, one(problem), effort, None, stop_after_the_ends, stop)
    curve.check()
    assert "interrupt" in {plan.claim.stopped_by for plan in curve.points}
    searches: list[MemoryCurve] = []
    brief = replace(effort, time_limit_s=0.3, points=len(curve.points))
    again = trace(profile, one(problem), brief, curve, searches.append)
    assert searches, "an interrupted point is searched again"
    assert "interrupt" not in {plan.claim.stopped_by for plan in again.points}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (small_problem(2), "num micro batches: 3 there, 2 here"),
        (small_problem(3, Objective.PERIOD), "objective: makespan there, period here"),
        (
            replace(small_problem(), costs=partition_costs(PROFILE, (1, 3)), partition=(1, 3)),
            r"partition: \(2, 2\) there, \(1, 3\) here",
        ),
    ],
)
@pytest.mark.slow
def test_a_curve_of_another_problem_is_refused(other: Problem, words: str) -> None:
    with pytest.raises(SynthError, match=words):
        trace(PROFILE, one(other), QUICK, traced()[0])


def test_caps_or_too_few_points_are_refused() -> None:
    with pytest.raises(SynthError, match="has memory limits"):
        trace(PROFILE, one(replace(small_problem(), caps_bytes=(50, 50))), QUICK)
    with pytest.raises(SynthError, match="two points at least"):
        Effort(points=1)
    with pytest.raises(SynthError, match="needs the problem's partition"):
        trace(PROFILE, one(replace(small_problem(), partition=None)), QUICK)


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
def test_several_stages_per_rank_have_a_curve_too(objective: Objective) -> None:
    sizes = (1, 1, 1, 1)
    problem = Problem(
        partition_costs(PROFILE, sizes), placement("v", 2), 3, None, objective, partition=sizes
    )
    curve = trace(PROFILE, one(problem), replace(QUICK, points=4, time_limit_s=1))
    curve.check()
    assert len(curve.points) >= 3
    assert curve.never_below_bytes <= curve.least_cap_bytes


def test_workers_that_were_started_end_if_another_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[ChildProcess] = []

    def start_two(serve: str) -> ChildProcess:
        if len(started) == 2:
            raise OSError("Resource temporarily unavailable")
        started.append(ChildProcess(serve))
        return started[-1]

    monkeypatch.setattr("synth.plan.memory_curve.workers.ChildProcess", start_two)
    with pytest.raises(RunFailure, match=r"beside 2 others: Resource .* with fewer --jobs"):
        Workers(3)
    assert len(started) == 2
    for one in started:
        with pytest.raises(ProcessLookupError):
            os.kill(one.pid, 0)


def test_a_worker_that_is_killed_is_said_so() -> None:
    costs = uniform_costs(8, forward_us=5, backward_input_us=6, backward_weight_us=3, saved_bytes=3)
    space = one(Problem.linear(costs, 32)).within(18)
    task = Task(space, SolveOptions(time_limit_s=HOURS_S, workers=1), 18)
    with pytest.raises(RunFailure, match="ended without an answer"), Workers(1) as workers:
        workers.start(task)
        os.kill(workers.pids[0], signal.SIGKILL)
        list(workers.outcomes(300))


def test_a_worker_that_still_imports_leaves_ctrl_c_to_its_parent() -> None:
    costs = uniform_costs(2, forward_us=5, backward_input_us=6, backward_weight_us=3)
    with Workers(1) as workers:
        os.kill(workers.pids[0], signal.SIGINT)
        workers.start(Task(one(Problem.linear(costs, 2)), SolveOptions(workers=1)))
        assert [outcome.stopped_by for outcome in workers.outcomes(300)] == [StoppedBy.OPTIMAL]


def test_what_nobody_foresaw_in_a_worker_is_told_here() -> None:
    costs = uniform_costs(2, forward_us=5, backward_input_us=6, backward_weight_us=3)
    space = one(Problem.linear(costs, 2), ("a",))  # type: ignore[arg-type]
    no_stage = Task(space, SolveOptions(workers=1))
    with pytest.raises(RunFailure, match="a solver process failed: "), Workers(1) as workers:
        workers.start(no_stage)
        list(workers.outcomes(300))


@pytest.mark.parametrize("given", ["abc", "nan", ""])
@pytest.mark.slow
def test_a_point_with_a_time_limit_that_is_none_is_refused(given: str) -> None:
    curve, _ = traced()
    data = json.loads(curve.to_json())
    data["points"][0]["arguments"]["time_limit_s"] = given
    with pytest.raises(SynthError, match=f"time_limit_s '{given}'; needed: seconds, such as '30'"):
        MemoryCurve.from_json(json.dumps(data), "curve.json")


@pytest.mark.slow
def test_a_refusal_in_a_worker_is_raised_here() -> None:
    costs = uniform_costs(2, forward_us=5, backward_input_us=6, backward_weight_us=3)
    problem = Problem.linear(costs, 2)
    with Workers(1) as workers:
        other = traced()[0].points[-1].schedule()
        workers.start(Task(one(problem), SolveOptions(hint=other)))
        with pytest.raises(SynthError, match="the hint has 2 ranks and 3 micro-batches"):
            list(workers.outcomes(300))


def true_curve_of_any_partition(profile: Profile) -> list[tuple[int, int]]:
    """As `true_curve`, over all partitions of a small model on two ranks."""
    found: list[tuple[int, int]] = []
    for sizes in ((1, 3), (2, 2), (3, 1)):
        found += true_curve(
            replace(small_problem(), costs=partition_costs(profile, sizes), partition=sizes)
        )
    return sorted(found)


@pytest.mark.parametrize(("layers", "partitions"), sweep([(UNEQUAL, 1), (HEAVY_FIRST, 2)], daily=1))
def test_a_curve_over_all_partitions_encloses_that_of_all_orders_of_all_of_them(
    layers: _Layers, partitions: int
) -> None:
    profile = small_profile(layers)
    problem = replace(small_problem(), costs=partition_costs(profile, (2, 2)))
    curve = trace(profile, in_any_partition(profile, problem), replace(QUICK, points=12, jobs=1))
    curve.check()
    truth, known = true_curve_of_any_partition(profile), knowledge_of(curve.points)
    assert curve.least_cap_bytes == curve.never_below_bytes == truth[0][0]
    for cap in range(truth[0][0], truth[-1][0] + 3):
        value, best = true_value(truth, cap), known.best_within(cap)
        assert value is not None and best is not None
        assert known.bound_us(cap) <= value <= best.value_us
    for point in curve.points:
        assert value_of(point) == point.claim.lower_bound_us == true_value(truth, cap_of(point))
        assert point.costs == partition_costs(profile, point.partition)
    assert len({point.partition for point in curve.points}) == partitions


@pytest.mark.parametrize("layers", [UNEQUAL, pytest.param(HEAVY_FIRST, marks=pytest.mark.nightly)])
def test_the_least_cap_in_any_partition_is_that_of_all_orders_of_all_of_them(
    layers: _Layers,
) -> None:
    profile = small_profile(layers)
    problem = replace(small_problem(), costs=partition_costs(profile, (2, 2)))
    options = SolveOptions(time_limit_s=HOURS_S, workers=1)
    truth = true_curve_of_any_partition(profile)
    for value in {value for _, value in truth if value < truth[-1][1] + 20}:
        peak = min(peak for peak, other in truth if other <= value)
        space = in_any_partition(profile, problem)
        result = least_cap(space, TimeTarget(time_us=value), options)
        assert result.memory is not None and result.problem.partition is not None
        assert (result.memory.cap_bytes, result.memory.not_below_bytes) == (peak, peak)
        assert result.problem.costs == partition_costs(profile, result.problem.partition)
        assert result.value_us is not None and result.value_us <= value


@pytest.mark.slow
def test_a_curve_over_all_partitions_goes_on_and_is_none_of_one_partition(tmp_path: Path) -> None:
    space = in_any_partition(PROFILE, small_problem())
    begun = trace(PROFILE, space, replace(QUICK, points=2))
    begun.save(tmp_path / "curve.json")
    loaded = MemoryCurve.load(tmp_path / "curve.json")
    assert loaded == begun
    more = trace(PROFILE, space, replace(QUICK, points=4), loaded)
    assert {cap_of(point) for point in begun.points} < {cap_of(point) for point in more.points}
    with pytest.raises(SynthError, match=r"partition: searched there, \(2, 2\) here"):
        trace(PROFILE, one(small_problem()), QUICK, loaded)
    with pytest.raises(SynthError, match=r"partition: \(2, 2\) there, searched here"):
        trace(PROFILE, space, QUICK, traced()[0])


def test_partitions_are_sought_where_there_are_bounds_of_all_only() -> None:
    where = placement("v", 2)
    several = Problem(partition_costs(PROFILE, (1, 1, 1, 1)), where, 3, partition=(1, 1, 1, 1))
    for problem, recompute in ((several, ()), (small_problem(), (0,)), (small_problem(), None)):
        with pytest.raises(SynthError, match="exist only for one stage per rank"):
            trace(PROFILE, in_any_partition(PROFILE, problem, recompute), QUICK)
        with pytest.raises(SynthError, match="exist only for one stage per rank"):
            least_cap(in_any_partition(PROFILE, problem, recompute), TimeTarget(time_us=9))
