"""Weights that go by a tree (TawPipe): bytes between nodes, memory, time, refusals."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.errors import SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links, NodeLink
from synth.schedule.error import ScheduleError
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.lowering.weight_tree import staging_rank
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import ValueKind
from synth.schedule.rank_memory import memory_usage, peak_bytes, static_bytes
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Route, WeightFlow
from tests.synth.replayed_programs import check_start_times
from tests.synth.schedule.test_weight_flow import GRADIENT, OPTIMIZER, PARAMETERS, costs

SIZES = [(2, 2, 1), (4, 2, 3), (8, 2, 2), (6, 3, 2), (8, 4, 3)]  # ranks, nodes, rounds


def made(num_ranks: int, nodes: int, rounds: int, *, ahead: int = 1) -> Schedule:
    return generate(f"tawpipe:nodes={nodes},ahead={ahead}", num_ranks, num_ranks * rounds)


def between_nodes(lowered: Lowered, nodes: int) -> int:
    """The bytes of transfers and ring collectives that leave a node."""
    size = lowered.num_ranks // nodes
    sent = sum(t.num_bytes for t in lowered.transfers if t.source // size != t.target // size)
    # In a ring each of the n links carries (n − 1) shares of an n-th.
    for one in lowered.collectives:
        ring = zip(one.ranks, (*one.ranks[1:], one.ranks[0]), strict=True)
        slow = sum(a // size != b // size for a, b in ring)
        sent += slow * one.sent_bytes // len(one.ranks)
    return sent


@pytest.mark.parametrize(("num_ranks", "nodes"), [(2, 1), (2, 2), (3, 3), (4, 2), (6, 2)])
def test_any_look_ahead_below_the_number_of_ranks_is_valid(num_ranks: int, nodes: int) -> None:
    for ahead in range(num_ranks):
        verify(made(num_ranks, nodes, 3, ahead=ahead), costs(num_ranks))
    for ahead in (num_ranks, 2 * num_ranks):
        with pytest.raises(SynthError, match=f"given ahead={ahead} and {num_ranks} ranks"):
            made(num_ranks, nodes, 3, ahead=ahead)
        # With one micro-batch on each rank there is no next backward.
        verify(made(num_ranks, nodes, 1, ahead=ahead), costs(num_ranks))


def test_a_single_rank_is_its_own_home() -> None:
    for ahead in (0, 1, 3):
        verify(made(1, 1, 2, ahead=ahead), costs(1))


# Bytes


@pytest.mark.parametrize(("num_ranks", "nodes", "rounds"), SIZES)
def test_weights_and_gradients_cross_once_to_and_from_each_other_node(
    num_ranks: int, nodes: int, rounds: int
) -> None:
    p, others = num_ranks, nodes - 1
    lowered = verify(made(p, nodes, rounds), costs(p))[0]
    # Two visits of a stage in a round; the last stage has one, the first shares one with the next.
    visits = rounds * (2 * p - 2) + 1
    assert between_nodes(lowered, nodes) == others * (visits * PARAMETERS + rounds * p * GRADIENT)
    # Within nodes every rank but those that have it already gets each visit, and hands on its sum.
    within = p - nodes
    sent = sum(t.num_bytes for t in lowered.transfers) - between_nodes(lowered, nodes)
    assert sent == within * (visits * PARAMETERS + rounds * p * GRADIENT)


@pytest.mark.parametrize(("num_ranks", "nodes", "rounds"), SIZES)
def test_a_ring_crosses_each_boundary_and_a_collective_too(
    num_ranks: int, nodes: int, rounds: int
) -> None:
    p, size, turns = num_ranks, num_ranks // nodes, rounds * nodes
    ring = lower(generate("weipipe:naive", p, p * rounds), costs(p))
    # Chains of weights, for F and for BW: a hop to the next micro-batch's rank, but where that is
    # the home; first from homes in other nodes to rank 0. Sums: the same way, at last to the home.
    chains = 2 * ((p - 1) * (turns - 1) + p - size)
    assert (
        between_nodes(ring, nodes) == chains * PARAMETERS + (p * (turns - 1) + p - size) * GRADIENT
    )
    gathered = lower(generate("zero3:1", p, p * rounds), costs(p))
    links = nodes * (p - 1)
    assert between_nodes(gathered, nodes) == pytest.approx(
        rounds * links * ((2 * p - 1) * PARAMETERS + p * GRADIENT) / p, abs=links * p * rounds * 3
    )
    tree = between_nodes(lower(made(p, nodes, rounds), costs(p)), nodes)
    assert tree <= min(between_nodes(ring, nodes), between_nodes(gathered, nodes))


def test_neighbouring_stages_are_at_home_in_different_nodes() -> None:
    # The map of the paper: W_{(D i + k) mod P} is on the i-th rank of node k.
    flow = made(8, 2, 1).weights
    assert flow is not None
    assert flow.homes == ((0,), (4,), (1,), (5,), (2,), (6,), (3,), (7,))
    assert [staging_rank(flow, 2, rank) for rank in range(8)] == [1] * 4 + [5] * 4


# Memory


def weights_held(lowered: Lowered, rank: int) -> int:
    """The most buffers of weights that a rank has at once."""
    held = most = 0
    for one in lowered.programs[rank]:
        if one.transfer is not None and one.action == "RECV":
            held += one.transfer.value.kind == ValueKind.WEIGHTS
        most = max(most, held)
        held -= sum(value.kind == ValueKind.WEIGHTS for value in one.frees)
    return most


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_rank_has_a_buffer_of_weights_for_each_stage_ahead_and_one_to_hand_on(
    ahead: int,
) -> None:
    # The paper's table has M_W, where WeiPipe needs 2 M_W, as its turns have a stage each way.
    unbuffered = replace(made(8, 2, 2, ahead=ahead), buffering=Buffering(0, 0))
    lowered = lower(unbuffered, costs(8))
    assert max(weights_held(lowered, rank) for rank in range(8)) == 2 + ahead
    # With nodes of one rank nobody hands weights on.
    alone = replace(made(4, 4, 2, ahead=ahead), buffering=Buffering(0, 0))
    assert max(weights_held(lower(alone, costs(4)), rank) for rank in range(4)) == 1 + ahead


def test_the_peak_is_in_the_last_stages_backward() -> None:
    # Rank 0 of two nodes keeps stage 0: F0 U1 F1 BW1 D1 A1 BW0 A0. In BW1 there are the weights and
    # the gradient of stage 1, the saved activations of both stages and the boundary between them.
    lowered = lower(made(2, 2, 1, ahead=0), costs(2))
    whole = PARAMETERS + GRADIENT + OPTIMIZER
    assert static_bytes(lowered, 0) == static_bytes(lowered, 1) == whole
    assert " ".join(map(str, lowered.ops[0])) == "F0.0 U1.0 F1.0 BW1.0 D1.0 A1.0 BW0.0 A0.0 STEP0"
    usage = memory_usage(lowered, 0)
    at = {str(one): high for one, high in zip(lowered.programs[0], usage.highest, strict=True)}
    assert at["BW1.0"] == usage.peak_bytes == whole + PARAMETERS + GRADIENT + 2 * 1000 + 10


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_peaks_and_times_are_those_of_the_programs(seed: int) -> None:
    rng = random.Random(seed)
    p, nodes, rounds = rng.choice(SIZES)
    schedule = replace(
        made(p, nodes, rounds, ahead=rng.randint(0, 3)),
        buffering=Buffering(rng.randint(0, 3), rng.randint(0, 20)),
    )
    node = NodeLink(ranks_per_node=p // nodes, latency_us=rng.choice([0, 30, 300]))
    lowered = lower(schedule, costs(p, links=Links(nodes=(node,))))
    by_program = [memory_usage(lowered, rank) for rank in range(p)]
    assert peak_bytes(lowered) == tuple(usage.peak_bytes for usage in by_program)
    assert [usage.after[-1] for usage in by_program] == [
        static_bytes(lowered, rank) for rank in range(p)
    ]
    check_start_times(lowered)


# Time


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_over_free_links_there_is_no_bubble(ahead: int) -> None:
    for p, nodes, rounds in SIZES:
        timeline = verify(made(p, nodes, rounds, ahead=ahead), costs(p))[1]
        assert timeline.makespan_us == rounds * p * 300


def test_on_slow_links_between_nodes_the_tree_beats_ring_and_collective() -> None:
    # A stage takes 0.1 ms forward, its weights 0.14 ms between nodes and 7 µs inside them.
    links = Links(
        default=Link(bandwidth_bytes_per_s=1e8),
        nodes=(NodeLink(ranks_per_node=4, bandwidth_bytes_per_s=5e6),),
    )
    us = {
        name: verify(generate(name, 8, 32), costs(8, links=links))[1].makespan_us
        for name in ("tawpipe", "weipipe", "weipipe:naive", "zero3:1")
    }
    assert us["tawpipe"] < 0.95 * min(us["weipipe"], us["weipipe:naive"], us["zero3:1"])


# Schedules that are refused


def refused(schedule: Schedule, match: str) -> None:
    with pytest.raises(ScheduleError, match=match):
        verify(schedule, costs(schedule.placement.num_stages))


def test_a_gradient_that_no_rank_above_takes_is_refused() -> None:
    schedule = made(4, 2, 1)

    def without(rank: int, kind: OpKind, stage: int) -> Schedule:
        programs = list(schedule.programs)
        programs[rank] = tuple(op for op in programs[rank] if op[:2] != (kind, stage))
        return replace(schedule, programs=tuple(programs))

    # Stage 0 is at home on rank 0; rank 2 is the staging rank of the other node.
    refused(without(2, OpKind.REDUCE_GRAD, 0), r"\(BW0\.2@2\): no REDUCE_GRAD \(A\) follows")
    other_number = without(2, OpKind.REDUCE_GRAD, 0)
    late = other_number.programs[2][-1]._replace(stage=0, microbatch=1)
    programs = (*other_number.programs[:2], (*other_number.programs[2], late))
    refused(
        replace(other_number, programs=(*programs, other_number.programs[3])),
        r"rank \d, op \d+ \(A0\.\d@\d\) hands its gradient to rank \d, which has no REDUCE_GRAD",
    )
    refused(without(3, OpKind.UNSHARD, 0), r"\(F0\.3@3\): the weights of stage 0 are not on this")


@pytest.mark.parametrize(
    ("flow", "match"),
    [
        (WeightFlow(((0,),) * 4, weights=Route.TREE, gradients=Route.TREE), "is not given"),
        (WeightFlow(((0,),) * 4, weights=Route.TREE, gradients=Route.CHAIN), "a tree is for both"),
        (
            WeightFlow(((0,),) * 4, weights=Route.TREE, gradients=Route.TREE, ranks_per_node=3),
            "nodes of 3 ranks do not divide 4 ranks",
        ),
    ],
)
def test_a_tree_needs_nodes_of_as_many_ranks_each(flow: WeightFlow, match: str) -> None:
    refused(replace(made(4, 2, 1), weights=flow), match)


def test_a_tree_needs_every_stage_on_every_rank() -> None:
    flow = WeightFlow(((0,),), weights=Route.TREE, gradients=Route.TREE, ranks_per_node=1)
    one = Schedule(Placement(((0,), (0,))), 1, ((), ()), weights=flow)
    refused(replace(one, placement=Placement(((0,), (1,), (1,)))), "need one copy of each stage")
    with pytest.raises(SynthError, match="given 6 ranks in 4 nodes"):
        generate("tawpipe:nodes=4", 6, 6)
