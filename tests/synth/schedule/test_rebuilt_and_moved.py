"""Saved activations, rebuilt or moved away and back: small schedules worked by hand."""

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import memory_usage, peak_bytes
from synth.schedule.verify import ScheduleError, verify

NOW = Buffering(0, 0)


def schedule(*lines: str, buffering: Buffering = NOW) -> Schedule:
    programs = [tuple(map(Op.parse, line.split())) for line in lines]
    m = 1 + max(op.microbatch for program in programs for op in program)
    made = Schedule.linear("by hand", m, programs)
    return Schedule(made.placement, m, made.programs, made.name, buffering)


def costs(num_stages: int, host_us: int | None = None, pair_us: int = 0) -> Costs:
    """F 3, B 4, W 2; F keeps 10, B leaves 4 of it; a boundary value has 1; transfers by time."""
    host = None if host_us is None else Link(latency_us=host_us)
    return uniform_costs(
        num_stages,
        forward_us=3,
        backward_input_us=4,
        backward_weight_us=2,
        saved_bytes=10,
        saved_w_bytes=4,
        output_bytes=1,
        links=Links(default=Link(latency_us=pair_us), host=host),
    )


def levels(made: Schedule, on: Costs, rank: int = 0) -> dict[str, int]:
    """A rank's level after each of its ops."""
    lowered = lower(made, on)
    curve = memory_usage(lowered, rank)
    steps = zip(lowered.programs[rank], curve.after, strict=True)
    return {str(instruction): level for instruction, level in steps}


def test_a_forward_that_r_follows_keeps_nothing_but_its_input() -> None:
    #         F0 F1 R0 B0 W0 R1 BW1
    # saved    0  0 10  4  0 10   0
    one = schedule("F0.0 F0.1 R0.0 B0.0 W0.0 R0.1 BW0.1")
    assert list(levels(one, costs(1)).values()) == [0, 0, 10, 4, 0, 10, 0, 0]
    # On the second of two ranks each F's input, of 1 byte, stays until its R:
    two = schedule(
        "F0.0 F0.1 BW0.0 BW0.1",
        "F1.0 F1.1 R1.0 BW1.0 R1.1 BW1.1",
    )
    after = levels(two, costs(2), rank=1)
    forwards = [after[name] for name in ("F1.0", "F1.1", "R1.0", "R1.1")]
    assert forwards == [1, 2, 11, 10]


def test_r_takes_the_time_of_f_unless_it_has_its_own() -> None:
    one = schedule("F0.0 R0.0 BW0.0")
    assert verify(one, costs(1))[1].makespan_us == 3 + 3 + 6
    stage = costs(1).stages[0]
    own = stage.replace(duration_us={**stage.duration_us, OpKind.R: 2})
    assert verify(one, costs(1).replace(stages=(own,)))[1].makespan_us == 3 + 2 + 6


def test_a_light_forward_climbs_less() -> None:
    stage = costs(1).stages[0].replace(light_rise_bytes=7)
    light = costs(1).replace(stages=(stage,))
    assert memory_usage(lower(schedule("F0.0 R0.0 BW0.0"), light), 0).highest[:2] == [7, 10]
    assert memory_usage(lower(schedule("F0.0 BW0.0"), light), 0).highest[0] == 10


def test_what_a_layer_keeps_of_its_output_is_made_again_not_kept() -> None:
    # Stage 0 holds its output, 1 byte, until B: that of R, so the one of F is gone when sent.
    stage = costs(2).stages[0].replace(output_until=OpKind.B)
    holding = costs(2).replace(stages=(stage, costs(2).stages[1]))
    made = schedule("F0.0 F0.1 R0.0 BW0.0 R0.1 BW0.1", "F1.0 BW1.0 F1.1 BW1.1")
    after = levels(made, holding)
    assert [after[name] for name in ("F0.0", "F0.1", "R0.0")] == [1, 1, 11]
    kept = levels(schedule("F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1"), holding)
    assert [kept[name] for name in ("F0.0", "F0.1")] == [11, 22]


def test_what_goes_to_the_host_is_freed_when_it_left_and_counts_again_when_called_back() -> None:
    # Behind by one op: the 10 bytes of O are waited for, and freed, before the op after the next.
    one = schedule("F0.0 O0.0 F0.1 BW0.1 L0.0 BW0.0", buffering=Buffering(0, 1))
    on = costs(1, host_us=4)
    assert list(levels(one, on).items()) == [
        ("F0.0", 10),
        ("O0.0", 10),
        ("SEND out(0, 0) from rank 0 to the host", 10),
        ("F0.1", 20),
        ("SENT out(0, 0) from rank 0 to the host", 10),
        ("BW0.1", 0),
        ("RECV back(0, 0) from the host to rank 0", 10),
        ("L0.0", 10),
        ("BW0.0", 0),
        ("STEP0", 0),
    ]
    assert peak_bytes(lower(one, on)) == (20,)


def test_moves_to_the_host_overlap_compute() -> None:
    # Out runs 3 … 7 beside F1; BW1 waits for it, 7 … 13; back 13 … 17, BW0 17 … 23.
    # With L before BW1, and no wait: back from 6 on, but not before out has come: 7 … 11. BW1
    # runs 6 … 12 and BW0 12 … 18: both moves cost nothing.
    late = schedule("F0.0 O0.0 F0.1 BW0.1 L0.0 BW0.0", buffering=Buffering(0, 1))
    early = schedule("F0.0 O0.0 F0.1 L0.0 BW0.1 BW0.0", buffering=Buffering(0, 9))
    on = costs(1, host_us=4)
    assert verify(late, on)[1].makespan_us == 23
    lowered, timeline = verify(early, on)
    assert timeline.makespan_us == 18
    spans = zip(timeline.start_us, timeline.end_us, strict=True)
    assert list(spans)[lowered.first_node[-1] :] == [(3, 7), (7, 11)]


