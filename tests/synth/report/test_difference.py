"""The difference between predicted and measured: each cause, injected alone, is named alone.

Measured charts are made by simulating the plan's DAG again with one thing changed.
"""

import random

import pytest

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.profile.links import Link, Links
from synth.report.explain.difference import Difference, difference_text, explain_difference
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.lowering.programs import Transfer
from synth.schedule.measured.execution_trace import (
    CommunicationSpan,
    ExecutionTrace,
    OpSpan,
    planned_execution,
)
from synth.schedule.ops import Op
from synth.schedule.simulate import Timeline, simulate
from tests.sweep import sweep

RANKS, MICRO_BATCHES = 4, 6


def plan(name: str = "1f1b") -> Lowered:
    """The last stage takes half as long again, so that once filled nothing else holds it up."""
    links = Links(default=Link(latency_us=100.0))
    costs = uniform_costs(
        RANKS, forward_us=1000, backward_input_us=1100, backward_weight_us=900, links=links
    )
    last = costs.stages[-1]
    longer = last.replace(duration_us={k: us * 3 // 2 for k, us in last.duration_us.items()})
    costs = costs.replace(stages=(*costs.stages[:-1], longer))
    return lower(generate(name, RANKS, MICRO_BATCHES), costs, synchronous_step=True)


def happening(lowered: Lowered, extra_us: dict[int, int], gap_us: dict[int, int]) -> ExecutionTrace:
    """The chart of an iteration in which nodes take longer, or start later than they could."""
    planned = simulate(lowered)
    order = sorted(
        range(len(lowered.durations_us)), key=lambda n: (planned.start_us[n], planned.end_us[n])
    )
    start, end = [0] * len(order), [0] * len(order)
    for _ in range(len(order)):  # relax until nothing changes; equal times have no order above
        changed = False
        for node in order:
            ready = max((end[before] for before in lowered.predecessors[node]), default=0)
            began = ready + gap_us.get(node, 0)
            over = began + lowered.durations_us[node] + extra_us.get(node, 0)
            changed |= (start[node], end[node]) != (began, over)
            start[node], end[node] = began, over
        if not changed:
            break
    return planned_execution(Timeline(lowered, start, end))


def random_happening(draw: random.Random, lowered: Lowered) -> ExecutionTrace:
    """The chart of an iteration in which three nodes of ten take longer, and three start later."""
    nodes = range(len(lowered.durations_us))
    extra_us = {n: draw.randrange(2000) for n in nodes if draw.random() < 0.3}
    return happening(
        lowered, extra_us, {n: draw.randrange(500) for n in nodes if draw.random() < 0.3}
    )


def explain(lowered: Lowered, *executions: ExecutionTrace, rest_us: int = 0) -> Difference:
    """The difference of the first chart; `rest_us` passes after its last op."""
    length_us = max(span.end_us for rank in executions[0].ops for span in rank)
    found = explain_difference(simulate(lowered), executions, 0, length_us + rest_us)
    assert found.total_us == pytest.approx(found.measured_us - found.predicted_us)
    return found


def pieces(found: Difference) -> dict[str, float]:
    names = ("ops", "transfers", "gaps", "norm", "jitter", "outside", "room")
    values = {name: getattr(found, f"{name}_us") for name in names}
    return {name: value for name, value in values.items() if abs(value) > 1e-6}


def nodes_of(lowered: Lowered, rank: int, kind: str) -> list[int]:
    return [
        node
        for node, op in enumerate(lowered.ops[rank], lowered.first_node[rank])
        if op.kind == kind
    ]


def test_a_run_as_planned_has_nothing_to_explain() -> None:
    lowered = plan()
    assert pieces(explain(lowered, happening(lowered, {}, {}))) == {}


def test_slow_ops_are_ops() -> None:
    # BW of the last stage is on the critical path once for every micro-batch.
    lowered = plan()
    slow = dict.fromkeys(nodes_of(lowered, RANKS - 1, "BW"), 300)
    found = explain(lowered, happening(lowered, slow, {}))
    assert pieces(found) == {"ops": 300 * MICRO_BATCHES}
    assert (found.path[0].name, found.path[0].n) == ("BW, stage 3", MICRO_BATCHES)


def test_slow_transfers_are_transfers() -> None:
    # Of act(0, j) only the first holds anything up: afterwards rank 1 has work.
    lowered = plan()
    first = lowered.first_node[-1]
    slow = {
        node: 250
        for node, transfer in enumerate(lowered.transfers, first)
        if (transfer.source, transfer.target) == (0, 1)
    }
    found = pieces(explain(lowered, happening(lowered, slow, {})))
    assert set(found) == {"transfers"}
    assert found["transfers"] == 250


@pytest.mark.parametrize(
    ("name", "slow"),
    [("weipipe", "weights, rank 0 to 1"), ("zero3:1", "all-gather of weights, stage 0")],
)
def test_with_weight_passing_transfers_and_collectives_are_named(name: str, slow: str) -> None:
    links = Links(default=Link(latency_us=5000.0))
    costs = uniform_costs(
        RANKS, forward_us=1000, backward_input_us=1100, backward_weight_us=900, links=links
    )
    lowered = lower(generate(name, RANKS, 2 * RANKS), costs)
    timeline = simulate(lowered)
    found = explain(lowered, planned_execution(timeline))
    assert found.total_us == 0
    assert slow in [part.name for part in found.path]


def test_idle_ranks_are_gaps() -> None:
    lowered = plan()
    late = dict.fromkeys(nodes_of(lowered, RANKS - 1, "BW"), 70)
    found = explain(lowered, happening(lowered, {}, late))
    assert pieces(found) == {"gaps": 70 * MICRO_BATCHES}


def test_one_slow_op_among_many_is_jitter() -> None:
    lowered = plan()
    slow = {nodes_of(lowered, RANKS - 1, "BW")[2]: 900}
    found = explain(lowered, happening(lowered, slow, {}), happening(lowered, {}, {}))
    assert pieces(found) == {"jitter": 900}


def test_waiting_before_step_is_the_norm() -> None:
    lowered = plan()
    steps = {node: 400 for rank in range(RANKS) for node in nodes_of(lowered, rank, "STEP")}
    assert pieces(explain(lowered, happening(lowered, {}, steps))) == {"norm": 400}


def test_what_is_around_the_ops_is_outside() -> None:
    lowered = plan()
    late = {nodes_of(lowered, 0, "F")[0]: 60}
    found = explain(lowered, happening(lowered, {}, late), rest_us=500)
    assert pieces(found) == {"outside": 560}


def test_a_delay_off_the_critical_path_uses_up_room_first() -> None:
    # W of the last rank has slack: of a delay of 5 ms only what is beyond it costs time.
    lowered = plan("zb-h1")
    node = nodes_of(lowered, RANKS - 1, "W")[0]
    execution = happening(lowered, {node: 5000}, {})
    found = pieces(
        explain(lowered, execution, happening(lowered, {}, {}), happening(lowered, {}, {}))
    )
    assert found["jitter"] == 5000
    assert set(found) <= {"jitter", "room"}


def test_a_transfer_that_nobody_waited_for_held_up_nobody() -> None:
    # Its end is only known to be before it was asked for; taken for true it would look slow.
    lowered = plan()
    ops, communications = happening(lowered, {}, dict.fromkeys(nodes_of(lowered, 0, "F"), 40))
    asked = {span.op: span.start_us for span in ops[1]}
    loose = [
        CommunicationSpan(communication, start, asked[op], False)
        if isinstance(communication, Transfer)
        and communication.target == 1
        and (op := next(o for o in asked if reads(o, communication)))
        and end < asked[op]
        else CommunicationSpan(communication, start, end)
        for communication, start, end, _ in communications
    ]
    assert any(not span.exact for span in loose)
    assert "transfers" not in pieces(explain(lowered, ExecutionTrace(ops, loose)))


def reads(op: Op, transfer: Transfer) -> bool:
    value = transfer.value
    kind = "F" if value.kind == "act" else "BW"
    return (op.kind, op.microbatch) == (kind, value.microbatch)


@pytest.mark.parametrize("seed", sweep(range(20), daily=10))
def test_the_pieces_add_up_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    lowered = plan(draw.choice(["1f1b", "zb-h1", "zb-2p", "gpipe"]))
    executions = [random_happening(draw, lowered) for _ in range(3)]
    explain(lowered, *executions, rest_us=draw.randrange(1000))  # asserts the sum


def test_missing_ops_and_skewed_clocks_still_add_up() -> None:
    lowered = plan()
    ops, communications = happening(lowered, {}, {})
    early = [OpSpan(op, start - 300, end - 300) for op, start, end in ops[2]]
    explain(lowered, ExecutionTrace([ops[0], ops[1][:-3], early, ops[3]], communications[::2]))


def test_the_table_says_what_each_piece_is() -> None:
    lowered = plan()
    slow = dict.fromkeys(nodes_of(lowered, RANKS - 1, "BW"), 300)
    text = difference_text(explain(lowered, happening(lowered, slow, {})))
    assert "ops, against the profile" in text
    assert "+1.800" in text
    assert "BW, stage 3" in text
