"""Modulo schedules of several micro-batches: exact times, caps, and the shortest interval."""

import random
from dataclasses import replace

import pytest

from benchmarks.solver.suites import table
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.schedule.placements import placement
from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.improve import modulo_step
from synth.solver.instance.instance import SPLIT, Instance, OpIndex
from synth.solver.instance.memory_models import relaxed_memory, safe_memory
from synth.solver.instance.timing import keeps_caps, number, timed
from synth.solver.modulo import modulo_search
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.modulo.interval_search import IntervalSearch
from synth.solver.modulo.modulo_model import (
    ModuloModel,
)
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.even_stages import even
from tests.synth.odd_problems import odd_costs

F, B, W = SPLIT

# So long no round of the problems here is.
LONG_US = 1e6


def lasting(instance: Instance) -> Instance:
    """No op in no time: the order of those at one moment is not known from their starts."""
    copies = tuple(
        copy._replace(duration_us={kind: us + 1 for kind, us in copy.duration_us.items()})
        for copy in instance.copies
    )
    return replace(instance, copies=copies)


def shortest(instance: Instance, seconds: float = 4.0) -> CyclicSchedule:
    return list(modulo_search.search(instance, 0, LONG_US, seconds, 0))[-1]


def test_without_a_cap_the_busiest_rank_is_always_busy() -> None:
    assert shortest(even(4, None, 12)).rate == 55 + 58 + 35


def test_of_intervals_that_differ_by_little_the_shortest_is_found() -> None:
    """To the microsecond, however long ops take."""
    instance = even(4, 16, 12, down_us=2_000)
    slow = tuple(
        copy._replace(duration_us={kind: 1_000 * us for kind, us in copy.duration_us.items()})
        for copy in instance.copies
    )
    assert shortest(replace(instance, copies=slow)).rate == 148_000


def test_with_room_for_one_micro_batch_a_round_takes_the_whole_way() -> None:
    """Rank 0 cannot start the next F before its W: nothing overlaps but the W's of other ranks."""
    found = shortest(even(3, 3, 12))
    assert found.rate == 3 * 55 + 3 * 58 + 4 * 2 + 35


def test_bursts_beat_single_micro_batches_below_what_1f1b_needs() -> None:
    """Eight ranks with room for six of 1F1B's eight: every 230 µs one by one, two in 349 µs."""
    instance = even(8, 18, 64)
    by_size = {
        size: min(
            found.rate for found in IntervalSearch(
                instance, size, 4.0, 0, lambda: False, is_challenger=False
            ).run(size * 148, size * 400)
        )
        for size in (1, 2)
    }  # fmt: skip
    assert 229 <= by_size[1] <= 233
    assert 174 <= by_size[2] <= 177


def test_nothing_is_found_where_no_micro_batch_fits() -> None:
    assert list(modulo_search.search(even(3, 2, 12), 0, LONG_US, 1.0, 0)) == []


def test_ranks_that_hold_several_stages_are_left_to_other_parts() -> None:
    costs = odd_costs(random.Random(0), 4, 2)
    assert not modulo_search.applies(relaxed_memory(Problem(costs, placement("v", 2), 4, None)))


@pytest.mark.parametrize("seed", sweep(range(16), daily=8))
def test_unrolled_rounds_keep_caps_and_take_an_interval_more_for_each_round(seed: int) -> None:
    rng = random.Random(seed)
    num_ranks, m = rng.randint(1, 4), 24
    costs = odd_costs(rng, num_ranks, num_ranks)
    free = Problem(costs, placement("linear", num_ranks), m, None)
    least = relaxed_memory(replace(free, caps_bytes=(10**12,) * num_ranks))
    headrooms = [headroom for headroom in least.headroom_bytes if headroom is not None]
    peaks_above = [
        max(copy.peak_above_bytes.values()) + copy.delta_bytes[F] for copy in least.copies
    ]
    caps = tuple(
        10**12 - headroom + rng.randint(1, 4) * max(1, peak_above)
        for headroom, peak_above in zip(headrooms, peaks_above, strict=True)
    )
    instance = lasting(relaxed_memory(replace(free, caps_bytes=caps)))
    for found in modulo_search.search(instance, 0, LONG_US, 0.2, seed):
        assert found.interval >= found.size * max(copy.work_us for copy in instance.copies)
        for first in range(found.size):
            orders = found.unrolled(instance, first).orders(instance)
            assert keeps_caps(tuple(number(instance, order) for order in orders), instance)
            starts = timed(orders, instance).starts
            for index in range(len(instance)):
                for op_index in (OpIndex(F, 0), OpIndex(B, 0), OpIndex(W, 0)):
                    every = [starts[index, op_index._replace(microbatch=k)] for k in range(m)]
                    turns = every[:: found.size]
                    # The first ones may gain on the round, by what it waits; none is slower.
                    rounds_us = (len(turns) - 1) * found.interval
                    assert turns[-1] - turns[0] <= rounds_us + max(found.starts.values())


