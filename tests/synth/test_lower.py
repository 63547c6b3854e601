"""Lowering: the full programs of small schedules, written out."""

from synth.costs import uniform_costs
from synth.schedule import Buffering, Op, Placement, Schedule, lower
from synth.schedule.lower import Instruction


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
