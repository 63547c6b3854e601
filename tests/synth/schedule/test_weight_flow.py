"""Weight passing: WeiPipe's turns and times, ZeRO's bytes, and schedules that are refused."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.costs import Costs, uniform_costs
from synth.costs.partition_costs import partition_costs
from synth.costs.stage_costs import StageCosts
from synth.families import generate
from synth.families.weipipe import home, turns
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profiles import find
from synth.schedule.error import ScheduleError
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Action, Lowered, lower
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op, ValueKind
from synth.schedule.rank_memory import memory_usage, peak_bytes, static_bytes
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Route, Sharded, WeightFlow
from tests.synth.replayed_programs import check_start_times

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW
UNSHARD, RESHARD, REDUCE = OpKind.UNSHARD, OpKind.RESHARD, OpKind.REDUCE_GRAD

PARAMETERS, GRADIENT, OPTIMIZER = 700, 500, 2600
ORDERS = ("interleaved", "naive", "wzb1", "wzb2")
WEIPIPES = [f"weipipe:{order}" for order in ORDERS]
ZEROS = ["zero3:1", "zero2:1", "zero1:1", "zero3:2", "zero2:2"]


def costs(num_stages: int, *, links: Links | None = None, saved: int = 1000) -> Costs:
    return uniform_costs(
        num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=saved,
        saved_w_bytes=saved // 2,
        output_bytes=10,
        parameter_bytes=PARAMETERS,
        gradient_bytes=GRADIENT,
        static_bytes=PARAMETERS + GRADIENT + OPTIMIZER,
        links=links,
    )


def made(name: str, num_ranks: int, rounds: int) -> Schedule:
    return generate(name, num_ranks, num_ranks * rounds)


# WeiPipe's turns: the tables of the paper, for rank 0 of four


def _shown(by_turn: Iterable[list[Op]]) -> str:
    return " ".join("+".join(sorted(map(str, ops), key=lambda t: t[0] != "F")) for ops in by_turn)


PRINTED = {
    "naive": "F0.0 F1.0 F2.0 F3.0 BW3.0 BW2.0 BW1.0 BW0.0",
    "interleaved": "F0.0 F1.0 F2.0 F3.0 F0.4+BW3.0 F1.4+BW2.0 F2.4+BW1.0 F3.4+BW0.0 "
    "BW3.4 BW2.4 BW1.4 BW0.4",
    "wzb1": "F0.0 F1.0 F2.0 F3.0 F0.4+B3.0 F1.4+W3.0 F2.4+B2.0 F3.4+W2.0 "
    "B1.0+B3.4 W1.0+W3.4 B0.0+B2.4 W0.0+W2.4 F0.8+B1.4 F1.8+W1.4 F2.8+B0.4 F3.8+W0.4",
    "wzb2": "F0.0 F1.0 F2.0 F3.0 B3.0 B2.0 B1.0 B0.0 W0.0 W1.0 W2.0 W3.0 F0.4 F1.4 F2.4 F3.4",
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_turns_of_rank_0_of_four_are_those_of_the_paper(order: str) -> None:
    printed = PRINTED[order]
    rounds = {"naive": 1, "interleaved": 2, "wzb1": 3, "wzb2": 2}[order]
    assert _shown(turns(order, 4, rounds, 0)).startswith(printed)


@pytest.mark.parametrize("order", ORDERS)
def test_the_other_ranks_do_the_same_a_turn_and_a_micro_batch_later(order: str) -> None:
    first = turns(order, 4, 3, 0)
    for rank in range(1, 4):
        moved = [
            [op._replace(microbatch=op.microbatch + rank, replica=rank) for op in ops]
            for ops in first
        ]
        assert turns(order, 4, 3, rank) == [[]] * rank + moved


def lock_step(order: str, num_ranks: int, rounds: int, took: dict[OpKind, int]) -> int:
    """The time if all ranks begin each turn together: a turn lasts as long as its busiest rank."""
    ranks = [turns(order, num_ranks, rounds, rank) for rank in range(num_ranks)]
    return sum(
        max(sum(took[op.kind] for op in rank[turn]) for rank in ranks if turn < len(rank))
        for turn in range(max(map(len, ranks)))
    )


LOCK_STEP: dict[str, Callable[[int, int, int, int], int]] = {
    "interleaved": lambda p, g, f, bw: (g * p + p - 1) * (f + bw),
    "naive": lambda p, g, f, bw: p * f + (2 * p - 1) * bw + (g - 1) * ((2 * p - 1) * bw + f),
    "wzb1": lambda p, g, f, bw: f * (3 * g * p + 2 * p - 2),
    "wzb2": lambda p, g, f, bw: f * (3 * g * p + p - 1),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_in_lock_step_the_turns_take_the_closed_forms(
    order: str, num_ranks: int, rounds: int
) -> None:
    for forward, backward in ((1, 1),) if order.startswith("wzb") else ((1, 1), (3, 4), (2, 5)):
        took = {F: forward, B: backward, W: backward, BW: 2 * backward}
        expected = LOCK_STEP[order](num_ranks, rounds, forward, 2 * backward)
        assert lock_step(order, num_ranks, rounds, took) == expected


def unequal_wzb1(p: int, pairs: int, f: int, b: int, w: int) -> int:
    """Lock-step if W ≤ F ≤ B: of the ranks' last P turns, one with two B's is the longest.

    A pair of micro-batches has P turns with F alone or beside the pair before, P with F and P
    without, B's in even turns and W's in odd ones. Some rank has two B's in 2P − 2 turns.
    """
    first, last = p * f, max(2 * w, b) + (p - 1) * b + w
    return first + (p + (pairs - 1) * (p + 2)) * (f + b) + pairs * (2 * p - 2) * 2 * b + last


def unequal_wzb2(p: int, rounds: int, f: int, b: int, w: int) -> int:
    """Lock-step: for one turn in P all ranks have the same kind, else two kinds that follow."""
    within, between = max(f, b) + max(b, w), max(w, f)
    changing = rounds * within + (rounds - 1) * between + f + w
    return rounds * (f + b + w) + (p - 1) * changing


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("rounds", [2, 4, 6])
def test_in_lock_step_unequal_ops_take_the_time_of_the_longest(num_ranks: int, rounds: int) -> None:
    took = {F: 10, B: 12, W: 8}
    for order, expected in (
        ("wzb1", unequal_wzb1(num_ranks, rounds // 2, 10, 12, 8)),
        ("wzb2", unequal_wzb2(num_ranks, rounds, 10, 12, 8)),
    ):
        assert lock_step(order, num_ranks, rounds, took) == expected


def test_unequal_ops_leave_bubbles_in_lock_step() -> None:
    """With F, B, W = 1, 1.2, 0.8 on 8 ranks and 32 micro-batches; equal ones leave 13 and 7 %."""
    work = 4 * 8 * 30
    rates = [1 - work / lock_step(o, 8, 4, {F: 10, B: 12, W: 8}) for o in ("wzb1", "wzb2")]
    assert [round(rate, 3) for rate in rates] == [0.236, 0.149]
    rates = [1 - work / lock_step(o, 8, 4, {F: 10, B: 10, W: 10}) for o in ("wzb1", "wzb2")]
    assert [round(rate, 2) for rate in rates] == [0.13, 0.07]


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_with_data_flow_no_order_takes_longer_than_in_lock_step(num_ranks: int) -> None:
    took = {F: 100, B: 100, W: 100, BW: 200}
    for order in ORDERS:
        timeline = verify(made(f"weipipe:{order}", num_ranks, 4), costs(num_ranks))[1]
        assert timeline.makespan_us <= lock_step(order, num_ranks, 4, took)


# Bytes


def _sent(lowered: Lowered, kind: ValueKind) -> int:
    return sum(one.num_bytes for one in lowered.transfers if one.value.kind == kind)


def shared_visits(order: str, num_ranks: int, rounds: int) -> int:
    """The visits that an order saves, as two ops of one turn read the weights of one stage.

    In interleaved turns of an odd number of ranks a BW of the middle stage meets the F of the next
    micro-batch. In WZB1's second block of P turns the B of P−1−i of a rank's first micro-batch is
    in turn 2i beside F2i of the second, so they meet if 3i = P−1. In the fourth block B of
    P/2−1−i of the second is beside F2i of the next pair's first: 3i = P/2−1. That stage is at home
    on one of the P ranks.
    """
    if order == "interleaved" and num_ranks % 2:
        return (rounds - 1) * (num_ranks - 1)
    if order != "wzb1":
        return 0
    of_pair = rounds // 2 if num_ranks % 3 == 1 else 0
    of_next = (rounds - 1) // 2 if num_ranks // 2 % 3 == 1 else 0
    return (of_pair + of_next) * (num_ranks - 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 6, 7, 8])
def test_weipipe_sends_weights_to_all_but_their_homes_and_sums_from_micro_batch_to_micro_batch(
    order: str, rounds: int, num_ranks: int
) -> None:
    p = num_ranks
    if order == "wzb1" and p % 2:
        pytest.skip("WZB1 is for even numbers of ranks")
    m = rounds * p
    lowered = lower(made(f"weipipe:{order}", p, rounds), costs(p))
    assert lowered.visits is not None
    visited = sum(visit.value >= 0 for visit in lowered.visits.visits)
    assert visited == 2 * m * (p - 1) - shared_visits(order, p, rounds)
    assert _sent(lowered, ValueKind.WEIGHTS) == visited * PARAMETERS
    # The last sum is on the last rank, which is at home of stage 1 alone.
    assert _sent(lowered, ValueKind.GRAD_SUM) == (p * (m - 1) + p - 1) * GRADIENT
    assert not _sent(lowered, ValueKind.ACT) and not _sent(lowered, ValueKind.GRAD)


@pytest.mark.parametrize(
    ("order", "most"), [("interleaved", 3), ("naive", 2), ("wzb1", 2), ("wzb2", 1)]
)
@pytest.mark.parametrize("num_ranks", [4, 8])
def test_a_link_of_the_ring_carries_at_most_two_weights_and_a_sum_for_a_turn(
    order: str, most: int, num_ranks: int
) -> None:
    """F and BW of a turn read weights each, and BW the sum; WZB1 has B's or W's, if not F."""
    lowered = lower(made(f"weipipe:{order}", num_ranks, 3), costs(num_ranks))
    carried: Counter[tuple[int, int, int]] = Counter()
    for rank in range(num_ranks):
        by_turn = enumerate(turns(order, num_ranks, 3, rank))
        turn_of = {op: turn for turn, ops in by_turn for op in ops}
        source = {}
        for one in lowered.programs[rank]:
            if one.action == Action.RECV:
                source[one.moved.value] = one.moved.source
            elif one.op in turn_of:
                for value in lowered.effects.reads(one.op):
                    if value in source:
                        carried[source.pop(value), rank, turn_of[one.op]] += 1
        # Only the last sum of the stage at home is read by its STEP.
        assert [value.kind for value in source] in ([], [ValueKind.GRAD_SUM])
    assert max(carried.values()) == most


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_zero_sends_what_its_stage_says(num_ranks: int) -> None:
    p, rounds = num_ranks, 2
    sent = {}
    for name in ("zero1", "zero2", "zero3"):
        lowered = lower(made(f"{name}:2", p, rounds), costs(2 * p))
        assert not lowered.transfers
        sent[name] = sum(one.sent_bytes for one in lowered.collectives)
    s = 2 * p
    assert sent["zero1"] == (p - 1) * s * (PARAMETERS + GRADIENT)
    assert sent["zero2"] == (p - 1) * s * (PARAMETERS + rounds * GRADIENT)
    # Forward and backward of the last stage share a visit.
    assert sent["zero3"] == (p - 1) * rounds * ((2 * s - 1) * PARAMETERS + s * GRADIENT)


def test_ring_and_collective_move_nearly_the_same_bytes() -> None:
    p, rounds = 4, 8
    ring = lower(made("weipipe:naive", p, rounds), costs(p))
    gathered = lower(made("zero3:1", p, rounds), costs(p))
    by_ring = sum(one.num_bytes for one in ring.transfers)
    by_gather = sum(one.sent_bytes for one in gathered.collectives)
    whole = p * rounds * (p - 1) * (2 * PARAMETERS + GRADIENT)
    assert 0.85 * whole < by_gather < whole
    assert whole * 0.95 < by_ring < whole * 1.15


# Memory


def test_homes_keep_all_of_their_stage_and_others_nothing() -> None:
    p = 4
    lowered = lower(made("weipipe", p, 2), costs(p))
    whole = PARAMETERS + GRADIENT + OPTIMIZER
    assert [static_bytes(lowered, rank) for rank in range(p)] == [whole] * p
    assert [home(stage, p) for stage in range(p)] == [0, 3, 2, 1]


@pytest.mark.parametrize(
    ("name", "everywhere", "shared"),
    [
        ("zero1:1", PARAMETERS + GRADIENT, OPTIMIZER),
        ("zero2:1", PARAMETERS, GRADIENT + OPTIMIZER),
        ("zero3:1", 0, PARAMETERS + GRADIENT + OPTIMIZER),
    ],
)
def test_each_stage_of_zero_shares_more(name: str, everywhere: int, shared: int) -> None:
    p = 4
    lowered = lower(made(name, p, 2), costs(p))
    expected = p * (everywhere + -(-shared // p))
    assert [static_bytes(lowered, rank) for rank in range(p)] == [expected] * p


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("left", [0.0, 0.5, 1.0, 1.5])
def test_weipipe_holds_the_activations_of_all_stages_on_each_rank(
    num_ranks: int, left: float
) -> None:
    """In units of a stage's saved activations, of which B leaves a share for W."""
    unit, p = 10**6, num_ranks
    table = uniform_costs(
        p,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=unit,
        saved_w_bytes=round(left * unit),
        parameter_bytes=1,
        gradient_bytes=1,
        static_bytes=3,
    )
    held = {
        order: {round(most / unit, 2) for most in peak_bytes(lower(made(name, p, 4), table))}
        for order, name in zip(ORDERS, WEIPIPES, strict=True)
    }
    # WZB1 has one and a half micro-batches under way, and what B leaves of the stage whose W is
    # open; WZB2 runs all B's of a micro-batch before its W's.
    assert held == {
        "interleaved": {p},
        "naive": {p},
        "wzb1": {1.5 * p + max(0.0, 2 * (left - 1))},
        "wzb2": {max(p, left * p)},
    }


