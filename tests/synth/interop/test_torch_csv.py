"""PyTorch's schedule files: out and in again, and as PyTorch itself reads and writes them."""

import re
from dataclasses import replace

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import generate
from synth.interop.loss_order import in_loss_order
from synth.interop.torch_comms_csv import to_torch_comms_csv
from synth.interop.torch_csv import from_torch_csv, to_torch_csv
from synth.interop.torch_csv_reader import read_torch_csv
from synth.op_kinds import OpKind
from synth.schedule.error import ScheduleError
from synth.schedule.model import Buffering
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Sharded


def test_a_schedule_is_written_in_pytorchs_letters() -> None:
    assert to_torch_csv(generate("1f1b", 2, 2)) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_split_backwards_become_i_and_w() -> None:
    program = from_torch_csv("0F0,0I0,0W0\n").programs[0]
    assert program == (Op(OpKind.F, 0, 0), Op(OpKind.B, 0, 0), Op(OpKind.W, 0, 0))


@pytest.mark.parametrize("family", ["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved:2", "v-half"])
def test_what_is_written_is_read_back_the_same(family: str) -> None:
    schedule = generate(family, 4, 8)
    again = from_torch_csv(to_torch_csv(schedule), schedule.name)
    assert (again.placement, again.programs) == (schedule.placement, schedule.programs)
    assert again.num_micro_batches == schedule.num_micro_batches


def test_idle_cells_and_pytorchs_transfers_are_read_over() -> None:
    with_transfers = "0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0\n"
    assert from_torch_csv(with_transfers).programs == from_torch_csv("0F0,0B0\n1F0,1B0").programs


def test_overlapped_pairs_are_read_as_two_ops() -> None:
    read = from_torch_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")
    assert read.overlapped == {Op(OpKind.F, 0, 1)}
    program = read.programs[0]
    assert [str(op) for op in program] == ["F0.0", "F0.1", "BW0.0", "BW0.1"]


@pytest.mark.parametrize("name", ["dualpipe-v:overlap", "interleaved:2,overlap"])
def test_pairs_are_written_as_pytorch_writes_them_and_read_back(name: str) -> None:
    theirs = pytest.importorskip("torch.distributed.pipelining.schedules")
    schedule = generate(name, 3, 7, costs=overlapping_costs(6))
    text = to_torch_csv(schedule)
    numbered, again = in_loss_order(schedule), from_torch_csv(text, schedule.name)
    assert len(schedule.overlapped) > 20
    assert (again.programs, again.overlapped) == (numbered.programs, numbered.overlapped)
    cells = [cell for row in text.splitlines() for cell in row.split(",")]
    actions = [theirs._Action.from_str(cell) for cell in cells]
    assert [str(action) for action in actions] == cells
    pairs = [action for action in actions if action.sub_actions]
    assert {action.computation_type.value for action in pairs} == {"OVERLAP_F_B"}
    assert len(pairs) == len(schedule.overlapped)


def overlapping_costs(num_stages: int) -> Costs:
    costs = uniform_costs(num_stages, forward_us=5, backward_input_us=5, backward_weight_us=5)
    return costs.replace(stages=tuple(each.replace(hidden_us=2) for each in costs.stages))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0,0X0\n", "row 0, cell 1: '0X0'"),
        ("0F0,0B0\n0F1,0B1\n", "stage 0 is on the ranks 0 and 1"),
        ("0F0,0B0\n2F0,2B0\n", "no actions of stage 1"),
        ("\n", "no actions"),
        ("0F0,(0F1;)OVERLAP_F_B\n", "row 0, cell 1: .* has 1 actions; two run at once"),
        ("(0F2;0B0;0B1)OVERLAP_F_B\n", "has 3 actions; two run at once"),
        ("," * 4_000_001, "has 4,000,001 cells; at most 4,000,000 are read"),
    ],
    ids=["no action", "two ranks", "no stage", "nothing", "one of two", "three", "too long"],
)
def test_a_file_that_is_no_schedule_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(SynthError, match=said):
        from_torch_csv(text)


def test_replicas_are_refused_as_pytorch_has_none() -> None:
    with pytest.raises(SynthError, match="copies"):
        to_torch_csv(generate("chimera", 4, 4))


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "zb-v"])
def test_pytorch_reads_the_same_actions(family: str) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    rows = to_torch_csv(generate(family, 2, 4)).splitlines()
    for rank, row in enumerate(rows):
        cells = row.split(",")
        assert [str(schedules._Action.from_str(cell)) for cell in cells] == cells, rank


@pytest.mark.parametrize("family", ["interleaved:2", "zb-v"])
def test_transfers_are_where_pytorchs_own_lowering_puts_them(family: str) -> None:
    theirs = pytest.importorskip("torch.distributed.pipelining.schedules")
    pipeline = generate(family, 2, 4)
    ranks = pipeline.placement.ranks[0]
    rows = to_torch_comms_csv(sharded_pipelines(pipeline, 2, Sharded.WEIGHTS)).splitlines()
    cells = {rank: row.split(",") for rank, row in enumerate(rows)}
    others = {
        rank: [theirs._Action.from_str(c) for c in row if "SEND" not in c and "RECV" not in c]
        for rank, row in cells.items()
    }
    lowered = theirs._add_send_recv(others, lambda stage: ranks[stage], len(ranks))
    assert cells == {rank: [str(action) for action in row] for rank, row in lowered.items()}


