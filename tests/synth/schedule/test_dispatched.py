"""Forwards and backwards of a stage on different ranks, and RoundPipe, which dispatches both."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from synth.costs.costs import HOST, uniform_costs
from synth.errors import SynthError
from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.files.fingerprint import schedule_fingerprint
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op, ValueKind
from synth.schedule.placements import dispatched, placement
from synth.schedule.rank_memory import memory_usage, peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import ScheduleError, verify
from synth.schedule.weight_flow import Route, WeightFlow
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.synth.host_costs import BW_US, F_US, GRADIENTS, SAVED, WEIGHTS, host_costs
from tests.synth.replayed_programs import check_start_times

F, R, BW, U, A = OpKind.F, OpKind.R, OpKind.BW, OpKind.UNSHARD, OpKind.REDUCE_GRAD


def judged(
    p: int, v: int, m: int, output_bytes: int = 0, rate: float | None = None
) -> tuple[Lowered, Timeline]:
    costs = host_costs(p * v, output_bytes, rate=rate)
    return verify(generate(f"roundpipe:{v}", p, m, costs=costs), costs)


def num_slots(num_stages: int) -> int:
    """Forwards of three stages each but for the last stage, then a backward of each stage."""
    return -(-(num_stages - 1) // 3) + num_stages


# Numbers of stages of which all but the last one make whole forwards, at least as many as ranks.
EVEN = [(2, 2, 4), (2, 8, 2), (4, 4, 8), (4, 7, 4), (8, 5, 16)]


@pytest.mark.parametrize(("p", "v", "m"), EVEN)
def test_ranks_are_idle_only_before_the_first_slots_and_after_the_last_ones(
    p: int, v: int, m: int
) -> None:
    """K slots of T in each of m / p rounds: (K m / p + p − 1) T, so that the bubble rate is
    p (p − 1) / (K m + p (p − 1)).
    """
    _, line = judged(p, v, m)
    slots, slot_us = num_slots(p * v), F_US + BW_US
    assert line.makespan_us == (slots * m // p + p - 1) * slot_us
    bubble = 1 - sum(line.work_us) / p / line.makespan_us
    assert bubble == pytest.approx(p * (p - 1) / (slots * m + p * (p - 1)))


class Layered(NamedTuple):
    """Times in ms of a model of equal layers and a head on 8 GPUs, with 16 micro-batches.

    They and the makespan are those of the script and the log of the authors' simulator
    (ITcarrot/RoundPipe-artifact, pp-simulate), where forward stages are whole numbers of layers,
    and backward stages a layer each.

    Attributes:
        printed: their makespan.
        longer: that of `roundpipe` is so much longer, in percent.
    """

    layers: int
    together: int
    forward: float
    backward: float
    head_forward: float
    head_backward: float
    hop: float
    printed: float
    longer: float


PRINTED = {
    "GPTOSS-20B": Layered(24, 5, 21.6445625, 81.780875, 44.2925, 86.264, 2.25, 7282.8064, 1.22),
    "Qwen3-32B": Layered(64, 3, 40.5610625, 91.17429688, 54.928, 108.294, 4, 23978.8338, 0.27),
    "Qwen3-235B": Layered(94, 2, 43.016, 58.376, 42.444, 43.294, 3.2, 28250.0320, 0.0),
}


def recurrence_ms(model: Layered, *, early_head: bool) -> float:
    """The makespan by the rule of the authors' simulator, slot by slot.

    Recomputation needs no gradient. With `early_head` the head's forward needs no input either.
    """
    m, forwards = model, -(-model.layers // model.together)
    fewest, larger = divmod(m.layers, forwards)
    sizes = [fewest + (slot >= forwards - larger) for slot in range(forwards)]
    slots = [(0.0, size * m.forward) for size in sizes]
    slots += [(m.head_forward, m.head_backward)] + [(m.forward, m.backward)] * m.layers
    free, number = [0.0] * 8, 0
    for _ in range(2):
        ends, last = [0.0] * 8, None
        for place, (before, after) in enumerate(slots):
            gpu, number = number % 8, number + 1
            for j, end in enumerate(ends):
                come = 0.0 if last is None else end + m.hop
                is_gated = place == forwards and not early_head
                begin = max(free[gpu], come) + before if is_gated else max(free[gpu] + before, come)
                ends[j] = free[gpu] = begin + after
            last = gpu
    return max(free)


@pytest.mark.parametrize("model", PRINTED.values(), ids=PRINTED)
def test_makespans_are_those_of_the_authors_simulator(model: Layered) -> None:
    """It prints those of heads that run before their input has come, which costs up to 1.2 %."""
    assert recurrence_ms(model, early_head=True) == pytest.approx(model.printed, abs=5e-5)
    forward, backward, head_forward, head_backward, hop = (round(1e6 * ms) for ms in model[2:7])
    made = uniform_costs(
        model.layers + 1,
        forward_us=forward,
        backward_input_us=backward,
        backward_weight_us=0,
        links=Links(default=Link(latency_us=hop), host=Link()),
    )
    *inner, head = made.stages
    of_head = {F: head_forward, OpKind.B: head_backward, BW: head_backward}
    head = head.replace(duration_us={**head.duration_us, **of_head})
    costs = made.replace(stages=(*inner, head))
    where = dispatched(8, model.layers + 1, model.together)
    _, line = verify(generate("roundpipe:1", 8, 16, costs=costs, where=where), costs)
    found = line.makespan_us / 1e6
    assert found == pytest.approx(recurrence_ms(model, early_head=False), abs=1e-3)
    assert 100 * (found / model.printed - 1) == pytest.approx(model.longer, abs=0.005)


@pytest.mark.parametrize(("p", "v", "m"), [*EVEN, (3, 5, 9), (5, 2, 10), (2, 1, 2)])
def test_times_of_the_graph_are_those_of_the_programs(p: int, v: int, m: int) -> None:
    for rate in (None, 20.0, 1.0):
        lowered, _ = judged(p, v, m, output_bytes=40, rate=rate)
        check_start_times(lowered)
        for rank in range(p):
            assert memory_usage(lowered, rank).peak_bytes == peak_bytes(lowered)[rank]


@pytest.mark.parametrize(("p", "v", "m"), [(2, 8, 4), (4, 7, 8), (8, 5, 16)])
def test_a_rank_holds_one_slot_the_weights_of_the_next_and_two_sums(p: int, v: int, m: int) -> None:
    """The next slot has three stages at most; the sum of the slot before is leaving still."""
    lowered, _ = judged(p, v, m)
    assert set(peak_bytes(lowered)) == {SAVED + (1 + 3) * WEIGHTS + 2 * GRADIENTS}


@pytest.mark.parametrize(("p", "v", "m"), [(2, 8, 4), (4, 7, 8), (3, 4, 6)])
def test_stages_come_twice_a_round_and_inputs_wait_with_the_host(p: int, v: int, m: int) -> None:
    size = 40
    lowered, _ = judged(p, v, m, output_bytes=size)
    stages, rounds = p * v, m // p
    kinds = [transfer.value.kind for transfer in lowered.transfers]
    from_host = [t for t in lowered.transfers if t.source == HOST]
    to_host = [t for t in lowered.transfers if t.target == HOST]
    assert kinds.count(ValueKind.WEIGHTS) == rounds * (2 * stages - 1)
    assert kinds.count(ValueKind.GRAD_ACC) == rounds * stages
    left = {t.value for t in to_host if t.value.kind == ValueKind.ACT}
    assert left == {t.value for t in from_host if t.value.kind == ValueKind.ACT}
    assert {t.num_bytes for t in to_host if t.value in left} == {size}
    # Those of all stages but the first and the last, less those that the maker reads again itself.
    where = lowered.schedule.placement
    stays = sum(
        where.of_backwards[copy][s] in (where.ranks[copy][s - 1], where.ranks[copy][s])
        for number in range(rounds)
        for copy in [number % len(where.ranks)]
        for s in range(1, stages - 1)
    )
    assert len(left) == p * (rounds * (stages - 2) - stays)


def test_slots_go_to_the_ranks_in_turn() -> None:
    where = placement("dispatched:2-3", 4)
    assert where.ranks[0] == (0, 0, 1, 1, 2, 2, 2, 3)
    assert where.of_backwards[0] == (2, 1, 0, 3, 2, 1, 0, 3)
    assert where.ranks[1] == (3, 3, 0, 0, 1, 1, 1, 2)  # behind 11 slots
    assert len(where.ranks) == 4 and where.num_ranks == 4
    assert where.held[3][:4] == ((0, 1), (0, 3), (1, 1), (1, 2))
    assert family_placement("roundpipe:2", 4) == where != Placement(where.ranks)


def halves(*kinds: OpKind) -> Schedule:
    """Forwards of two stages on rank 0; on rank 1 ops of these kinds, for two micro-batches."""
    forwards = [Op(F, stage, j) for j in range(2) for stage in (0, 1)]
    backwards = [Op(kind, stage, j) for j in range(2) for stage in (1, 0) for kind in kinds]
    programs = (
        (Op(U, 0, 0), Op(U, 1, 0), *forwards),
        (Op(U, 0, 1), Op(U, 1, 1), *backwards, Op(A, 0, 0), Op(A, 1, 0)),
    )
    flow = WeightFlow(((1,), (1,)), weights=Route.HOST, gradients=Route.HOST)
    return Schedule(Placement(((0, 0),), ((1, 1),)), 2, programs, weights=flow)


@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        ((BW,), {ValueKind.SAVED: SAVED}),
        ((R, BW), {ValueKind.ACT: 7, ValueKind.REPLAY_INPUT: 0}),
    ],
)
def test_a_backward_reads_from_the_host_what_its_forward_made_elsewhere(
    kinds: tuple[OpKind, ...], left: dict[ValueKind, int]
) -> None:
    lowered, _ = verify(halves(*kinds), host_costs(2, 7, rate=1))
    check_start_times(lowered)
    for ends in ((0, HOST), (HOST, 1)):
        found = {t.value: t.num_bytes for t in lowered.transfers if t[1:3] == ends}
        assert {v.kind: n for v, n in found.items() if v.kind in left} == left
        # What F saves, or R needs besides the input, of both stages; the input of stage 1 alone.
        assert sum(v.kind in left for v in found) == 4 + 2 * (ValueKind.ACT in left)
    assert {t[1:3] for t in lowered.transfers} == {(0, HOST), (HOST, 0), (HOST, 1), (1, HOST)}


def test_forwards_and_backwards_stand_on_their_own_ranks() -> None:
    costs, made = host_costs(2, 7), halves(R, BW)
    forwards, backwards = made.programs
    with pytest.raises(ScheduleError, match=r"rank 0, op 6 \(R1.0\): forwards of stage 1 run on r"):
        verify(replace(made, programs=((*forwards, Op(R, 1)), backwards)), costs)
    with pytest.raises(ScheduleError, match=r"rank 1, op 12 \(F0.0\): .* its backwards on rank 1"):
        verify(replace(made, programs=(forwards, (*backwards, Op(F, 0)))), costs)
    with pytest.raises(ScheduleError, match="other copies or stages than that of forwards"):
        verify(replace(made, placement=Placement(((0, 0),), ((1,),))), costs)
    with pytest.raises(ScheduleError, match="and the host as the route of weights and gradients"):
        verify(replace(made, weights=None), costs)


def test_what_roundpipe_does_not_admit_is_refused() -> None:
    costs = host_costs(4)
    for p, m in ((2, 3), (1, 4)):
        with pytest.raises(SynthError, match="at least 2 ranks and a multiple of their number"):
            generate(f"roundpipe:{4 // p}", p, m, costs=costs)
    with pytest.raises(SynthError, match="roundpipe needs a link to the host's memory"):
        generate("roundpipe:2", 2, 2, costs=costs.replace(links=Links()))
    with pytest.raises(SynthError, match="no search orders ops on it"):
        solve(Problem(costs, placement("dispatched:2-3", 2), 4))


def test_schedules_that_differ_in_ranks_of_backwards_have_other_fingerprints() -> None:
    made = generate("roundpipe:2", 2, 2, costs=host_costs(4))
    other = replace(made, placement=Placement(made.placement.ranks))
    assert schedule_fingerprint(made) != schedule_fingerprint(other)