def buffers_held(schedule: Schedule, *, parameter_bytes: int, gradient_bytes: int) -> int:
    """The most that a rank holds beside its home if nothing else has bytes."""
    num_stages = schedule.placement.num_stages
    table = uniform_costs(
        num_stages,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        parameter_bytes=parameter_bytes,
        gradient_bytes=gradient_bytes,
        static_bytes=parameter_bytes + gradient_bytes,
    )
    lowered = lower(schedule, table)
    return max(most - static_bytes(lowered, rank) for rank, most in enumerate(peak_bytes(lowered)))


@pytest.mark.parametrize("ahead", range(5))
@pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 11, 13])
def test_weipipe_has_weights_for_both_directions_and_sums_on_their_way(p: int, ahead: int) -> None:
    """Beside its home, in units of a stage's weights and of its sum of gradients.

    The authors' program has two buffers each for weights of forwards, weights of backwards and
    sums (github.com/Gvilenius/weipipe, `weipipe.py`): 4 and 2 with one turn ahead.
    """
    schedule = generate(f"weipipe:ahead={ahead}", p, 3 * p)
    most = {
        Buffering(1, 0): (3 + 2 * ahead, max(3, 1 + ahead)),
        Buffering(1, 2): (5 + 2 * ahead, max(5, 3 + ahead)),
    }
    assert schedule.buffering in most
    for buffering, (weights, sums) in most.items():
        each = replace(schedule, buffering=buffering)
        if not buffering.send_behind and (p == 2 or (ahead == 0 and p % 2 == 0)):
            # Ranks that wait for each send at once wait for each other.
            with pytest.raises(ScheduleError, match="deadlock"):
                verify(each, costs(p))
            continue
        verify(each, costs(p))
        found = (
            buffers_held(each, parameter_bytes=1, gradient_bytes=0),
            buffers_held(each, parameter_bytes=0, gradient_bytes=1),
        )
        # On small rings a stage that comes ahead is often at home, and needs no buffer.
        assert found[0] <= weights and found[1] <= sums
        if p >= 5 + 2 * ahead:
            assert found == (weights, sums)


