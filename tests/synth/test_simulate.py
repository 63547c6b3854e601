"""Time: examples worked by hand, and an independent simulation of random schedules."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs import uniform_costs
from synth.kinds import OpKind
from synth.profile import Link, Links, PairLink
from synth.schedule import Op, Schedule, Timeline, lower, simulate, verify
from synth.schedule.verify import ScheduleError
from tests.synth.naive import Naive, random_costs, random_schedule


def linear(*programs: str, m: int) -> Schedule:
    return Schedule.linear("by hand", m, [[Op.parse(t) for t in p.split()] for p in programs])


def test_two_ranks_one_micro_batch_take_the_sum_of_the_chain() -> None:
    # rank 0  FFF..........BBBBWW      F = 3, B = 4, W = 2, transfers 1:
    # rank 1  ....FFFBBBBWW            3+1+3+4+1+4+2 = 18
    costs = uniform_costs(
        2,
        forward_us=3,
        backward_input_us=4,
        backward_weight_us=2,
        links=Links(default=Link(latency_us=1)),
    )
    _, timeline = verify(linear("F0.0 B0.0 W0.0", "F1.0 B1.0 W1.0", m=1), costs)
    assert timeline.makespan_us == 18
    assert timeline.start_us[:3] == [0, 12, 16]
    assert timeline.start_us[4:7] == [4, 7, 11]


def test_the_period_leaves_out_a_rank_s_wait_for_its_first_op() -> None:
    # rank 0  FFF....BWW           0 … 10
    # rank 1  ...FFFBWWWWWWWWWW    3 … 17, W of stage 1 takes 10
    costs = uniform_costs(2, forward_us=3, backward_input_us=1, backward_weight_us=2)
    slow = costs.stages[1].replace(duration_us={**costs.stages[1].duration_us, OpKind.W: 10})
    costs = costs.replace(stages=(costs.stages[0], slow))
    _, timeline = verify(linear("F0.0 B0.0 W0.0", "F1.0 B1.0 W1.0", m=1), costs)
    assert timeline.makespan_us == 17
    assert timeline.period_us == 14
    assert timeline.bubble_rate(timeline.period_us) == 0


def test_transfers_of_one_link_take_turns() -> None:
    # F takes 1, a transfer 5: the second act leaves when the first has arrived, at 6, not at 2.
    costs = uniform_costs(
        2,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        links=Links(pairs=(PairLink(source=0, target=1, latency_us=5),)),
    )
    schedule = linear("F0.0 F0.1 BW0.0 BW0.1", "F1.0 F1.1 BW1.0 BW1.1", m=2)
    _, timeline = verify(schedule, costs)
    first = timeline.lowered.first_node[1]
    assert timeline.start_us[first : first + 2] == [6, 11]


def test_links_in_two_directions_do_not_wait_for_each_other() -> None:
    links = Links(default=Link(latency_us=100))
    costs = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1, links=links)
    schedule = linear("F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1", m=2)
    _, timeline = verify(schedule, costs)
    grad = next(n for n in range(len(timeline.start_us)) if "grad(0, 0)" in _name(timeline, n))
    assert timeline.start_us[grad] == 1 + 100 + 1 + 2


def _name(timeline: Timeline, node: int) -> str:
    return timeline.lowered.node_name(node)


def test_a_bandwidth_costs_time_by_the_byte() -> None:
    # 4000 bytes at 1 GB/s are 4 µs, and 2 of latency.
    links = Links(default=Link(latency_us=2, bandwidth_bytes_per_s=1e9))
    costs = uniform_costs(
        2,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        links=links,
        output_bytes=4000,
    )
    _, timeline = verify(linear("F0.0 BW0.0", "F1.0 BW1.0", m=1), costs)
    assert timeline.makespan_us == 1 + 6 + 1 + 2 + 6 + 2


def test_a_synchronous_step_waits_for_all_ranks() -> None:
    costs = uniform_costs(2, forward_us=3, backward_input_us=1, backward_weight_us=1)
    schedule = linear("F0.0 BW0.0", "F1.0 BW1.0", m=1)
    timeline = simulate(lower(schedule, costs, synchronous_step=True))
    steps = [
        start
        for start, end, name in zip(
            timeline.start_us,
            timeline.end_us,
            map(timeline.lowered.node_name, range(6)),
            strict=False,
        )
        if name.startswith("STEP")
    ]
    assert steps == [10, 10]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_random_schedules_take_what_the_naive_simulation_says(seed: int) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    costs = random_costs(rng, schedule.placement.num_stages)
    expected = Naive(schedule, costs).run()
    if expected is None:
        with pytest.raises(ScheduleError, match="deadlock"):
            verify(schedule, costs)
        return
    lowered, timeline = verify(schedule, costs)
    found = list(zip(timeline.start_us, timeline.end_us, strict=True))
    for rank, times in enumerate(expected):
        first = lowered.first_node[rank]
        assert found[first : first + len(times)] == times
    assert timeline.makespan_us == max(t[-1][1] for t in expected) - min(t[0][0] for t in expected)
