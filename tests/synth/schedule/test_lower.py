"""Lowering: the full programs of small schedules, written out."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.costs import uniform_costs
from synth.errors import SynthError
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import Instruction, Lowered, lower
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from tests.synth.plain import Plain, Route, random_costs, random_schedule, shuffled


def lowered_lines(
    buffering: Buffering, *lines: str, placement: Placement | None = None
) -> list[list[str]]:
    ops = tuple(tuple(map(Op.parse, line.split())) for line in lines)
    m = 1 + max(op.microbatch for program in ops for op in program)
    placement = placement or Placement.linear(len(lines))
    costs = uniform_costs(
        placement.num_stages,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        output_bytes=1,
    )
    lowered = lower(Schedule(placement, m, ops, "by hand", buffering), costs)
    return [[_short(i) for i in program] for program in lowered.programs]


def _short(instruction: Instruction) -> str:
    """`RECV act(0, 1)`, without the ranks."""
    return str(instruction).split(" from ")[0]


def test_the_docstring_s_picture_with_the_default_buffering() -> None:
    # Sender: wait two ops after the one that made it. Receiver: post one op ahead of its reader.
    sender, receiver = lowered_lines(
        Buffering(),
        "F0.0 F0.1 F0.2 BW0.0 BW0.1 BW0.2",
        "F1.0 F1.1 BW1.0 F1.2 BW1.1 BW1.2",
    )
    assert sender == [
        *("F0.0", "SEND act(0, 0)"),
        *("F0.1", "SEND act(0, 1)"),
        *("RECV grad(0, 0)", "F0.2", "SEND act(0, 2)"),
        *("RECV grad(0, 1)", "SENT act(0, 0)", "BW0.0"),
        *("RECV grad(0, 2)", "SENT act(0, 1)", "BW0.1"),
        *("SENT act(0, 2)", "BW0.2"),
        "STEP0",
    ]
    assert receiver == [
        *("RECV act(0, 0)", "RECV act(0, 1)", "F1.0"),
        "F1.1",
        *("RECV act(0, 2)", "BW1.0", "SEND grad(0, 0)"),
        "F1.2",
        *("BW1.1", "SEND grad(0, 1)"),
        *("SENT grad(0, 0)", "BW1.2", "SEND grad(0, 2)"),
        "STEP1",
        *("SENT grad(0, 1)", "SENT grad(0, 2)"),
    ]


def test_without_buffering_transfers_stand_beside_their_ops() -> None:
    sender, receiver = lowered_lines(Buffering(0, 0), "F0.0 BW0.0", "F1.0 BW1.0")
    assert sender == [
        *("F0.0", "SEND act(0, 0)"),
        *("RECV grad(0, 0)", "SENT act(0, 0)", "BW0.0"),
        "STEP0",
    ]
    assert receiver == [
        *("RECV act(0, 0)", "F1.0"),
        *("BW1.0", "SEND grad(0, 0)"),
        *("SENT grad(0, 0)", "STEP1"),
    ]


def test_stages_on_one_rank_need_no_transfer() -> None:
    (only,) = lowered_lines(Buffering(), "F0.0 F1.0 BW1.0 BW0.0", placement=Placement(((0, 0),)))
    assert only == ["F0.0", "F1.0", "BW1.0", "BW0.0", "STEP0", "STEP1"]


def test_receives_are_posted_in_the_order_of_the_sends() -> None:
    # Rank 1 reads act 1 first, but act 0 was sent first: both receives stand before F1.1.
    _, receiver = lowered_lines(Buffering(0, 2), "F0.0 F0.1 BW0.0 BW0.1", "F1.1 F1.0 BW1.0 BW1.1")
    assert receiver[:4] == ["RECV act(0, 0)", "RECV act(0, 1)", "F1.1", "F1.0"]


def test_a_listed_step_stays_where_it_stands() -> None:
    (only,) = lowered_lines(
        Buffering(), "F0.0 F1.0 BW1.0 STEP1 BW0.0", placement=Placement(((0, 0),))
    )
    assert only == ["F0.0", "F1.0", "BW1.0", "STEP1", "BW0.0", "STEP0"]


def test_a_value_dies_with_its_last_reader_and_its_last_send() -> None:
    ops = tuple(tuple(map(Op.parse, line.split())) for line in ("F0.0 B0.0 W0.0", "F1.0 B1.0 W1.0"))
    costs = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
    lowered = lower(Schedule(Placement.linear(2), 1, ops), costs)
    deaths = {
        str(value): _short(instruction)
        for instruction in lowered.programs[0]
        for value in instruction.frees
    }
    assert deaths == {
        "saved(0, 0)": "B0.0",
        "grad(0, 0)": "B0.0",
        "saved_w(0, 0)": "W0.0",
        "act(0, 0)": "SENT act(0, 0)",
        "wgrad(0, 0)": "STEP0",
    }


def _with_deaths(lowered: Lowered, rank: int) -> list[str]:
    """A rank's instructions, each with the values that die with it behind a bar."""
    return [
        " ".join([str(instruction), "|", *sorted(map(str, instruction.frees))])
        for instruction in lowered.programs[rank]
    ]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_any_schedule_is_lowered_as_by_the_plain_version(seed: int, out_of_order: bool) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    if out_of_order:
        schedule = shuffled(rng, schedule)
    costs = random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
    plain, lowered = Plain(schedule, costs), lower(schedule, costs)
    assert [list(program) for program in lowered.ops] == plain.ops
    for rank in range(schedule.num_ranks):
        assert _with_deaths(lowered, rank) == plain.program(rank)
    routes: list[Route] = [route for routes in plain.routes for route in routes]
    assert lowered.transfers == [route[:5] for route in routes]
    assert lowered.durations_us == plain.durations_us
    assert lowered.predecessors == plain.predecessors
    names = list(map(lowered.node_name, range(len(lowered.durations_us))))
    assert names == list(map(plain.name, range(len(names))))