def test_fsdp_holds_the_weights_of_one_stage_and_of_the_next() -> None:
    p, saved = 2, 1000
    lowered = lower(made("zero3:1", p, 1), costs(p, saved=saved))
    static = static_bytes(lowered, 0)
    # U0 U1 F0 D0 F1 BW1 ...: both stages' weights are there during F0, then one of them; the most
    # is in BW0, with the weights and gradient of stage 0 and the gradient of stage 1 on its way.
    ops = [str(op) for op in lowered.schedule.programs[0]]
    assert ops == [
        "U0.0",
        "U1.0",
        "F0.0",
        "D0.0",
        "U0.1",
        "F1.0",
        "BW1.0",
        "D1.0",
        "A1.0",
        "BW0.0",
        "D0.1",
        "A0.0",
    ]
    usage = memory_usage(lowered, 0)
    at = {str(i): high for i, high in zip(lowered.programs[0], usage.highest, strict=True)}
    boundary = 10
    assert at["F0.0"] == static + 2 * PARAMETERS + saved + boundary
    # BW1.0 begins the sum that A1.0 hands on.
    assert at["BW1.0"] == static + 2 * PARAMETERS + 2 * saved + boundary + GRADIENT


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_peaks_by_arrays_are_those_of_the_programs(seed: int) -> None:
    rng = random.Random(seed)
    p, rounds = rng.choice([2, 3, 4]), rng.randint(1, 3)
    name = rng.choice([*WEIPIPES, *ZEROS])
    if name == "weipipe:wzb1":
        p = 2 * rng.randint(1, 2)
    if name.startswith("weipipe"):
        name += f",ahead={rng.randint(0, 4)}"
    schedule = replace(
        made(name, p, rounds), buffering=Buffering(rng.randint(0, 4), rng.randint(0, 9))
    )
    lowered = lower(schedule, costs(schedule.placement.num_stages))
    by_program = [memory_usage(lowered, rank) for rank in range(p)]
    assert peak_bytes(lowered) == tuple(usage.peak_bytes for usage in by_program)
    assert [usage.after[-1] for usage in by_program] == [
        static_bytes(lowered, rank) for rank in range(p)
    ]