def test_ops_that_take_no_time_are_no_trouble() -> None:
    instance = even(2, 3, 12, down_us=0)
    durations = dict.fromkeys([F, B, W, OpKind.BW], 0) | {OpKind.STEP: 5}
    idle = replace(
        instance, copies=tuple(c._replace(duration_us=durations) for c in instance.copies)
    )
    assert all(found.interval >= 1 for found in modulo_search.search(idle, 0, 10.0, 0.5, 0))


@pytest.mark.parametrize(("share", "interval_us", "seed"), [(0.5, 1564, 2), (0.9, 929, 3)])
def test_what_is_refuted_is_survived(share: float, interval_us: int, seed: int) -> None:
    """Of OR-Tools 9.15: it aborts the process on the one, on the other it never ends.

    The one with dynamic precedences, the other with an assumption besides.
    """
    instance = safe_memory(table.problem(8, 64, share), BUFFERINGS[0])
    model = ModuloModel(instance, 6, interval_us)
    found, spent_s, is_refuted = model.solve(4.0, seed, lambda: False)
    assert found is None
    assert is_refuted or spent_s >= 4


def test_thorough_tries_say_what_brief_ones_say() -> None:
    """Of every interval around the shortest one, of equal and of unequal stages."""
    rng = random.Random(5)
    unequal = even(4, 9, 64)
    unequal_chunks = tuple(
        copy._replace(
            duration_us={kind: us + rng.randrange(40) for kind, us in copy.duration_us.items()}
        )
        for copy in unequal.copies
    )
    for instance in (even(8, 18, 64), replace(unequal, copies=unequal_chunks)):
        *_, best = IntervalSearch(instance, 2, 4.0, 0, lambda: False, is_challenger=False).run(
            2, 4_000
        )
        for interval_us in range(best.interval - 3, best.interval + 3):
            model = ModuloModel(instance, 2, interval_us)
            said = []
            for is_thorough in (False, True):
                found, _, is_refuted = model.solve(30.0, 0, lambda: False, is_thorough=is_thorough)
                said.append((found is not None, is_refuted))
            assert said[0] == said[1] != (False, False)


def test_a_part_of_a_round_is_not_asked_for_what_the_whole_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[int, int] = {}

    def run(search_of_size: IntervalSearch, least_us: int, _: int) -> list[CyclicSchedule]:
        asked[search_of_size.size] = least_us
        search_of_size.refuted_us = search_of_size.size * (160 if search_of_size.size == 4 else 150)
        return []

    monkeypatch.setattr(IntervalSearch, "run", run)
    assert list(modulo_search.search(even(8, 9, 64), 100, LONG_US, 1000.0, 0)) == []
    work_us = 55 + 58 + 35
    assert asked == {2: 2 * 160, **{size: size * work_us for size in (3, 4, 6, 8)}}


def test_models_too_large_for_the_time_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def run(search_of_size: IntervalSearch, *_: int) -> list[CyclicSchedule]:
        begun.append(search_of_size.size)
        return []

    monkeypatch.setattr(IntervalSearch, "run", run)
    instance = even(16, 36, 64)
    for seconds in (1000.0, 1.0):
        assert list(modulo_search.search(instance, 100, LONG_US, seconds, 0)) == []
    assert begun == [*modulo_search._sizes(instance), 4, 2, 3]


def test_rounds_are_as_long_as_memory_takes_at_once() -> None:
    assert next(modulo_search._sizes(even(16, 36, 64))) == 12
    assert next(modulo_search._sizes(even(32, 72, 64))) == 8  # 24 and 12 would be too large a model
    assert list(modulo_search._sizes(even(8, 9, 64))) == [3, 4, 2, 6, 8]
    assert list(modulo_search._sizes(even(8, 10**6, 64))) == [4, 2, 6, 3, 8]
    assert list(modulo_search._sizes(even(8, None, 64))) == [4, 2, 6, 3, 8]
    assert list(modulo_search._sizes(even(8, 9, 6))) == [3, 2]


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD, Objective(1, 7)])
def test_rounds_are_looked_for_between_the_bound_and_the_incumbent(
    monkeypatch: pytest.MonkeyPatch, objective: Objective
) -> None:
    asked: list[tuple[float, float]] = []

    def search(_: Instance, least_us: float, most_us: float, *__: object) -> list[CyclicSchedule]:
        asked.append((least_us, most_us))
        return []

    monkeypatch.setattr(modulo_step, "search", search)
    problem = replace(table.problem(4, 16, 0.75), objective=objective)
    without = frozenset({Part.EXACT, Part.WINDOWS})
    solve(problem, SolveOptions(time_limit_s=2, workers=1, deterministic=True, without=without))
    ((least_us, most_us),) = asked
    # 3180 is the least makespan, and 198 the rate of the best rounds.
    assert 100 < least_us <= 198
    assert 198 <= most_us < 250