# Two ranks, two copies in opposite directions: rank 0 holds stages 0 and 1@1, rank 1 1 and 0@1.
OPPOSITE = Placement(((0, 1), (1, 0)))


def test_a_reduction_starts_behind_the_last_w_of_its_copy_in_the_same_turn_on_all_ranks() -> None:
    # The last Ws stand at, on rank 0: stage 0 op 5, stage 1 op 3; on rank 1: stage 1 op 5,
    # stage 0 op 4. Both largest places are 5, so stage 0 comes first: on rank 0 stage 1 waits.
    first, second = lowered_lines(
        Buffering(),
        "F0.0 F1.1@1 B1.1@1 W1.1@1 B0.0 W0.0",
        "F0.1@1 F1.0 B1.0 B0.1@1 W0.1@1 W1.0",
        placement=OPPOSITE,
    )
    assert [line for line in first if line[0] in "WC"] == [
        *("W1.1@1", "W0.0"),
        *("COLLECT gradient of stage 0 among ranks 0, 1",),
        *("COLLECT gradient of stage 1 among ranks 0, 1",),
    ]
    assert [line for line in second if line[0] in "WC"] == [
        *("W0.1@1", "COLLECT gradient of stage 0 among ranks 0, 1"),
        *("W1.0", "COLLECT gradient of stage 1 among ranks 0, 1"),
    ]


def test_a_copy_without_a_micro_batch_joins_the_reduction_from_the_start() -> None:
    first, second = lowered_lines(Buffering(), "F0.0 BW0.0", "F1.0 BW1.0", placement=OPPOSITE)
    # Stage 0's last W is op 1 of rank 0, stage 1's op 1 of rank 1; the other copies have none.
    assert second[0] == "COLLECT gradient of stage 0 among ranks 0, 1"
    assert second[-5:-3] == ["SEND grad(0, 0)", "COLLECT gradient of stage 1 among ranks 0, 1"]
    assert [line for line in first if line.startswith("COLLECT")] == [
        "COLLECT gradient of stage 0 among ranks 0, 1",
        "COLLECT gradient of stage 1 among ranks 0, 1",
    ]


def test_copies_on_one_rank_need_no_reduction() -> None:
    (only,) = lowered_lines(
        Buffering(), "F0.0 BW0.0 F0.1@1 BW0.1@1", placement=Placement(((0,), (0,)))
    )
    assert only == ["F0.0", "BW0.0", "F0.1@1", "BW0.1@1", "STEP0", "STEP0@1"]


def test_a_cost_beyond_exact_sums_is_refused() -> None:
    costs = uniform_costs(
        1, forward_us=1, backward_input_us=1, backward_weight_us=1, saved_bytes=2**51
    )
    schedule = Schedule(Placement.linear(1), 1, ((Op.parse("F0.0"), Op.parse("BW0.0")),))
    with pytest.raises(SynthError, match="stage 0 costs up to 2251799813685248"):
        lower(schedule, costs)


def test_a_transfer_of_years_is_refused() -> None:
    links = Links(default=Link(bandwidth_bytes_per_s=1e-9))
    costs = uniform_costs(
        2,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        output_bytes=10**9,
        links=links,
    )
    ops = tuple(tuple(map(Op.parse, line.split())) for line in ("F0.0 BW0.0", "F1.0 BW1.0"))
    with pytest.raises(SynthError, match=r"moving 1000000000 bytes takes .* bytes per second"):
        lower(Schedule(Placement.linear(2), 1, ops), costs)