# Time


def test_a_gather_delays_the_op_that_reads_and_a_scatter_the_step() -> None:
    # 2 ranks, one round; a gather takes 1 round of half of 700 bytes, a scatter of 500.
    links = Links(default=Link(latency_us=50, bandwidth_bytes_per_s=1e6))
    schedule = made("zero3:1,ahead=0", 2, 1)
    lowered, timeline = verify(schedule, costs(2, links=links))
    gather, scatter = 50 + 350, 50 + 250
    assert [one.duration_us for one in lowered.collectives if one.kind == "all-gather"] == [
        gather
    ] * 3
    # U0 F0 U1 F1 BW1 A1 U0 BW0 A0, one after the other on each rank; the last gather also waits
    # for the first scatter, as both are of one group.
    assert timeline.makespan_us == 3 * gather + 2 * 100 + 2 * 200 + 2 * scatter


def test_a_share_of_the_optimizer_takes_a_share_of_its_time() -> None:
    slow = [
        stage.replace(duration_us={**stage.duration_us, OpKind.STEP: 90})
        for stage in costs(3).stages
    ]
    lowered = lower(made("zero3:1", 3, 1), Costs(stages=tuple(slow)))
    first = lowered.first_node
    steps = [
        us
        for us, of_step in zip(lowered.durations_us, lowered.arrays.of_step, strict=False)
        if of_step
    ]
    assert steps == [30] * 9 and first[-1] == len(lowered.arrays.of_step)


