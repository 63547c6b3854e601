"""Validation points: no instruction before one waits for an instruction behind another."""

import random
from dataclasses import replace

import pytest

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import Action, Lowered, lower
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.validation_point import (
    HalfOpenTransfers,
    ValidationPoints,
    find_validation_points,
)
from synth.schedule.verify import verify

FAMILIES = ("gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "hanayo:1", "chimera")


def lowered_of(
    name: str, num_ranks: int, num_micro_batches: int, buffering: Buffering | None = None
) -> Lowered:
    schedule = generate(name, num_ranks, num_micro_batches)
    if buffering is not None:
        schedule = replace(schedule, buffering=buffering)
    costs = uniform_costs(
        schedule.placement.num_stages,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        output_bytes=1,
    )
    return lower(schedule, costs)


def forwards(lowered: Lowered, points: ValidationPoints) -> list[int]:
    """The number of F's that each rank runs before its point."""
    return [
        sum(i.action == Action.COMPUTE for i in program[:end])
        for program, end in zip(lowered.programs, points.ends, strict=True)
    ]


def test_1f1b_validates_behind_its_warm_up() -> None:
    # Ranks 0 to 3 run 4, 3, 2 and 1 F's before their first backward.
    lowered = lowered_of("1f1b", 4, 8)
    assert forwards(lowered, find_validation_points(lowered)) == [4, 3, 2, 1]


def test_zb_h2_validates_behind_its_longer_warm_up() -> None:
    lowered = lowered_of("zb-h2", 4, 8)
    assert forwards(lowered, find_validation_points(lowered)) == [7, 5, 3, 1]


def test_gpipe_validates_behind_all_its_forwards() -> None:
    lowered = lowered_of("gpipe", 3, 5)
    assert forwards(lowered, find_validation_points(lowered)) == [5, 5, 5]


def test_before_the_points_there_are_only_forwards() -> None:
    for name in FAMILIES:
        lowered = lowered_of(name, 4, 8)
        for program, end in zip(
            lowered.programs, find_validation_points(lowered).ends, strict=True
        ):
            kinds = {i.compute.kind for i in program[:end] if i.action == Action.COMPUTE}
            assert kinds <= {OpKind.F}, name


def test_1f1b_s_half_started_transfers_worked_by_hand() -> None:
    # Rank 0 runs F0 F1, rank 1 runs F0, and next comes B0 on both. Rank 0 has sent act(0, 0) and
    # act(0, 1), and posted grad(0, 0) before F1, one op ahead; rank 1 has sent nothing, and posted
    # act(0, 0); act(0, 1), which it reads behind B0, only if it posts one op ahead, as rank 0 then
    # has grad(0, 0); with no op ahead that is posted just before B0, where the point is.
    ahead, late = (lowered_of("1f1b", 2, 4, Buffering(ops, 2)) for ops in (1, 0))

    def half_open(lowered: Lowered, rank: int) -> tuple[list[str], list[str]]:
        found = find_validation_points(lowered).half_open(lowered, rank)
        return [str(t.value) for t in found.to_send], [str(t.value) for t in found.to_receive]

    assert half_open(ahead, 0) == ([], [])
    assert half_open(ahead, 1) == (["grad(0, 0)"], [])
    assert half_open(late, 0) == ([], [])
    assert half_open(late, 1) == (["grad(0, 0)"], ["act(0, 1)"])


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_when_it_begins_again_every_link_has_as_many_sends_as_receives(
    name: str, num_ranks: int
) -> None:
    lowered = lowered_of(name, num_ranks, 8)
    points = find_validation_points(lowered)
    sends: list[object] = []
    receives: list[object] = []
    for rank, (program, end) in enumerate(zip(lowered.programs, points.ends, strict=True)):
        half_open = points.half_open(lowered, rank)
        sends += [i.moved for i in program[:end] if i.action == Action.SEND]
        receives += [i.moved for i in program[:end] if i.action == Action.RECV]
        sends += half_open.to_send
        receives += half_open.to_receive
    assert sorted(map(str, sends)) == sorted(map(str, receives))


@pytest.mark.parametrize("name", FAMILIES)
def test_all_ranks_reach_their_points_whoever_runs_first(name: str) -> None:
    """Run the programs with rendezvous: a send is done when it is posted, in any order of turns."""
    lowered = lowered_of(name, 4, 8)
    ends = find_validation_points(lowered).ends
    draw = random.Random(name)
    at = [0] * 4
    sent: set[object] = set()
    posted: set[object] = set()
    while at != list(ends):
        moved = False
        for rank in draw.sample(range(4), 4):
            while at[rank] < ends[rank]:
                instruction = lowered.programs[rank][at[rank]]
                if instruction.action == Action.RECV:
                    posted.add((instruction.moved.value, rank))
                elif instruction.action == Action.SEND:
                    sent.add((instruction.moved.value, instruction.moved.target))
                elif instruction.action == Action.SENT:
                    if (instruction.moved.value, instruction.moved.target) not in posted:
                        break
                else:
                    reads = lowered.effects.reads(instruction.compute)
                    if any((v, rank) in posted and (v, rank) not in sent for v in reads):
                        break
                at[rank] += 1
                moved = True
        assert moved, (name, at, ends)


def test_a_point_goes_back_where_a_forward_needs_what_another_rank_makes_behind_its_own() -> None:
    # Two copies in opposite directions. Rank 1's F1.1 needs F0.1, which rank 0 runs behind a
    # backward; so rank 1 must validate before F1.1, though that is no backward.
    texts = [
        "F0.0 F1.2@1 BW1.2@1 F0.1 BW0.0 BW0.1",
        "F0.2@1 F1.0 F1.1 BW1.0 BW1.1 BW0.2@1",
    ]
    programs = tuple(tuple(map(Op.parse, text.split())) for text in texts)
    schedule = Schedule(Placement(((0, 1), (1, 0))), 3, programs, "two ways")
    costs = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
    lowered, _ = verify(schedule, costs)
    ends = find_validation_points(lowered).ends
    nexts = [str(program[end]) for program, end in zip(lowered.programs, ends, strict=True)]
    assert nexts == ["BW1.2@1", "F1.1"]


def by_hand(*lines: str) -> Lowered:
    """One stage per rank, two micro-batches; a host to move to."""
    programs = [tuple(map(Op.parse, line.split())) for line in lines]
    costs = uniform_costs(
        len(lines),
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        links=Links(host=Link(latency_us=1)),
    )
    made = Schedule.linear("by hand", 2, programs)
    return verify(replace(made, buffering=Buffering(0, 0)), costs)[0]


def test_moves_to_the_host_stand_before_a_point_and_leave_nothing_half_started() -> None:
    lowered = by_hand("F0.0 O0.0 F0.1 O0.1 L0.0 BW0.0 L0.1 BW0.1")
    points = find_validation_points(lowered)
    last = [i.op for i in lowered.programs[0][: points.ends[0]] if i.op is not None][-1]
    assert last == Op.parse("L0.0")
    assert points.half_open(lowered, 0) == HalfOpenTransfers((), ())


def test_a_move_to_another_rank_may_be_half_started() -> None:
    # Rank 1 makes room for out(0, 1) and then waits at BW1.0, its point. Rank 0 moves it behind
    # BW0.0, which is rank 0's point: if the iteration begins again, that send is still owed.
    lowered = by_hand(
        "F0.0 F0.1 BW0.0 O0.1 L0.1 BW0.1",
        "F1.0 K0.1 BW1.0 F1.1 G0.1 BW1.1",
    )
    points = find_validation_points(lowered)
    assert [str(t.value) for t in points.half_open(lowered, 0).to_send] == ["out(0, 1)"]
    # act(0, 1) stands before it on the link, so that its receive is posted too.
    assert points.half_open(lowered, 1).to_receive == ()
