"""Schedules for more micro-batches from those for fewer: valid, in the same memory, and good."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate

import pytest

from benchmarks.solver.suites import table, v_shaped
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.schedule.placements import placement
from synth.schedule.verify import verify
from synth.solver.evaluate import evaluate
from synth.solver.evaluate.evaluate import BUFFERINGS, EvaluatedSchedule
from synth.solver.improve import list_scheduling
from synth.solver.improve.extend import _Extension, extend, extended_instance
from synth.solver.improve.modulo_step import ModuloScheduling
from synth.solver.improve.short_instance import ShortInstance
from synth.solver.improve.unrolling import Unrolling
from synth.solver.infeasibility import needed_bytes, serial_schedule
from synth.solver.instance.instance import BW, B, F, Instance, W
from synth.solver.instance.memory_models import relaxed_memory, safe_memory
from synth.solver.instance.timing import Orders, keeps_caps, number, order_of, timed
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.search_state import SearchState
from synth.solver.solver import solve
from synth.solver.watch import SolveWatch
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.search_context import context_of

PLACEMENTS = ("linear", "v", "looped:2", "bidirectional", "bidirectional-v")

# All that a search may leave out when only fewer micro-batches are to be seen.
OTHERS = frozenset({Part.BOUNDS, Part.MODULO, Part.WINDOWS, Part.ROBUSTNESS})


def odd_problem(rng: random.Random, m: int) -> Problem:
    """Everything odd, no caps."""
    where = placement(rng.choice(PLACEMENTS), 2)
    return Problem(odd_costs(rng, where.num_stages, 2), where, m)


def some_orders(seed: int) -> Iterator[tuple[Problem, Instance, Orders]]:
    """Valid orders of a random problem: any, and list schedules under a cap."""
    rng = random.Random(seed)
    problem = odd_problem(rng, rng.randint(6, 12))
    programs = RandomOrders(rng, problem).programs()
    instance = relaxed_memory(problem)
    yield problem, instance, tuple(tuple(order_of(instance, program)) for program in programs)
    static = max(problem.static_bytes(rank) for rank in range(2))
    capped = replace(problem, caps_bytes=(static + rng.randint(20, 60),) * 2)
    instance = safe_memory(capped, BUFFERINGS[0])
    builder = list_scheduling.Builder(instance, Objective.MAKESPAN)
    for draft in list_scheduling.search(builder, 2_000, seed)[:3]:
        yield capped, instance, draft.orders


def usages(instance: Instance, orders: Orders) -> list[set[tuple[int, OpKind, int]]]:
    """Of each rank every op and the level that it meets."""
    found = []
    for order in orders:
        deltas = (instance[copy].delta_bytes[kind] for copy, kind in order)
        found.append(
            {(*op, usage) for op, usage in zip(order, accumulate(deltas, initial=0), strict=False)}
        )
    return found


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
def test_longer_orders_are_valid_and_meet_the_same_levels(objective: Objective) -> None:
    num_found = 0
    for seed in range(30):
        for problem, instance, orders in some_orders(seed):
            count = seed % 12 + 1
            more = problem.num_micro_batches + count * problem.num_replicas
            asked = replace(problem, num_micro_batches=more)
            whole = extended_instance(instance, count)
            found = extend(instance, orders, count, objective)
            assert found == sorted(found, key=lambda one: one.value_us)
            for order, value_us in found:
                num_found += 1
                assert usages(whole, order) == usages(instance, orders)
                programs = tuple(number(whole, ops) for ops in order)
                assert keeps_caps(programs, whole)
                assert value_us == timed(order, whole).value_us(whole, objective)
                free = replace(asked, caps_bytes=None)
                candidate = evaluate.evaluate_order(free, programs, "test")
                assert candidate is not None
                verify(candidate.schedule, asked.costs)
    assert num_found >= 100


def test_a_longer_view_is_that_of_more_micro_batches() -> None:
    for seed in range(20):
        problem = odd_problem(random.Random(seed), 7)
        more = replace(problem, num_micro_batches=7 + 3 * problem.num_replicas)
        assert extended_instance(relaxed_memory(problem), 3) == relaxed_memory(more)


def test_every_piece_may_come_as_often_as_one_likes() -> None:
    """None makes ops wait for each other, and each adds what it has of every kind."""
    num_pieces = 0
    for seed in range(30):
        for _, instance, orders in some_orders(seed):
            within = _Extension(instance, orders, Objective.MAKESPAN, lambda: False)
            for size in range(1, 4):
                for segment in within.segments(size):
                    num_pieces += 1
                    for times in (1, 3):
                        repeated, whole = (
                            segment.repeated(orders, times),
                            extended_instance(instance, size * times),
                        )
                        assert len(timed(repeated, whole).starts) == whole.num_ops
                        assert usages(whole, repeated) == usages(instance, orders)
    assert num_pieces >= 1_000


def serial(num_ranks: int, m: int) -> tuple[Instance, Orders]:
    problem = table.problem(num_ranks, m, 1)
    instance = relaxed_memory(problem)
    programs = serial_schedule(problem).programs
    return instance, tuple(tuple(order_of(instance, program)) for program in programs)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_serial_schedules_are_lengthened_to_serial_ones(m: int) -> None:
    """Every micro-batch is a segment; what is over is no trouble."""
    instance, orders = serial(3, m)
    each_us = timed(orders, instance).value_us(instance, Objective.MAKESPAN) / m
    for count in (1, 2, 7):
        best = extend(instance, orders, count, Objective.MAKESPAN)[0]
        assert [kind for _, kind in best.orders[0]] == [F, BW] * (m + count)
        assert best.value_us <= each_us * (m + count)


def test_what_does_not_repeat_is_not_lengthened() -> None:
    """Nothing but all of it takes rank 0 and rank 1 equally far."""
    instance, _ = serial(2, 2)
    orders = (((0, F), (0, F), (0, BW), (0, BW)), ((1, F), (1, F), (1, B), (1, B), (1, W), (1, W)))
    assert extend(instance, orders, 1, Objective.MAKESPAN) == []
    assert extend(instance, orders, 2, Objective.MAKESPAN)


def test_a_stop_ends_it() -> None:
    """After the next one that is tried."""
    instance, orders = serial(3, 5)
    for limit in range(30):
        asked = 0

        def should_stop(limit: int = limit) -> bool:
            nonlocal asked
            asked += 1
            return asked > limit

        extend(instance, orders, 4, Objective.MAKESPAN, should_stop)
        assert asked <= limit + 12  # one for each size and segment at most, no more work


def fewer(
    num_ranks: int, num_micro_batches: int, share: float, seconds: float = 1e6
) -> ShortInstance:
    problem = table.problem(num_ranks, num_micro_batches, share)
    return begun(problem, seconds)


def begun(problem: Problem, seconds: float) -> ShortInstance:
    options = SolveOptions(seconds, deterministic=True)
    now = SearchState(problem, options)
    return ShortInstance(context_of(now))


def test_fewer_are_left_out_by_what_memory_takes_at_once() -> None:
    """Room for 4 of 8: 20 are left of 64; for 9 of 16: 37; for 14 of 16: 36."""
    assert fewer(8, 64, 0.5).problem.num_micro_batches == 20
    assert fewer(16, 64, 0.6).problem.num_micro_batches == 37
    assert fewer(16, 64, 0.9).problem.num_micro_batches == 36
    assert fewer(8, 64, 0.6, seconds=60.0).is_worth


@pytest.mark.parametrize("caps", [(12,) * 7 + (24,), (12,) * 4 + (24,) * 4, (12,) * 7 + (21,)])
def test_ranks_with_more_memory_than_they_need_change_nothing(caps: tuple[int, ...]) -> None:
    problem = replace(table.problem(8, 64, 0.5), caps_bytes=caps)
    assert begun(problem, 60).problem.num_micro_batches == 20


def test_it_is_not_worth_it() -> None:
    """With much memory, with few micro-batches, in no time, for more ops than the model takes."""
    assert not fewer(8, 64, 1).is_worth
    assert not fewer(8, 64, 2).is_worth
    assert not fewer(8, 24, 0.5).is_worth
    assert not fewer(8, 64, 0.5, seconds=1.0).is_worth
    assert not fewer(32, 256, 0.5).is_worth
    several = Problem(odd_costs(random.Random(0), 4, 2), placement("v", 2), 64)
    assert not begun(several, 1e6).is_worth
    assert begun(replace(several, caps_bytes=needed_bytes(several)), 1e6).is_worth
    eight = Problem(odd_costs(random.Random(0), 32, 4), placement("looped:8", 4), 16)
    assert not begun(eight, 1e6).is_worth
    assert not begun(replace(eight, caps_bytes=(10**9,) * 4), 1e6).is_worth
    copies = Problem(odd_costs(random.Random(0), 4, 4), placement("bidirectional", 4), 64)
    assert not begun(replace(copies, caps_bytes=needed_bytes(copies)), 1e6).is_worth


def test_it_is_not_worth_it_once_the_time_is_over() -> None:
    """Several stages per rank, where the time left decides how many micro-batches are kept."""
    late = SearchState(v_shaped.problem(8, 32, 0.5), SolveOptions(1e-9))
    assert late.budget.left_s() < 0
    assert not ShortInstance(context_of(late)).is_worth


def test_with_several_stages_a_rank_it_is_for_half_of_1f1b_memory_and_below() -> None:
    """As many micro-batches are left as there is time for, more than there are ranks."""
    problem = v_shaped.problem(8, 32, 0.5)
    assert begun(problem, 30).problem.num_micro_batches == 11
    assert begun(problem, 600).problem.num_micro_batches == 18
    assert not begun(problem, 15).is_worth
    ample = v_shaped.problem(8, 32, 0.6)
    assert not begun(ample, 600).is_worth


def test_with_several_stages_a_rank_a_schedule_for_fewer_is_lengthened_too() -> None:
    few = begun(v_shaped.problem(8, 32, 0.33), 600)
    builder = list_scheduling.Builder(safe_memory(few.problem, BUFFERINGS[0]), Objective.PERIOD)
    short = list_scheduling.search(builder, 50_000, 0)
    made = evaluate.evaluate_order(few.problem, short[0].programs(few.instance), "list scheduling")
    assert made is not None
    best, *_ = few.extended_programs(made.schedule)
    candidate = evaluate.evaluate_order(few.asked, best.programs, best.found_by)
    assert candidate is not None
    assert best.value_us == candidate.value_us < 1.1 * made.value_us * 32 / 18


def test_the_best_for_fewer_is_the_best_for_all() -> None:
    """6 ranks, 32 micro-batches, half of 1F1B's memory: 8676, which the exact model proves."""
    options = SolveOptions(30, workers=1, deterministic=True, without=OTHERS, gap=0.1)
    result = solve(table.problem(6, 32, 0.5), options)
    assert (result.value_us, result.found_by) == (8676, Part.SHORT_INSTANCE)