def test_weights_are_handed_on_before_they_are_used() -> None:
    # Transfers take 10 µs, ops 100: rank 3 has stage 0 after three hops, not after three F's.
    links = Links(default=Link(latency_us=10))
    timeline = verify(made("weipipe:naive", 4, 1), costs(4, links=links))[1]
    lowered = timeline.lowered
    first_f = [
        timeline.start_us[node] for node in _nodes(lowered, "F0.0", "F0.1@1", "F0.2@2", "F0.3@3")
    ]
    assert first_f == [0, 10, 20, 30]


def _nodes(lowered: Lowered, *names: str) -> list[int]:
    ops = [str(op) for program in lowered.ops for op in program]
    return [ops.index(name) for name in names]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9))
def test_times_are_those_of_the_programs_run_rank_by_rank(seed: int) -> None:
    rng = random.Random(seed)
    p, rounds = rng.choice([2, 3, 4]), rng.randint(1, 3)
    name = rng.choice([*WEIPIPES, "zero3:1", "zero3:2", "weipipe:star"])
    if name == "weipipe:wzb1":
        p = 2 * rng.randint(1, 2)
    is_star = name == "weipipe:star"
    name = "weipipe" if is_star else name
    spelled = f"{name},ahead={rng.randint(0, 3)}" if ":" in name else name
    schedule = made(spelled, p, rounds)
    if is_star and schedule.weights is not None:
        schedule = replace(schedule, weights=replace(schedule.weights, weights=Route.STAR))
    schedule = replace(schedule, buffering=Buffering(rng.randint(0, 3), rng.randint(2, 40)))
    links = Links(default=Link(latency_us=rng.choice([0, 30, 300])))
    lowered = lower(schedule, costs(schedule.placement.num_stages, links=links))
    check_start_times(lowered)


