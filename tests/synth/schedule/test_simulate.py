"""Time: examples worked by hand, and an independent simulation of random schedules."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.costs import Costs, uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links, PairLink
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.processor_sharing import shared_period_us, simulate_shared
from synth.schedule.simulate import DeadlockError, Timeline, simulate
from synth.schedule.verify import ScheduleError, verify
from tests.synth import plain
from tests.synth.naive import Naive, random_schedule


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


def test_ranks_that_do_not_wait_for_each_other_begin_when_they_have_ended() -> None:
    # rank 0  FFF....BWW|FFF....BWW     10 … 20
    # rank 1  ...FFFBWW....|...         ends at 9, and so begins at 9, 1 before the second iteration
    costs = uniform_costs(2, forward_us=3, backward_input_us=1, backward_weight_us=2)
    _, timeline = verify(linear("F0.0 B0.0 W0.0", "F1.0 B1.0 W1.0", m=1), costs)
    assert timeline.period_us == 10
    assert [timeline.begin_us(rank, late=True) for rank in (0, 1)] == [0, -1]
    assert [timeline.begin_us(rank, late=False) for rank in (0, 1)] == [0, 0]


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
    costs = plain.random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
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


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_every_node_ends_when_the_plain_version_says(seed: int, out_of_order: bool) -> None:
    rng = random.Random(seed)
    schedule = plain.random_schedule(rng)
    if out_of_order:
        schedule = plain.shuffled(rng, schedule)
    costs = plain.random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
    lowered, expected = lower(schedule, costs), plain.Plain(schedule, costs).ends_us()
    if expected is None:
        with pytest.raises(DeadlockError):
            simulate(lowered)
    else:
        assert simulate(lowered).end_us == expected


def two_ways(*lines: str) -> Schedule:
    """One micro-batch up the ranks and one down, each on its copy of the stages."""
    ops = tuple(tuple(map(Op.parse, line.split())) for line in lines)
    ranks = tuple(range(len(lines)))
    return Schedule(Placement((ranks, ranks[::-1])), 2, ops)


# Two copies in opposite directions, F = BW = 2, one micro-batch each, transfers of no time:
#   rank 0  F0.0 F1.1 BW1.1 BW0.0      0 2 4 6 8
#   rank 1  F0.1 F1.0 BW1.0 BW0.1
# The last Ws of stage 1 end at 6, those of stage 0 at 8.
OPPOSITE = two_ways("F0.0 F1.1@1 BW1.1@1 BW0.0", "F0.1@1 F1.0 BW1.0 BW0.1@1")

# The same on three ranks; the middle one holds both copies of stage 1:
#   rank 0  F0.0 .... .... F2.1 BW2.1 BW0.0 .....    0 2 4 6 8 10 12 14
#   rank 1  .... F1.0 F1.1 .... BW1.0 BW1.1 .....
#   rank 2  F0.1 .... F2.0 BW2.0 .... ..... BW0.1
MIRRORED = two_ways(
    "F0.0 F2.1@1 BW2.1@1 BW0.0", "F1.0 F1.1@1 BW1.0 BW1.1@1", "F0.1@1 F2.0 BW2.0 BW0.1@1"
)


def opposite(latency_us: float, gradient_bytes: int = 0, stages: int = 2) -> Costs:
    """F = BW = 2; activations have no bytes, gradients take a round trip at 1 GB/s."""
    links = Links(default=Link(latency_us=latency_us, bandwidth_bytes_per_s=1e9))
    return uniform_costs(
        stages,
        forward_us=2,
        backward_input_us=1,
        backward_weight_us=1,
        links=links,
        gradient_bytes=gradient_bytes,
    )


def steps_us(timeline: Timeline) -> dict[str, int]:
    """The start of each STEP."""
    lowered = timeline.lowered
    names = map(lowered.node_name, range(lowered.first_node[-1]))
    return {n: at for n, at in zip(names, timeline.start_us, strict=False) if "STEP" in n}


def test_a_reduction_overlaps_the_ops_behind_it_and_holds_up_the_steps() -> None:
    # 2000 bytes at 1 GB/s among two ranks: 2 rounds of 1000 bytes, 2 µs. Stage 1's runs 6 … 8,
    # beside BW0; stage 0's 8 … 10. All STEPs stand last: STEP1 on rank 0 stands behind STEP0.
    _, timeline = verify(OPPOSITE, opposite(0, 2000))
    assert timeline.makespan_us == 10
    assert steps_us(timeline) == {
        **{"STEP0 on rank 0": 10, "STEP1@1 on rank 0": 10},
        **{"STEP0@1 on rank 1": 10, "STEP1 on rank 1": 10},
    }


def test_reductions_among_the_same_ranks_take_turns() -> None:
    # 6 µs each: stage 1's runs 6 … 12, stage 0's, ready at 8, 12 … 18.
    _, timeline = verify(OPPOSITE, opposite(0, 6000))
    assert timeline.makespan_us == 18
    first = timeline.lowered.first_node[-1] + len(timeline.lowered.transfers)
    assert timeline.lowered.node_name(first) == (
        "all-reduce of the gradient of stage 1 among ranks 0, 1"
    )
    assert (timeline.start_us[first:], timeline.end_us[first:]) == ([6, 12], [12, 18])


def test_a_fast_reduction_costs_nothing() -> None:
    _, timeline = verify(OPPOSITE, opposite(0, 0))
    assert timeline.makespan_us == 8
    _, shorter = verify(OPPOSITE, opposite(0, 100))  # 0.1 µs, rounded as a whole
    assert shorter.makespan_us == 8


def test_the_middle_rank_holds_both_copies_and_reduces_nothing() -> None:
    # Stage 2 is done at 10 and reduced 10 … 14, stage 0 done at 14 and reduced 14 … 18.
    assert verify(MIRRORED, opposite(0, 0, 3))[1].makespan_us == 14
    lowered, timeline = verify(MIRRORED, opposite(0, 4000, 3))
    assert [(r.stage, r.ranks, r.duration_us) for r in lowered.collectives] == [
        (2, (0, 2), 4),
        (0, (0, 2), 4),
    ]
    assert timeline.makespan_us == 18
    at_us = steps_us(timeline)
    assert (at_us["STEP1 on rank 1"], at_us["STEP1@1 on rank 1"]) == (12, 12)


def test_a_synchronous_step_waits_for_all_reductions() -> None:
    # The norm is of all gradients, so rank 1, which reduces nothing, waits too.
    timeline = simulate(lower(MIRRORED, opposite(0, 4000, 3), synchronous_step=True))
    assert set(steps_us(timeline).values()) == {18}


def test_reductions_are_not_slowed_by_ranks_that_share_processors() -> None:
    lowered = lower(OPPOSITE, opposite(0, 6000))
    assert simulate_shared(lowered, 2).end_us == simulate(lowered).end_us
    # One processor: every op takes twice as long, stage 1 is ready at 12, stage 0 at 16.
    assert simulate_shared(lowered, 1).makespan_us == 12 + 6 + 6


def test_iterations_on_shared_processors_take_the_work_or_the_period_whichever_is_longer() -> None:
    # rank 0  F0 F1 .. B0 F2 B1 F3 B2 . B3    4 F of 1 and 4 BW of 2, and 3 of waiting: 15
    # rank 1  . F0 B0 F1 B1 F2 B2 F3 B3       12, back to back. One processor has 24 to do.
    schedule = generate("1f1b", 2, 4)
    costs = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
    lowered = lower(schedule, costs)
    assert simulate(lowered).period_us == 15
    assert shared_period_us(lowered, 2) <= 15
    assert shared_period_us(lowered, 1) == 24
