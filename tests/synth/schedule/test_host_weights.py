"""Weights at home in the host's memory: peaks, bytes and times in closed form, and refusals."""

from dataclasses import replace
from functools import partial

import pytest

from synth.costs.costs import HOST
from synth.errors import SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Links
from synth.schedule.files.weight_records import Weights
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op, ValueKind
from synth.schedule.rank_memory import memory_usage, peak_bytes, static_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import ScheduleError, verify
from synth.schedule.weight_flow import Route, WeightFlow
from tests.synth.host_costs import BW_US, F_US, GRADIENTS, SAVED, WEIGHTS, host_costs
from tests.synth.replayed_programs import check_start_times

STEP_US = 7
costs_of = partial(host_costs, step_us=STEP_US)


def judged(
    p: int, v: int, m: int, name: str = "mobius", rate: float | None = None
) -> tuple[Lowered, Timeline]:
    costs = costs_of(p * v, rate=rate)
    found = verify(generate(f"{name}:{v}", p, m, costs=costs), costs)
    check_start_times(found[0])
    return found


@pytest.mark.parametrize(("p", "v", "m"), [(1, 3, 2), (2, 2, 4), (2, 3, 5), (4, 2, 4), (3, 4, 6)])
def test_a_rank_holds_two_stages_weights_a_gradient_and_all_activations(
    p: int, v: int, m: int
) -> None:
    lowered, _ = judged(p, v, m, rate=3)
    # As the first backward begins its sum, all activations are there, and the next stage has come.
    assert set(peak_bytes(lowered)) == {v * m * SAVED + 2 * WEIGHTS + GRADIENTS}
    for rank in range(p):
        assert static_bytes(lowered, rank) == 0
        assert memory_usage(lowered, rank).peak_bytes == peak_bytes(lowered)[rank]
    usual, _ = judged(p, v, m, "breadth-first")
    assert set(peak_bytes(usual)) == {v * (m * SAVED + 4 * WEIGHTS + GRADIENTS)}


@pytest.mark.parametrize(("p", "v", "m"), [(1, 3, 2), (2, 2, 4), (4, 3, 4)])
def test_a_stage_comes_twice_but_once_in_the_last_round_and_its_gradient_leaves_once(
    p: int, v: int, m: int
) -> None:
    table = judged(p, v, m)[0].transfer_table
    assert table.num_bytes[table.source == HOST].sum() == (2 * v - 1) * p * WEIGHTS
    assert table.num_bytes[table.target == HOST].sum() == v * p * GRADIENTS


@pytest.mark.parametrize(("p", "v", "m"), [(1, 3, 2), (2, 2, 4), (4, 2, 8)])
def test_copies_that_take_no_time_leave_breadth_firsts_time(p: int, v: int, m: int) -> None:
    assert judged(p, v, m)[1].makespan_us == judged(p, v, m, "breadth-first")[1].makespan_us


@pytest.mark.parametrize(("v", "m"), [(2, 2), (3, 2), (4, 3)])
def test_on_a_slow_link_copies_follow_each_other_and_the_rank_waits(v: int, m: int) -> None:
    rate = 0.5
    _, line = judged(1, v, m, rate=rate)
    come, gone = round(WEIGHTS / rate), round(GRADIENTS / rate)
    assert come > m * (F_US + BW_US) and gone > m * BW_US
    # The last weights, their backwards and the last gradient; or the last round, and all gradients.
    by_weights = (2 * v - 1) * come + m * BW_US + gone
    by_gradients = v * come + m * (F_US + BW_US) + v * gone
    assert line.makespan_us == max(by_weights, by_gradients) + v * STEP_US


def test_what_the_host_keeps_must_visit_and_gradients_must_go_back_to_it() -> None:
    costs = costs_of(4)
    made = generate("mobius:2", 2, 2, costs=costs)
    flow = made.weights
    record = Weights.of(flow)
    assert flow is not None and record is not None and record.flow() == flow

    def without(kind: OpKind) -> Schedule:
        programs = tuple(tuple(op for op in ops if op.kind != kind) for ops in made.programs)
        return replace(made, programs=programs)

    with pytest.raises(ScheduleError, match="their home is the host of rank 0, and no visit is"):
        verify(without(OpKind.UNSHARD), costs)
    with pytest.raises(ScheduleError, match="REDUCE_GRAD"):
        verify(without(OpKind.REDUCE_GRAD), costs)
    with pytest.raises(ScheduleError, match="the host's memory keeps both"):
        verify(replace(made, weights=replace(flow, gradients=Route.CHAIN)), costs)
    with pytest.raises(SynthError, match="mobius needs a link to the host's memory"):
        generate("mobius", 2, 2, costs=costs.replace(links=Links()))


def test_copies_of_a_stage_share_the_hosts_memory_and_its_step_waits_for_the_sums_of_all() -> None:
    kinds = (OpKind.UNSHARD, OpKind.F, OpKind.BW, OpKind.REDUCE_GRAD)
    programs = [
        tuple(Op(kind, 0, r if kind in (OpKind.F, OpKind.BW) else 0, r) for kind in kinds)
        for r in range(2)
    ]
    flow = WeightFlow(((0,),), weights=Route.HOST, gradients=Route.HOST)
    made = Schedule(Placement(((0,), (1,))), 2, tuple(programs), weights=flow)
    lowered, line = verify(made, costs_of(1, rate=1))
    check_start_times(lowered)
    assert lowered.ops[0][-1].kind == OpKind.STEP and lowered.ops[1] == programs[1]
    assert line.makespan_us == WEIGHTS + F_US + BW_US + GRADIENTS + STEP_US


def test_activations_may_share_the_links_and_come_back_once_their_own_copy_has_left() -> None:
    costs = costs_of(2, rate=2)
    made = generate("mobius:2", 1, 2, costs=costs)
    moved: list[Op] = []
    for op in made.programs[0]:
        is_first_stage = op.stage == 0
        if op.kind == OpKind.BW and is_first_stage:
            moved.append(op._replace(kind=OpKind.RELOAD))
        moved.append(op)
        if op.kind == OpKind.F and is_first_stage:
            moved.append(op._replace(kind=OpKind.OFFLOAD))
    lowered, line = verify(replace(made, programs=(tuple(moved),)), costs)
    first = lowered.first_node[-1]
    ends = {
        (transfer.value.kind, transfer.value.stage, transfer.value.microbatch): (
            line.start_us[first + number],
            line.end_us[first + number],
        )
        for number, transfer in enumerate(lowered.transfers)
    }
    for j in range(2):
        out, back = ends[ValueKind.MOVED_OUT, 0, j], ends[ValueKind.MOVED_BACK, 0, j]
        assert back[0] >= out[1] == out[0] + SAVED // 2
    # Not once the gradient of the stage has left, which is behind the backward that reads them.
    assert ends[ValueKind.MOVED_BACK, 0, 0][1] < ends[ValueKind.GRAD_ACC, 0, 0][0]
    assert memory_usage(lowered, 0).peak_bytes == peak_bytes(lowered)[0]
    assert peak_bytes(lowered)[0] < 4 * SAVED + 2 * WEIGHTS + GRADIENTS