# Schedules that are refused


def _refused(schedule: Schedule, match: str, on: Costs | None = None) -> None:
    with pytest.raises(ScheduleError, match=match):
        verify(schedule, on or costs(schedule.placement.num_stages))


def _without(schedule: Schedule, rank: int, op: str) -> Schedule:
    programs = list(schedule.programs)
    programs[rank] = tuple(one for one in programs[rank] if str(one) != op)
    return replace(schedule, programs=tuple(programs))


def test_an_op_whose_weights_are_elsewhere_is_refused_by_name() -> None:
    schedule = made("weipipe", 4, 2)
    _refused(
        _without(schedule, 1, "U2.0@1"),
        r"rank 1, op \d+ \(F2\.1@1\): the weights of stage 2 are not on this rank; their home is "
        "rank 2, and no visit is open",
    )


def test_visits_without_use_or_end_and_gradients_that_go_nowhere_are_refused() -> None:
    schedule = made("zero3:1", 2, 1)
    _refused(_without(schedule, 0, "A1.0"), r"rank 0, op \d+ \(BW1\.0\): no REDUCE_GRAD")
    _refused(_without(schedule, 0, "U0.1"), r"\(BW0\.0\): the weights of stage 0 are not on this")
    first = schedule.programs[0]
    begins_with_an_end = (Op(RESHARD, 1, 1), *first)
    _refused(
        replace(schedule, programs=(begins_with_an_end, schedule.programs[1])), "no visit is open"
    )
    unused = (*first, Op(UNSHARD, 1, 1))
    _refused(replace(schedule, programs=(unused, schedule.programs[1])), "no op reads the weights")


def test_gradients_that_are_kept_whole_are_reduced_once() -> None:
    each = made("zero2:1", 2, 2)
    assert each.weights is not None
    whole = replace(each, weights=replace(each.weights, sharded=Sharded.OPTIMIZER))
    _refused(whole, r"rank 0, op \d+ \(A1\.0\): whole gradients are kept here, so REDUCE_GRAD")
    verify(made("zero1:1", 2, 2), costs(2))
    # A rank alone hands its gradients to nobody.
    verify(made("zero1:1", 1, 2), costs(1))


