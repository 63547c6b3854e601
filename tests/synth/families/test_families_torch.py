"""Published schedules beside PyTorch's own generators of them, op by op: nobody's copy of ours.

PyTorch builds its orders rank by rank in methods that need no processes and no stages; only these
are called here. Its I is our B, its B our BW.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.distributed.pipelining import schedules as theirs

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify

KINDS = {"F": OpKind.F, "I": OpKind.B, "W": OpKind.W, "B": OpKind.BW}
SIZES = [(d, m) for d in range(1, 7) for m in range(1, 20)]
Programs = list[list[Op]]


def made_by_torch(name: str, num_ranks: int, stages_per_rank: int, m: int) -> Programs:
    """The compute ops of each rank, in PyTorch's order."""
    made: Any = object.__new__(getattr(theirs, name))
    made.pp_group_size, made.n_local_stages = num_ranks, stages_per_rank
    made._num_stages = made.num_stages = num_ranks * stages_per_rank
    made._stages, made._n_microbatches = [None] * stages_per_rank, m
    made.number_of_rounds = max(1, m // num_ranks)
    made.microbatches_per_round = m // made.number_of_rounds
    if hasattr(made, "_calculate_single_rank_operations"):
        ranks = [made._calculate_single_rank_operations(rank) for rank in range(num_ranks)]
    else:
        ranks = list(made._get_pipeline_order().values())
    return [list(_ops(actions)) for actions in ranks]


def _ops(actions: Any) -> Iterator[Op]:
    for action in actions:
        if action is not None and action.sub_actions:  # F of one stream beside B of the other
            yield from _ops(action.sub_actions)
        elif action is not None and action.computation_type.value in KINDS:
            kind = KINDS[action.computation_type.value]
            yield Op(kind, action.stage_index, action.microbatch_index)


def programs_of(schedule: Schedule) -> Programs:
    return [[op for op in program if op.kind != OpKind.STEP] for program in schedule.programs]


def even_groups(d: int, m: int) -> bool:
    """PyTorch's condition on interleaved schedules; ours take any number."""
    return m % max(1, m // d) == 0


@pytest.mark.parametrize(
    ("name", "torch_name", "rounds", "sizes"),
    [
        ("gpipe", "ScheduleGPipe", 1, SIZES),
        ("interleaved:2", "ScheduleInterleaved1F1B", 2, [s for s in SIZES if even_groups(*s)]),
        ("interleaved:3", "ScheduleInterleaved1F1B", 3, [s for s in SIZES if even_groups(*s)]),
        ("zb-h1", "ScheduleInterleavedZeroBubble", 1, [s for s in SIZES if even_groups(*s)]),
        ("zb-v", "ScheduleZBVZeroBubble", 2, [(d, m) for d, m in SIZES if m >= 2 * d - 1]),
        ("dualpipe-v", "ScheduleDualPipeV", 2, [(d, m) for d, m in SIZES if m >= 2 * d]),
    ],
)
def test_both_list_the_same_ops_in_the_same_order(
    name: str, torch_name: str, rounds: int, sizes: list[tuple[int, int]]
) -> None:
    assert len(sizes) > 60
    for d, m in sizes:
        ours = programs_of(generate(name, d, m))
        assert ours == made_by_torch(torch_name, d, rounds, m), (d, m)


def test_dualpipe_v_overlaps_what_pytorch_overlaps() -> None:
    for d, m in [(d, m) for d, m in SIZES if m >= 2 * d and d > 1]:
        costs = uniform_costs(
            2 * d, forward_us=100, backward_input_us=120, backward_weight_us=90
        )  # so little is hidden that the first pair of the last rank does not pay
        stages = tuple(stage.replace(hidden_us=1) for stage in costs.stages)
        ours = generate("dualpipe-v:overlap", d, m, costs=costs.replace(stages=stages))
        assert [*ours.programs] == [*generate("dualpipe-v", d, m).programs]
        theirs_pairs = [
            [*_ops(action.sub_actions)] for action in torch_actions(d, m) if action.sub_actions
        ]
        assert {pair[0] for pair in theirs_pairs} == ours.overlapped, (d, m)
        behind = {op: after for ops in ours.programs for op, after in pairwise(ops)}
        assert all(behind[forward] == backward for forward, backward in theirs_pairs)


def torch_actions(num_ranks: int, m: int) -> list[Any]:
    """The actions of PyTorch's DualPipeV, rank after rank."""
    made: Any = object.__new__(theirs.ScheduleDualPipeV)
    made.pp_group_size, made._n_microbatches = num_ranks, m
    ranks = (made._calculate_single_rank_operations(rank) for rank in range(num_ranks))
    return [action for actions in ranks for action in actions if action is not None]


def test_1f1b_is_the_same_but_for_how_pytorch_numbers_the_last_rank() -> None:
    # Its listing, which it does not run itself, calls the last rank's forwards 1 to m.
    for d, m in [(d, m) for d, m in SIZES if m >= d]:
        ours, listed = programs_of(generate("1f1b", d, m)), made_by_torch("Schedule1F1B", d, 1, m)
        assert ours[:-1] == listed[:-1]
        last = [op._replace(microbatch=op.microbatch - (op.kind == OpKind.F)) for op in listed[-1]]
        assert ours[-1] == last


@pytest.mark.parametrize("rounds", [2, 3])
def test_breadth_first_is_the_same_but_for_the_order_of_a_stage_s_backwards(rounds: int) -> None:
    # PyTorch begins with the newest micro-batch; here every kind takes them in order. All of a
    # stage's are done before the next stage's either way, so time and memory are the same.
    for d, m in SIZES:
        listed = [
            [
                op._replace(microbatch=m - 1 - op.microbatch) if op.kind == OpKind.BW else op
                for op in program
            ]
            for program in made_by_torch("ScheduleLoopedBFS", d, rounds, m)
        ]
        assert programs_of(generate(f"breadth-first:{rounds}", d, m)) == listed


@pytest.mark.parametrize("d", range(2, 7))
def test_with_fewer_than_2d_minus_1_micro_batches_zb_v_is_shorter_than_pytorch_s(d: int) -> None:
    # Drawn for 2D − 1, what is left of it has holes; ours are closed within D micro-batches.
    costs = uniform_costs(
        2 * d,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=1,
        saved_w_bytes=1,
    )
    for m in range(1, 2 * d - 1):
        ours = generate("zb-v", d, m)
        programs = tuple(map(tuple, made_by_torch("ScheduleZBVZeroBubble", d, 2, m)))
        listed = Schedule(ours.placement, m, programs, "listed", ours.buffering)
        (lowered, mine), (_, drawn) = verify(ours, costs), verify(listed, costs)
        assert mine.makespan_us <= drawn.makespan_us and mine.period_us <= drawn.period_us
        assert max(peak_bytes(lowered)) <= 2 * d
        assert m > d or d == 2 or mine.makespan_us < drawn.makespan_us