def test_what_a_longer_one_is_worth_is_what_it_takes() -> None:
    problem = table.problem(4, 32, 0.5)
    few = fewer(4, 32, 0.5)
    options = SolveOptions(
        10, workers=1, deterministic=True, without=OTHERS | {Part.SHORT_INSTANCE}
    )
    found = solve(few.problem, options).schedule
    assert found is not None
    made, *_ = few.extended_programs(found)
    candidate = evaluate.evaluate_order(problem, made.programs, made.found_by)
    assert candidate is not None
    assert (candidate.value_us, made.value_us) == (8566, 8566)


def note(found: list[tuple[int, str]], now: EvaluatedSchedule) -> None:
    found.append((now.value_us, now.found_by))


def test_it_can_be_repeated_and_left_out() -> None:
    problem = table.problem(6, 32, 0.5)
    told: list[list[tuple[int, str]]] = []
    for seconds, without in ((30, OTHERS), (30, OTHERS), (0.2, OTHERS | {Part.SHORT_INSTANCE})):
        found: list[tuple[int, str]] = []
        options = SolveOptions(seconds, 0.1, 1, deterministic=True, without=without)
        solve(problem, options, SolveWatch(partial(note, found)))
        told.append(found)
    assert told[0] == told[1]
    assert Part.SHORT_INSTANCE in {by for _, by in told[0]}
    assert Part.SHORT_INSTANCE not in {by for _, by in told[2]}