@pytest.mark.parametrize("name", ["zero1:1", "zero2:1"])
def test_kept_parameters_are_read_behind_an_unshard_only(name: str) -> None:
    schedule = made(name, 2, 2)

    def changed(keep: Callable[[Op], bool], then: Op | None = None) -> Schedule:
        """Both programs without some of their ops, and one of them moved behind an F."""
        programs = []
        for rank, program in enumerate(schedule.programs):
            ops = [op for op in program if keep(op)]
            if then is not None:
                ops.insert(ops.index(Op(F, 0, rank, rank)) + 1, then._replace(replica=rank))
            programs.append(tuple(ops))
        return replace(schedule, programs=tuple(programs))

    match = r"rank 0, op \d+ \(F0\.0\): other homes have updated their shares of stage 0"
    _refused(changed(lambda op: op.kind != UNSHARD), match)
    _refused(changed(lambda op: op[:2] != (UNSHARD, 0)), match)
    _refused(changed(lambda op: op[:2] != (UNSHARD, 0), Op(UNSHARD, 0, 0)), match)
    # One rank has nothing to fetch.
    verify(made("zero3:1", 1, 2), costs(1))


def test_homes_alone_run_a_stages_step_each_once() -> None:
    schedule = made("weipipe", 2, 2)
    programs = list(schedule.programs)
    programs[1] = (*programs[1], Op(OpKind.STEP, 0, 0, 1))
    _refused(
        replace(schedule, programs=tuple(programs)),
        r"rank 1, op \d+ \(STEP0@1\): stage 0 has its home on rank 0, which alone runs its STEP",
    )
    both_here = replace(
        made("zero3:1", 1, 2), placement=Placement(((0,), (0,))), weights=WeightFlow(((0,),))
    )
    verify(both_here, costs(1))
    twice = (*both_here.programs[0], Op(OpKind.STEP, 0, 0, 1))
    _refused(
        replace(both_here, programs=(twice,)),
        r"rank 0, op \d+ \(STEP0\): rank 0, op \d+ \(STEP0@1\) updates stage 0 already",
    )


def two_visits_in_a_row(route: Route, rank: int) -> Schedule:
    """One stage, whose home is rank 0, and two micro-batches on one rank, each with a visit."""
    program = tuple(Op(kind, 0, j, rank) for j in range(2) for kind in (UNSHARD, F, BW, RESHARD))
    flow = WeightFlow(((0,),), weights=route, gradients=Route.CHAIN)
    programs = tuple(program if r == rank else () for r in range(2))
    return Schedule(Placement(((0,), (1,))), 2, programs, "in a row", weights=flow)


@pytest.mark.parametrize("route", [Route.STAR, Route.CHAIN])
def test_a_rank_sends_no_weights_to_itself(route: Route) -> None:
    lowered = verify(two_visits_in_a_row(route, 1), costs(1))[0]
    sent = [t[:2] for t in _ends(lowered) if t[2] == ValueKind.WEIGHTS]
    assert sent == [(0, 1)] * 2
    _refused(
        two_visits_in_a_row(route, 0),
        r"rank 0, op 0 \(U0\.0\): the home of stage 0 is this rank, .*leave the visit out",
    )


def _ends(lowered: Lowered) -> list[tuple[int, int, ValueKind]]:
    return [(t.source, t.target, t.value.kind) for t in lowered.transfers]


def test_ranks_that_call_collectives_in_different_orders_are_refused() -> None:
    schedule = made("zero3:1", 2, 1)
    first = schedule.programs[0]
    swapped = (first[1], first[0], *first[2:])
    _refused(
        replace(schedule, programs=(swapped, schedule.programs[1])),
        r"calls a collective while rank \d, op \d \(U\d\.0(@1)?\) comes there",
    )


@pytest.mark.parametrize(
    ("flow", "match"),
    [
        (WeightFlow(((0,),)), "there are homes of 1 stages, needed 2"),
        (WeightFlow(((0, 1), (2,))), "stage 1 has its home on rank 2; a home is a rank that holds"),
        (WeightFlow(((0, 1), (1, 0))), "each once and in ascending order"),
        (WeightFlow(((0,), (0,))), "its homes must be all that hold it, ranks 0, 1"),
        (WeightFlow(((0, 1),) * 2, weights=Route.STAR), "belong together"),
        (
            WeightFlow(((0, 1),) * 2, Sharded.WEIGHTS, Route.CHAIN, Route.CHAIN),
            "need one home for all",
        ),
    ],
)
def test_homes_and_routes_that_do_not_belong_together_are_refused(
    flow: WeightFlow, match: str
) -> None:
    _refused(replace(made("zero3:1", 2, 1), weights=flow), match)


