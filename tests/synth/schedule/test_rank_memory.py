"""Memory: examples worked by hand, and lifetimes recomputed by brute force."""

import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.costs.costs import HOST, uniform_costs
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import memory_usage, peak_bytes
from synth.schedule.simulate import DeadlockError, simulate
from tests.synth import plain
from tests.synth.naive import Naive, random_schedule


def programs(*lines: str) -> tuple[tuple[Op, ...], ...]:
    return tuple(tuple(map(Op.parse, line.split())) for line in lines)


def test_one_rank_holds_what_f_keeps_until_b_and_the_rest_until_w() -> None:
    # after  F0 F1 B0 W0 B1 W1:  10 20 14 10 4 0
    costs = uniform_costs(
        1,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=10,
        saved_w_bytes=4,
    )
    ops = programs("F0.0 F0.1 B0.0 W0.0 B0.1 W0.1")
    lowered = lower(Schedule(Placement.linear(1), 2, ops), costs)
    assert memory_usage(lowered, 0).after == [10, 20, 14, 10, 4, 0, 0]
    assert peak_bytes(lowered) == (20,)


def test_a_backward_that_keeps_more_than_it_frees_raises_the_peak() -> None:
    # W's inputs (16) are larger than what F kept (10): the peak is after B, not after F.
    costs = uniform_costs(
        1,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=10,
        saved_w_bytes=16,
    )
    lowered = lower(Schedule(Placement.linear(1), 1, programs("F0.0 B0.0 W0.0")), costs)
    curve = memory_usage(lowered, 0)
    assert curve.after == [10, 16, 0, 0]
    assert curve.peak_bytes == 16
    assert curve.highest.index(curve.peak_bytes) == 1


def test_a_sent_activation_stays_until_its_send_was_waited_for() -> None:
    # Boundary values on rank 0, 5 bytes each; receives are posted before sends are waited for:
    #              F0.0   F0.1       before BW0.0                 most
    #   behind 1   act 0  act 0, 1   grad 0 posted, act 0 freed   act 0, act 1, grad 0
    #   behind 0   act 0  act 1      grad 0 posted, act 1 freed   act 1, grad 0
    costs = uniform_costs(
        2, forward_us=1, backward_input_us=1, backward_weight_us=1, output_bytes=5
    )
    ops = programs("F0.0 F0.1 BW0.0 BW0.1", "F1.0 F1.1 BW1.0 BW1.1")
    late = lower(Schedule(Placement.linear(2), 2, ops, "late", Buffering(0, 1)), costs)
    early = lower(Schedule(Placement.linear(2), 2, ops, "early", Buffering(0, 0)), costs)
    assert peak_bytes(late)[0] == 15
    assert peak_bytes(early)[0] == 10


def test_a_receive_buffer_counts_from_its_posting() -> None:
    costs = uniform_costs(
        2, forward_us=1, backward_input_us=1, backward_weight_us=1, output_bytes=5
    )
    ops = programs("F0.0 F0.1 BW0.0 BW0.1", "F1.0 F1.1 BW1.0 BW1.1")
    schedules = [Schedule(Placement.linear(2), 2, ops, "", Buffering(n, 0)) for n in (0, 1)]
    peaks = [peak_bytes(lower(schedule, costs))[1] for schedule in schedules]
    # Posted where it is read, act 1 comes when act 0 is gone; one op ahead, both are there.
    assert peaks == [5, 10]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_peaks_of_random_schedules_are_those_of_the_values_lifetimes(seed: int) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    costs = plain.random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
    naive = Naive(schedule, costs)
    expected = tuple(naive.peak(rank) for rank in range(schedule.num_ranks))
    assert peak_bytes(lower(schedule, costs)) == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_everything_is_freed_at_the_end(seed: int) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    costs = plain.random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
    lowered = lower(schedule, costs)
    for rank in range(schedule.num_ranks):
        curve = memory_usage(lowered, rank)
        assert curve.after[-1] == curve.static_bytes


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 50))
def test_memory_does_not_depend_on_durations(seed: int, factor: int) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    costs = plain.random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
    slower = costs.replace(
        stages=tuple(
            stage.replace(duration_us={kind: t * factor for kind, t in stage.duration_us.items()})
            if index % 2
            else stage
            for index, stage in enumerate(costs.stages)
        )
    )
    assert peak_bytes(lower(schedule, costs)) == peak_bytes(lower(schedule, slower))
    try:
        simulate(lower(schedule, costs))
    except DeadlockError:
        return
    simulate(lower(schedule, slower))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_peaks_are_those_of_the_plain_version_and_of_the_curves(
    seed: int, out_of_order: bool
) -> None:
    rng = random.Random(seed)
    schedule = plain.random_schedule(rng)
    if out_of_order:
        schedule = plain.shuffled(rng, schedule)
    costs = plain.random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
    lowered, expected = lower(schedule, costs), plain.Plain(schedule, costs)
    ranks = range(schedule.num_ranks)
    # Programs that allocate a buffer behind its reader wait for themselves.
    assume(all(r.target == HOST or r.post <= r.read for routes in expected.routes for r in routes))
    assert peak_bytes(lowered) == tuple(map(expected.peak, ranks))
    assert peak_bytes(lowered) == tuple(memory_usage(lowered, rank).peak_bytes for rank in ranks)
