"""The verifier: the schedules that it refuses, and its messages."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.costs import uniform_costs
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from tests.synth.plain import damaged, random_costs, random_schedule, refusal, shuffled

COSTS = uniform_costs(
    2,
    forward_us=3,
    backward_input_us=4,
    backward_weight_us=2,
    saved_bytes=10,
    saved_w_bytes=4,
    output_bytes=1,
    links=Links(default=Link(latency_us=1)),
)


def two_ranks(first: str, second: str, m: int = 2, buffering: Buffering | None = None) -> Schedule:
    ops = tuple(tuple(map(Op.parse, line.split())) for line in (first, second))
    return Schedule(Placement.linear(2), m, ops, "by hand", buffering or Buffering())


GOOD = two_ranks("F0.0 F0.1 B0.0 W0.0 BW0.1", "F1.0 BW1.0 F1.1 B1.1 W1.1")


def test_a_good_schedule_passes_with_its_times() -> None:
    _, timeline = verify(GOOD, COSTS, (100, 100))
    assert timeline.makespan_us > 0


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("F0.0 F0.1 BW0.0", "F1.0 BW1.0 F1.1 BW1.1", "rank 0: B0.1 is missing"),
        ("F0.0 F0.1 BW0.0 B0.1", "F1.0 BW1.0 F1.1 BW1.1", "rank 0: W0.1 is missing"),
        ("F0.0 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1", "rank 0: F0.1 is missing"),
        ("F0.0 F0.0 BW0.0 F0.1 BW0.1", "F1.0 BW1.0 F1.1 BW1.1", "op 1 (F0.0): F0.0 stands here"),
        ("F0.0 F0.1 BW0.0 BW0.1 W0.0", "F1.0 BW1.0 F1.1 BW1.1", "W0.0 does again what BW0.0"),
        ("F0.0 F0.1 BW0.0 BW0.1 F1.0", "BW1.0 F1.1 BW1.1", "op 4 (F1.0): this rank holds stage 0"),
        ("F0.0 F0.1 BW0.0 BW0.1 F0.2", "F1.0 BW1.0 F1.1 BW1.1", "(F0.2): micro-batches run from"),
        ("F0.1 BW0.0 F0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1", "op 1 (BW0.0): runs before F0.0"),
        ("F0.0 F0.1 W0.0 B0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1", "op 2 (W0.0): runs before B0.0"),
    ],
)
def test_a_bad_program_is_refused_with_its_rank_and_op(
    first: str, second: str, message: str
) -> None:
    with pytest.raises(ScheduleError) as raised:
        verify(two_ranks(first, second), COSTS)
    assert message in str(raised.value)


def test_programs_that_wait_for_each_other_are_refused_with_the_cycle() -> None:
    # Rank 0 runs B of 0 before it sends F of 1, which rank 1 runs before it returns B of 0.
    schedule = two_ranks("F0.0 BW0.0 F0.1 BW0.1", "F1.0 F1.1 BW1.0 BW1.1")
    with pytest.raises(ScheduleError) as raised:
        verify(schedule, COSTS)
    message = str(raised.value)
    assert message.startswith("deadlock")
    for part in ("BW0.0 on rank 0", "F1.1 on rank 1", "act(0, 1) from rank 0 to rank 1"):
        assert part in message


def test_sends_that_wait_for_each_other_s_receives_are_refused() -> None:
    # Without buffering a rank waits for a send before its next op:
    #   rank 0  … F0.2 ─ waits until rank 1 posts act(0, 2), before F1.2 ─ W0.0 B0.1
    #   rank 1  … B1.1 ─ waits until rank 0 posts grad(0, 1), before B0.1 ─ W1.0 F1.2
    first = "F0.0 F0.1 B0.0 F0.2 W0.0 B0.1 W0.1 BW0.2"
    second = "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 W1.1 BW1.2"
    verify(two_ranks(first, second, 3, Buffering(1, 2)), COSTS)
    with pytest.raises(ScheduleError, match="deadlock") as raised:
        verify(two_ranks(first, second, 3, Buffering(0, 0)), COSTS)
    for part in ("transfer of act(0, 2)", "transfer of grad(0, 1)", "W0.0 on rank 0", "rank 1"):
        assert part in str(raised.value)


def test_an_exceeded_cap_names_the_rank_the_op_and_both_sizes() -> None:
    # While F0.1 runs: saved 0 and 1 (10 each), act 0 and 1 (1 each), the receive of grad 0 (1).
    peak = peak_bytes(verify(GOOD, COSTS)[0])
    with pytest.raises(ScheduleError) as raised:
        verify(GOOD, COSTS, (peak[0] - 1, peak[1]))
    assert str(raised.value).startswith("rank 0 at F0.1: 23 B")
    assert f"memory limit {peak[0] - 1} B" in str(raised.value)
    verify(GOOD, COSTS, peak)


def test_as_many_caps_as_ranks_are_needed() -> None:
    with pytest.raises(ScheduleError, match="3 memory limits for 2 ranks"):
        verify(GOOD, COSTS, (1, 2, 3))


def test_a_placement_that_does_not_match_the_costs_is_refused() -> None:
    costs = uniform_costs(3, forward_us=1, backward_input_us=1, backward_weight_us=1)
    with pytest.raises(ScheduleError, match="placement has 2 stages, the costs 3"):
        verify(GOOD, costs)


def test_a_micro_batch_split_over_replicas_is_refused() -> None:
    # Two replicas in opposite directions; micro-batch 0 goes forward on one, back on the other.
    ops = tuple(tuple(map(Op.parse, line.split())) for line in ("F0.0 BW1.0@1", "F1.0 BW0.0@1"))
    schedule = Schedule(Placement(((0, 1), (1, 0))), 1, ops)
    with pytest.raises(ScheduleError, match=r"split over replicas: F0.0, BW0.0@1"):
        verify(schedule, COSTS)


def test_a_further_op_of_a_whole_passage_s_other_copy_is_refused() -> None:
    ops = tuple(tuple(map(Op.parse, line.split())) for line in ("F0.0 BW0.0", "F0.0@1 F1.0 BW1.0"))
    schedule = Schedule(Placement(((0, 1), (1, 0))), 1, ops)
    with pytest.raises(ScheduleError, match=r"split over replicas: F0\.0, BW0\.0, F0\.0@1"):
        verify(schedule, COSTS)


def test_a_step_before_another_stage_s_ops_is_refused() -> None:
    ops = tuple(map(Op.parse, ["F0.0", "F1.0", "BW1.0", "STEP1", "BW0.0"]))
    with pytest.raises(ScheduleError, match=r"op 4 \(BW0.0\): stands behind STEP1"):
        verify(Schedule(Placement(((0, 0),)), 1, (ops,)), COSTS)


def test_a_step_before_the_end_is_refused() -> None:
    # STEP waits for the gradient norm of all ranks: in the middle it deadlocks or clips too early.
    order = ["F0.0", "BW0.0", "STEP0", "F0.1", "BW0.1"]
    schedule = Schedule.linear("early step", 2, [map(Op.parse, order)])
    costs = uniform_costs(1, forward_us=1, backward_input_us=1, backward_weight_us=1)
    with pytest.raises(ScheduleError, match=r"rank 0, op 3 \(F0.1\): stands behind STEP0"):
        verify(schedule, costs)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(("whole", "shuffled", "damaged")), st.booleans())
def test_any_schedule_is_judged_as_by_the_plain_version(seed: int, how: str, capped: bool) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    if how != "whole":
        schedule = {"shuffled": shuffled, "damaged": damaged}[how](rng, schedule)
    costs = random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
    caps = [rng.randint(50, 500) for _ in schedule.programs] if capped else None
    expected = refusal(schedule, costs, caps)
    try:
        verify(schedule, costs, caps)
        found = None
    except ScheduleError as error:
        found = str(error)
    if expected is not None and expected.endswith(" at "):
        assert found is not None and found.startswith(expected) and "in use, memory limit" in found
    else:
        assert found == expected


def test_a_schedule_that_lacks_most_of_its_micro_batches_is_refused_at_once() -> None:
    # As many micro-batches as a table of them would not fit into memory.
    schedule = Schedule(GOOD.placement, 10**9, GOOD.programs)
    with pytest.raises(ScheduleError, match=r"rank 0: F0\.2 is missing"):
        verify(schedule, COSTS)


def test_copies_may_share_the_micro_batches_in_any_way() -> None:
    first = "F0.0 F1.1@1 BW1.1@1 BW0.0 F0.2 BW0.2"
    second = "F0.1@1 F1.0 BW1.0 BW0.1@1 F1.2 BW1.2"
    ops = tuple(tuple(map(Op.parse, line.split())) for line in (first, second))
    verify(Schedule(Placement(((0, 1), (1, 0))), 3, ops), COSTS)


def test_a_negative_micro_batch_is_refused() -> None:
    programs = ((*GOOD.programs[0], Op(GOOD.programs[0][0].kind, 0, -1)), GOOD.programs[1])
    with pytest.raises(ScheduleError, match=r"op 5 \(F0\.-1\): micro-batches run from 0 to 1"):
        verify(Schedule(GOOD.placement, 2, programs), COSTS)