def test_visits_need_a_flow_and_costs_that_know_the_parameters() -> None:
    schedule = made("zero3:1", 2, 1)
    _refused(replace(schedule, weights=None), r"rank 0, op 0 \(U0\.0\): weights stay")
    unknown = tuple(stage.replace(parameter_bytes=0) for stage in costs(2).stages)
    _refused(
        schedule,
        "do not say how many of its 3800 static bytes are parameters",
        Costs(stages=unknown),
    )
    small = tuple(stage.replace(static_bytes=PARAMETERS) for stage in costs(2).stages)
    _refused(schedule, "700 static bytes, fewer than its 700 of parameters", Costs(stages=small))


def _held_backwards(rank: int, turn: int, num_ranks: int) -> int:
    """The stage whose weights a rank holds in a backward turn of the released program.

    At commit 06cab9d (2024-10-24) it forks the backward weights from the forward buffer and sends
    them against the direction in which it computes.
    """
    return (num_ranks - 1 - rank - turn) % num_ranks


@pytest.mark.parametrize(("num_ranks", "wrong", "of"), [(3, 18, 27), (4, 24, 48), (8, 144, 192)])
def test_the_released_program_that_rotates_weights_the_wrong_way_is_refused(
    num_ranks: int, wrong: int, of: int
) -> None:
    rounds, p = 3, num_ranks
    uses = [
        (rank, turn, (p - 1 + rank - turn) % p == _held_backwards(rank, turn, p))
        for rank in range(p)
        for turn in range(p * rounds)
    ]
    assert (sum(not right for *_, right in uses), len(uses)) == (wrong, of)
    # The same rotation as a program: what is unsharded is what the rank holds during its op.
    programs = []
    at_home = 0
    for rank in range(p):
        program: list[Op] = []
        visits = [0] * p
        for j in range(rank, p * rounds, p):
            for s in range(p):
                program += _visited(visits, s, Op(F, s, j, rank), p)
            for turn, s in enumerate(reversed(range(p))):
                held = _held_backwards(rank, (turn + rank) % p, p)
                program += _visited(visits, held, Op(BW, s, j, rank), p)
                at_home += held != s and home(s, p) == rank
        programs.append(tuple(program))
    schedule = replace(made("weipipe:naive", p, rounds), programs=tuple(programs))
    # At home an op could read the weights that are kept there, which the program does not.
    visited = lower(schedule, costs(p)).visits
    assert visited is not None and len(visited.homeless) + at_home == wrong
    # Rank 1 is at home of the last stage, so the first wrong weights are those of the one before.
    first = rf"rank 1, op \d+ \(BW{p - 2}\.1@1\): the weights of stage {p - 2} are not on this"
    _refused(schedule, first)


def _visited(visits: list[int], held: int, op: Op, num_ranks: int) -> list[Op]:
    """An op while its rank holds some weights, which the next ones overwrite."""
    if home(held, num_ranks) == op.replica:
        return [op]
    visits[held] += 1
    visit = Op(UNSHARD, held, visits[held] - 1, op.replica)
    return [visit, op, visit._replace(kind=RESHARD)]


# Files


@pytest.mark.parametrize("name", ["weipipe", "zero3:1", "zero1:1"])
def test_a_plan_file_keeps_the_flow(name: str) -> None:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    schedule = generate(name, 4, 8)
    sizes = (6,) * schedule.placement.num_stages
    plan = Plan.of(profile, sizes, schedule)
    again = Plan.from_json(plan.to_json())
    assert again.schedule() == schedule and again.weights == plan.weights
    again.check()
    on = partition_costs(profile, sizes)
    assert all(isinstance(stage, StageCosts) and stage.parameter_bytes for stage in on.stages)