def test_a_stop_ends_the_search_for_fewer() -> None:
    """It would have half of ten minutes."""
    stop = threading.Event()
    timer = threading.Timer(4.0, stop.set)
    timer.start()
    began_s = time.monotonic()
    result = solve(
        table.problem(16, 64, 0.6), SolveOptions(600, workers=1), watch=SolveWatch(stop=stop)
    )
    assert result.schedule is not None
    assert time.monotonic() - began_s < 120


def test_it_ends_with_the_search_that_it_serves() -> None:
    """It is over when nothing more is wanted of that."""
    problem = table.problem(6, 32, 0.5)
    now = SearchState(problem, SolveOptions(60))
    within = SearchState(problem, SolveOptions(60), within=now)
    assert not within.finished()
    now.proven_infeasible = True
    assert within.finished()


def test_rounds_have_what_is_left_and_must_be_better() -> None:
    problem = table.problem(8, 64, 0.5)
    options = SolveOptions(100, deterministic=True)
    now = SearchState(problem, options)
    now.offer(evaluate.evaluate(problem, serial_schedule(problem), "serial"))
    assert now.best is not None
    nearly_us = now.best.value_us - 1
    rounds, unrolling = ModuloScheduling(context_of(now)), Unrolling(now)
    for spent, share in ((0, 64 * 0.004), (0.2, 0.15), (0.5, 0.08)):
        now.short_instance_share = spent
        assert rounds._share(0.004, 0.45) == pytest.approx(share)
        assert unrolling._is_of_use(nearly_us) == (spent == 0)
        assert unrolling._is_of_use(round(0.98 * nearly_us))
