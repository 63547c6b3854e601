"""Partitions for tight caps: as good as any, where all can be tried."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import pytest

from synth.costs.partition_costs import partition_costs
from synth.objective import BoundScope, Objective
from synth.plan.choose.candidates import Candidate, Partitioning, SearchWatch, Trial
from synth.plan.choose.race import solve_best_of
from synth.plan.choose.race_state import RaceState
from synth.plan.list_schedule_judge import RuleValue
from synth.plan.partition.balance import balance
from synth.plan.partition.bounds import PartitionBounds
from synth.plan.partition.partition_search import PartitionSearch, _moved
from synth.plan.partition.queue import PartitionQueue
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile import Profile
from synth.profile.layer_profile import Layer, Timing
from synth.schedule.files.certificate import ProvenBound
from synth.schedule.model import SMALLEST_BUFFERING
from synth.schedule.placements import placement
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.evaluate.evaluate import never
from synth.solver.infeasibility import serial_schedule, smallest_limit_bytes
from synth.solver.problem import Problem
from synth.solver.result import Incumbent
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import counted, exact_alone
from tests.synth.plan.test_recompute import profile_that_saves_much

EACH = profile_that_saves_much().layers[0]


def layered(count: int) -> Profile:
    """A profile of `count` equal layers, whose F keeps much."""
    layers = tuple(EACH.replace(name=f"l{i}") for i in range(count))
    return profile_that_saves_much().replace(layers=layers)


SMALL, PROFILE = layered(6), layered(8)

# Enough for any search here to end by itself.
MUCH = 100.0


def even(
    name: str,
    num_ranks: int,
    m: int,
    cap: int | None,
    objective: Objective = Objective.MAKESPAN,
    profile: Profile = PROFILE,
) -> Problem:
    where = placement(name, num_ranks)
    caps = None if cap is None else (cap,) * num_ranks
    sizes = balance(profile, where, caps, m)
    return Problem(partition_costs(profile, sizes), where, m, caps, objective, sizes)


def every_partition(problem: Problem) -> Iterator[Problem]:
    count = len(SMALL.layers)
    for edges in combinations(range(1, count), problem.costs.num_stages - 1):
        sizes = tuple(b - a for a, b in pairwise((0, *edges, count)))
        yield replace(problem, costs=partition_costs(SMALL, sizes), partition=sizes)


def searched(start: Problem, most: int, effort_s: float, *rest: Any) -> list[Problem]:
    """The best partitions found."""
    search = PartitionSearch(PROFILE, start, effort_s, *rest)
    search.run()
    return search.best(most)


@pytest.mark.parametrize(
    ("name", "num_ranks", "m", "cap"),
    sweep(
        [("linear", 2, 6, 260), ("linear", 3, 5, 180), ("v", 2, 3, 200), ("linear", 3, 4, 250)],
        daily=3,
    ),
)
@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
def test_of_all_partitions_the_best_is_found(
    name: str, num_ranks: int, m: int, cap: int, objective: Objective
) -> None:
    start = even(name, num_ranks, m, cap, objective, SMALL)
    found = [solve(problem, exact_alone(1)) for problem in every_partition(start)]
    best_us = min(result.value_us for result in found if result.value_us is not None)
    chosen = solve_best_of([Candidate(name, start)], SMALL, Partitioning.SEARCHED, counted(2))
    assert chosen.result.value_us == best_us
    assert chosen.result.schedule is not None
    solved = chosen.result.problem
    assert solved.costs == partition_costs(SMALL, solved.partition or ())
    verify(chosen.result.schedule, solved.costs, solved.caps_bytes)


def test_fewer_layers_in_the_first_stages_serve_better_under_a_tight_cap() -> None:
    start = even("linear", 4, 12, 160)
    best = searched(start, 1, MUCH)[0]
    assert best.partition is not None
    assert best.partition[0] < best.partition[-1]
    values = [solve(problem, counted(3)).value_us for problem in (best, start)]
    assert (values[0] or 0) < 0.9 * (values[1] or 0)


def test_the_start_is_kept_beside_the_best() -> None:
    start = even("linear", 4, 12, 160)
    found = searched(start, 3, MUCH)
    assert 2 <= len(found) <= 3
    assert found[-1] is start
    assert len({problem.partition for problem in found}) == len(found)
    assert searched(start, 1, 0) == [start]
    assert searched(start, 3, MUCH, lambda: True) == [start]


def test_a_poor_order_that_is_better_than_the_best_partition_hides_no_list_schedule() -> None:
    start, sizes = even("linear", 4, 12, 160), (1, 2, 2, 3)
    order = replace(serial_schedule(start), buffering=SMALLEST_BUFFERING)
    far = RuleValue(10**9, 0)
    plain = PartitionSearch(PROFILE, start, MUCH)._judge(sizes, far)
    with_order = PartitionSearch(PROFILE, start, MUCH, order=order)
    in_order = with_order._in_order(with_order._sample(sizes))
    assert plain is not None and in_order is not None
    assert plain.value_us < in_order.value_us < far.value_us
    assert with_order._judge(sizes, far) == plain


def test_it_begins_at_the_partition_of_the_least_closed_forms() -> None:
    start = even("linear", 4, 12, 160)
    search = PartitionSearch(PROFILE, start, MUCH)
    assert search.bounds is not None
    least = search.bounds.least_by_closed_forms(never)
    assert least is not None
    search.run()
    assert list(search.judged)[:2] == [start.partition, least]
    closed = PartitionBounds(StageCostTable(PROFILE), start)
    edges = combinations(range(1, 8), 3)
    every = [tuple(b - a for a, b in pairwise((0, *inner, 8))) for inner in edges]
    assert closed.bound_us(least) == min(closed.bound_us(sizes) or 10**9 for sizes in every)


def test_a_trial_that_was_not_searched_takes_the_bounds_of_its_runs() -> None:
    start = even("linear", 4, 12, 160)
    race = RaceState([Candidate("linear", start)], Partitioning.SEARCHED, 0.0)
    race.trials = [race.new(race.candidates[0])]
    (trial,) = race.trials
    search = PartitionSearch(PROFILE, start, MUCH)
    search.run()
    race.queues["linear"] = queue = PartitionQueue(search, search.bounds_of_all())
    known_us, sizes = trial.lower_bound_us, start.partition
    best_us = search.best_us
    assert queue.bounds is not None and sizes is not None and best_us is not None
    every = product(range(1, 10), repeat=4)
    others = [other for other in every if sum(other) == 12 and other != sizes]
    queue.bounds.raise_least(best_us, others, counted(5), never)
    race.promising()
    assert known_us < trial.lower_bound_us == queue.bound_us(sizes)
    assert trial.lower_bound_us <= (solve(start, exact_alone(5)).value_us or 0)


def test_the_bound_of_all_is_that_of_runs_where_a_partition_has_less_of_its_own() -> None:
    start = even("linear", 4, 12, 160)
    search = PartitionSearch(PROFILE, start, MUCH)
    search.run()
    queue = PartitionQueue(search, search.bounds_of_all())
    assert queue.bounds is not None and queue.single is not None
    least = queue.bounds.least()
    assert least.sizes is not None and least.bound_us > 1
    queue.single.note(least.sizes, ProvenBound.by_closed_forms(1))
    assert queue.least_us(()) == least.bound_us


def test_a_schedule_that_offloads_takes_no_bound_of_others() -> None:
    """It is a trial under a name of its own, which has no queue."""
    start = even("linear", 4, 12, 160)
    race = RaceState([Candidate("linear", start)], Partitioning.SEARCHED, 0.0)
    search = PartitionSearch(PROFILE, start, MUCH)
    search.run()
    race.queues["linear"] = PartitionQueue(search, search.bounds_of_all())
    moved = Trial(Candidate("linear (bpipe)", start), 3, is_over=True, is_fixed=True)
    race.trials = [race.new(race.candidates[0]), moved]
    race.settle_bounds()
    assert moved.lower_bound_us == 3


def test_the_same_input_gives_the_same_partitions() -> None:
    start = even("v", 2, 8, 260, Objective.PERIOD)
    first, second = (searched(start, 3, MUCH) for _ in range(2))
    assert [problem.partition for problem in first] == [problem.partition for problem in second]


@pytest.mark.parametrize("cap", [None, 10**6])
def test_with_room_for_all_the_even_one_stays_ahead(cap: int | None) -> None:
    start = even("linear", 4, 8, cap, Objective.PERIOD)
    assert searched(start, 3, MUCH)[0].partition == (2, 2, 2, 2)


def test_stages_that_recompute_are_judged_as_they_are_then() -> None:
    # If all stages keep only their inputs, every partition fits, and the even one is best.
    start = even("linear", 4, 12, 160)
    search = PartitionSearch(PROFILE, start, MUCH, recompute=range(4))
    assert search.run()
    assert search.best(1) == [start]
    assert searched(start, 1, MUCH) != [start]


def test_a_stop_ends_the_search_of_partitions_at_once() -> None:
    asked: list[None] = []

    def should_stop() -> bool:
        asked.append(None)
        return True

    start = even("linear", 4, 12, 160)
    search = PartitionSearch(PROFILE, start, MUCH, should_stop)
    assert search.run()
    assert list(search.judged) == [start.partition]
    assert len(asked) <= 6


def test_where_nothing_fits_the_start_is_all_there_is() -> None:
    start = even("linear", 2, 4, 50)
    assert smallest_limit_bytes(start) > 50
    assert searched(start, 3, MUCH) == [start]


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (1, 3, 2, 2), (5,), (2,) * 9])
def test_moves_keep_all_layers_and_leave_every_stage_one(sizes: tuple[int, ...]) -> None:
    moved = list(_moved(sizes))
    assert all(sum(other) == sum(sizes) and min(other) >= 1 for other in moved)
    assert sizes not in moved
    assert len(moved) == len(set(moved))
    assert bool(moved) == (len(sizes) > 1 and max(sizes) > 1)


@pytest.mark.parametrize("heavy", [0, 7])
def test_where_one_layer_bounds_all_the_search_ends_soon(heavy: int) -> None:
    # Its bound counts the others' rounding, so that hundreds of partitions look open by a hair.
    each = PROFILE.layer_profiles["l"]
    times = {kind: timing.median_us * 1.01 for kind, timing in each.time_us.items()}
    light = each.replace(time_us={kind: Timing.exactly(us) for kind, us in times.items()})
    long = {kind: Timing.exactly(12 * us) for kind, us in times.items()}
    profile = PROFILE.replace(
        layer_profiles={"l": light, "heavy": light.replace(time_us=long)},
        layers=tuple(Layer(name=f"l{i}", profile="heavy" if i == heavy else "l") for i in range(8)),
    )
    start = even("linear", 4, 8, None, profile=profile)
    chosen = solve_best_of([Candidate("linear", start)], profile, Partitioning.SEARCHED, counted(5))
    assert chosen.result.stopped_by in (StoppedBy.OPTIMAL, StoppedBy.NOTHING_BETTER)
    assert chosen.result.gap is not None and chosen.result.gap < 0.005
    assert len(chosen.trials) < 12


def test_what_is_told_on_the_way_holds_for_all_partitions() -> None:
    start = even("linear", 3, 6, 180)
    heard: list[Incumbent] = []
    chosen = solve_best_of(
        [Candidate("linear", start)],
        PROFILE,
        Partitioning.SEARCHED,
        counted(20),
        watch=SearchWatch(heard.append),
    )
    assert chosen.result.bound_scope == BoundScope.ALL
    # Published schedules are told of before there are bounds of all partitions.
    assert heard[-1].bound_scope == BoundScope.ALL
    best_us = chosen.result.value_us
    assert best_us is not None and heard[-1].value_us == best_us
    assert all(one.lower_bound_us <= best_us for one in heard)
    assert chosen.result.lower_bound_us <= min(trial.lower_bound_us for trial in chosen.trials)


def test_when_time_is_up_that_is_the_reason_given() -> None:
    start = even("linear", 4, 16, 160)
    chosen = solve_best_of(
        [Candidate("linear", start)], PROFILE, Partitioning.SEARCHED, counted(0.05)
    )
    assert chosen.result.value_us is not None
    assert chosen.result.lower_bound_us < chosen.result.value_us
    assert chosen.result.stopped_by == StoppedBy.TIME_LIMIT


def test_nothing_fits_in_any_partition_has_no_bound() -> None:
    start = even("linear", 2, 4, 50)
    chosen = solve_best_of([Candidate("linear", start)], PROFILE, Partitioning.SEARCHED, counted(1))
    assert chosen.result.value_us is None
    assert chosen.result.lower_bound_us == 0
    assert chosen.result.stopped_by == StoppedBy.INFEASIBLE