@pytest.mark.parametrize("family", ["weipipe", "zero3:1", "mobius:2"])
def test_weight_passing_that_pytorch_does_not_have_is_refused(family: str) -> None:
    with pytest.raises(SynthError, match="passes weights in a way that PyTorch's runtime"):
        to_torch_comms_csv(generate(family, 2, 4))


def dumped(name: str, num_ranks: int, num_micro_batches: int, per_rank: int) -> str:
    """A schedule of PyTorch's, as its visualizer lists it."""
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    rows = visualizer.get_schedule_ops(name, num_ranks, num_micro_batches, per_rank)
    lines = (",".join("" if each is None else str(each) for each in row) for row in rows)
    return "\n".join(lines) + "\n"


def equal_costs(num_stages: int) -> Costs:
    return uniform_costs(num_stages, forward_us=1, backward_input_us=1, backward_weight_us=1)


@pytest.mark.parametrize(
    ("name", "num_ranks", "num_micro_batches", "per_rank", "receive_ahead"),
    [
        ("GPipe", 4, 8, 1, 1),
        ("1F1B", 4, 8, 1, 1),
        ("Interleaved1F1B", 3, 6, 2, 1),
        ("LoopedBFS", 4, 8, 3, 1),
        ("InterleavedZeroBubble", 2, 8, 2, 1),
        ("InterleavedZeroBubble", 3, 6, 2, 2),
        ("InterleavedZeroBubble", 4, 8, 2, 4),
        ("InterleavedZeroBubble", 4, 8, 3, 4),
        ("InterleavedZeroBubble", 8, 16, 2, 10),
        ("ZBVZeroBubble", 4, 8, 2, 1),
        ("DualPipeV", 4, 8, 2, 1),
        ("DualPipeV", 3, 6, 2, 1),
    ],
)
def test_pytorchs_own_schedules_run_with_the_least_buffering(
    name: str, num_ranks: int, num_micro_batches: int, per_rank: int, receive_ahead: int
) -> None:
    text = dumped(name, num_ranks, num_micro_batches, per_rank)
    schedule, notes = read_torch_csv(text, name)
    assert schedule.buffering.receive_ahead == receive_ahead
    costs = equal_costs(num_ranks * per_rank)
    verify(schedule, costs)
    if receive_ahead > 1:
        assert f"posted {receive_ahead} ops ahead instead of 1" in notes[-1]
        fewer = replace(schedule, buffering=replace(schedule.buffering, receive_ahead=1))
        with pytest.raises(ScheduleError, match="deadlock"):
            verify(fewer, costs)


def test_an_order_that_no_buffering_lets_run_stays_a_deadlock() -> None:
    schedule = from_torch_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    assert schedule.buffering == Buffering()
    with pytest.raises(ScheduleError, match="deadlock"):
        verify(schedule, equal_costs(2))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0F0,0B0,0W0\n1F0,1B0,1W0\n", "0F0,0I0,0W0\n1F0,1I0,1W0\n"),
        ("0F0,0BW0\n1F0,1B0,1W0\n", "0F0,0B0\n1F0,1I0,1W0\n"),
        ("0F0,0F1,0BW0,0BW1\n1F0,1BW0,1F1,1B1,1W1", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1W1", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n"),
    ],
)
def test_letters_from_before_pytorch_2_6_are_read(old: str, new: str) -> None:
    read, notes = read_torch_csv(old)
    again, none = read_torch_csv(new)
    assert read == again and not none
    assert notes[0].startswith("read with the letters from before PyTorch 2.6")
    verify(read, equal_costs(2))


OUT_OF_ORDER = "0F1,0F0,0F2,0B1,0B0,0B2\n1F1,1B1,1F0,1B0,1F2,1B2\n"


def test_micro_batches_are_numbered_as_the_last_stage_runs_them() -> None:
    schedule = from_torch_csv(OUT_OF_ORDER)
    written = "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"
    assert to_torch_csv(schedule) == written
    costs = equal_costs(2)
    before, after = (verify(each, costs) for each in (schedule, from_torch_csv(written)))
    assert before[1].makespan_us == after[1].makespan_us
    assert peak_bytes(before[0]) == peak_bytes(after[0])


def test_sharded_pipelines_are_numbered_so_too() -> None:
    pipeline = from_torch_csv(OUT_OF_ORDER)
    rows = to_torch_comms_csv(sharded_pipelines(pipeline, 2, Sharded.WEIGHTS)).splitlines()
    assert [cell for cell in rows[1].split(",") if re.fullmatch(r"1F\d", cell)] == [
        "1F0",
        "1F1",
        "1F2",
    ]


@pytest.mark.parametrize("family", ["1f1b", "zb-v", "interleaved:2", "zb-h2"])
def test_orders_with_losses_in_turn_keep_their_numbers(family: str) -> None:
    schedule = generate(family, 4, 8)
    assert in_loss_order(schedule) is schedule