def test_a_rank_waits_where_its_offload_is_waited_for() -> None:
    # With no op in between, BW1 waits until out, 3 … 23, has left.
    made = schedule("F0.0 O0.0 F0.1 L0.0 BW0.1 BW0.0", buffering=Buffering(0, 1))
    lowered, timeline = verify(made, costs(1, host_us=20))
    assert timeline.start_us[lowered.ops[0].index(Op.parse("BW0.1"))] == 23


def test_a_partner_rank_keeps_what_is_moved_to_it() -> None:
    # Rank 1 makes room at K1's place; both hold 10 while it is on its way.
    made = schedule(
        "F0.0 O0.0 F0.1 L0.0 BW0.0 BW0.1",
        "F1.0 K0.0 BW1.0 G0.0 F1.1 BW1.1",
    )
    on = costs(2, pair_us=2)
    away = levels(made, on)
    assert away["SENT out(0, 0) from rank 0 to rank 1"] == 0
    assert away["F0.1"] == 10 + 1  # saved(0, 1) and act(0, 1)
    # Before it on that link, and so posted with it: grad(0, 0).
    assert away["RECV back(0, 0) from rank 1 to rank 0"] == 10 + 1 + 1 + 10
    kept = levels(made, on, rank=1)
    assert kept["RECV out(0, 0) from rank 0 to rank 1"] - kept["F1.0"] == 10
    verify(made, on)


def test_moves_share_the_link_with_activations_in_the_order_of_their_ops() -> None:
    # Rank 0 → 1: act 0 (made at 3), out 0 (3), act 1 (6); each takes 2: 3 … 5 … 7 … 9.
    made = schedule(
        "F0.0 O0.0 F0.1 L0.0 BW0.0 BW0.1",
        "K0.0 F1.0 BW1.0 G0.0 F1.1 BW1.1",
        buffering=Buffering(9, 9),
    )
    lowered, timeline = verify(made, costs(2, pair_us=2))
    first = lowered.first_node[-1]
    down = [
        (str(transfer.value), timeline.start_us[first + i])
        for i, transfer in enumerate(lowered.transfers)
        if transfer.source == 0
    ]
    assert down == [("act(0, 0)", 3), ("out(0, 0)", 5), ("act(0, 1)", 7)]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("R0.0 F0.0 BW0.0", "F1.0 BW1.0", "rank 0, op 0 (R0.0): runs before F0.0"),
        ("F0.0 BW0.0 R0.0", "F1.0 BW1.0", "rank 0, op 1 (BW0.0): runs before R0.0"),
        ("F0.0 O0.0 BW0.0", "F1.0 BW1.0", "rank 0: O0.0 needs L0.0, which is missing"),
        ("F0.0 L0.0 BW0.0", "F1.0 BW1.0", "rank 0: L0.0 needs O0.0, which is missing"),
        ("F0.0 L0.0 O0.0 BW0.0", "F1.0 BW1.0", "rank 0, op 1 (L0.0): runs before O0.0"),
        ("F0.0 O0.0 L0.0 BW0.0", "F1.0 K0.0 BW1.0", "rank 0: O0.0 needs G0.0, which is missing"),
        ("F0.0 O0.0 L0.0 BW0.0", "F1.0 K1.0 BW1.0", "rank 1, op 1 (K1.0): this rank holds stage 1"),
        ("F0.0 O0.0 L0.0 BW0.0", "F1.0 K7.0 BW1.0", "rank 1, op 1 (K7.0): there is no such stage"),
        ("F0.0 O0.0 BW0.0 L0.0", "F1.0 BW1.0", "deadlock: "),
        ("F0.0 O0.0 L0.0 BW0.0", "F1.0 G0.0 K0.0 BW1.0", "deadlock: "),
        ("F0.0 O0.0 L0.0 BW0.0 O1.0", "F1.0 BW1.0", "op 4 (O1.0): this rank holds stage 0"),
    ],
)
def test_what_cannot_be_rebuilt_or_moved_so_is_refused(
    first: str, second: str, message: str
) -> None:
    with pytest.raises(ScheduleError) as raised:
        verify(schedule(first, second), costs(2, host_us=1))
    assert message in str(raised.value)


def test_one_rank_keeps_what_another_moves() -> None:
    lines = ["F0.0 O0.0 L0.0 BW0.0", "F1.0 K0.0 BW1.0", "F2.0 BW2.0 G0.0"]
    with pytest.raises(ScheduleError, match=r"rank 2: G0\.0 stands here, K0\.0 on rank 1"):
        verify(schedule(*lines), costs(3))
    lines = ["F0.0 O0.0 L0.0 BW0.0", "F1.0 K0.0 G0.0 BW1.0", "F2.0 BW2.0 G0.0"]
    with pytest.raises(ScheduleError, match=r"op 2 \(G0\.0\): G0\.0 stands on rank 1 already"):
        verify(schedule(*lines), costs(3))


def test_offloading_needs_a_link_to_the_host() -> None:
    with pytest.raises(SynthError, match='the profile has no link to it; add `"host"'):
        verify(schedule("F0.0 O0.0 L0.0 BW0.0"), costs(1))
