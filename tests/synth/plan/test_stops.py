"""A stop ends every search in the same way: with the best so far, and the reason."""

import threading
from dataclasses import replace

import pytest

from synth.costs.partition_costs import partition_costs
from synth.plan.choose.candidates import Candidate, Partitioning, SearchWatch
from synth.plan.memory_curve.curve_file import MemoryCurve
from synth.plan.memory_curve.curve_search import Effort, trace
from synth.plan.memory_curve.least_cap_search import LeastForTime
from synth.plan.memory_curve.steady_cap import LeastWithoutBubble
from synth.plan.memory_curve.target import TimeTarget
from synth.plan.search_space import (
    OneCandidate,
    Placements,
    SearchSpace,
    WeightPlaces,
    WithoutFlush,
)
from synth.plan.weight_passing.choice import WeightPassingCandidate
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profiles import find
from synth.schedule.placements import everywhere, placement
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem

# Large enough, under a limit below the peak of ZB-2p, for no search to be over at once.
CAP_BYTES = 20 * 10**9
LINKS = Links(default=Link(latency_us=10, bandwidth_bytes_per_s=5e9))
PROFILE = Profile.load(find("zb-1.5b-p8-m24")).replace(links=LINKS)
PROBLEM = Problem(
    partition_costs(PROFILE, (3,) * 8), placement("linear", 8), 48, partition=(3,) * 8
)
ONE = OneCandidate(Candidate("linear", PROBLEM))


def weight_places() -> WeightPlaces:
    """Weights that are gathered, or that stay."""
    costs = partition_costs(PROFILE, (3,) * 8)
    problem = Problem(costs, everywhere(8, 8), 16, partition=(3,) * 8)
    passing = WeightPassingProblem(problem, WeightMovement.GATHER)
    staying = Candidate("linear", replace(PROBLEM, num_micro_batches=16))
    return WeightPlaces((WeightPassingCandidate("gather", passing),), (staying,), PROFILE)


SPACES = {
    "one": ONE.within(CAP_BYTES),
    "partitions": Placements((ONE.candidate,), PROFILE, Partitioning.SEARCHED).within(CAP_BYTES),
    "weights": weight_places().within(CAP_BYTES),
    "without a flush": WithoutFlush("linear", FlushFreeProblem.parse("2bw:every=8", PROBLEM)),
    "least memory for a time": LeastForTime(ONE, TimeTarget(share_of_bound=1.02)),
}


@pytest.mark.parametrize("name", SPACES)
def test_a_stop_at_the_first_schedule_returns_the_best_that_was_told(name: str) -> None:
    space, stop = SPACES[name], threading.Event()
    so_far = BestSoFar[Incumbent](lambda _: stop.set())
    result = space.search(SolveOptions(300, gap=0, workers=1), SearchWatch(so_far, stop)).result
    assert so_far.best is not None and result.value_us is not None
    assert result.stopped_by == StoppedBy.INTERRUPT
    assert result.wall_s < 200
    best = result.as_incumbent()
    assert best is not None and best.rank_key[0] <= so_far.best.rank_key[0]
    assert so_far.best.as_result(1.0, StoppedBy.INTERRUPT).stopped_by == StoppedBy.INTERRUPT


@pytest.mark.parametrize("name", SPACES)
def test_a_stop_before_the_beginning_ends_at_once(name: str) -> None:
    stop = threading.Event()
    stop.set()
    result = (
        SPACES[name].search(SolveOptions(300, gap=0, workers=1), SearchWatch(None, stop)).result
    )
    assert result.stopped_by == StoppedBy.INTERRUPT and result.wall_s < 60


def test_a_stop_before_a_pattern_without_a_bubble_is_found_leaves_no_schedule() -> None:
    stop = threading.Event()
    stop.set()
    space: SearchSpace = LeastWithoutBubble(ONE)
    result = space.search(SolveOptions(300, workers=1), SearchWatch(None, stop)).result
    assert (result.schedule, result.stopped_by) == (None, StoppedBy.INTERRUPT)
    assert result.message is not None and "interrupted" in result.message


def test_a_curve_that_is_stopped_at_a_point_has_the_points_so_far() -> None:
    stop = threading.Event()

    def stop_at_the_second(curve: MemoryCurve) -> None:
        if len(curve.points) == 2:
            stop.set()

    effort = Effort(points=6, time_limit_s=0.2, jobs=1, workers=1)
    curve = trace(PROFILE, ONE, effort, None, stop_at_the_second, stop)
    assert stop.is_set() and len(curve.points) == 2
    curve.check()
