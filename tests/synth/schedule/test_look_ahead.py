"""Look-ahead: every choice that a rank may make, on small plans in every order of arrivals."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from benchmarks.look_ahead_simulation import LookAheadSimulation
from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.look_ahead import LookAhead
from synth.schedule.lowering.lower import Action, Lowered, Transfer, lower
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import looped
from synth.schedule.rank_memory import memory_usage, peak_bytes
from synth.schedule.simulate import simulate

LINKS = Links(default=Link(latency_us=40.0, bandwidth_bytes_per_s=1e9))


def costs_of(num_stages: int) -> Costs:
    return uniform_costs(
        num_stages,
        forward_us=100,
        backward_input_us=120,
        backward_weight_us=80,
        saved_bytes=1000,
        saved_w_bytes=600,
        output_bytes=70,
        gradient_bytes=500,
        links=LINKS,
    )


def lowered_family(name: str, ranks: int, micro_batches: int) -> Lowered:
    schedule = generate(name, ranks, micro_batches)
    return lower(schedule, costs_of(schedule.placement.num_stages))


def roomy(lowered: Lowered, factor: float = 2.0) -> list[int]:
    """Caps with room above every rank's peak."""
    return [round(factor * peak) for peak in peak_bytes(lowered)]


class State(NamedTuple):
    """The events so far: the instructions done on every rank, and the transfers that ended."""

    done: tuple[tuple[bool, ...], ...]
    arrived: frozenset[Transfer]


class Explorer:
    """All states that ranks can reach; each transfer ends at any time after both ends started."""

    def __init__(self, lowered: Lowered, most_ops: int, caps: Sequence[int]) -> None:
        self.lowered = lowered
        self.ranks = [LookAhead(lowered, rank, most_ops, cap) for rank, cap in enumerate(caps)]
        self.caps = caps
        self.num_early = 0
        self._orders = {
            link: [t for t in lowered.transfers if (t.source, t.target) == link]
            for link in {(t.source, t.target) for t in lowered.transfers}
        }

    def explore(self) -> set[State]:
        """Visit every reachable state.

        Raises:
            AssertionError: one of them has no successor although ops are left.
        """
        first = State(tuple((False,) * len(p) for p in self.lowered.programs), frozenset())
        seen, left = {first}, [first]
        while left:
            state = left.pop()
            found = list(self._successors(state))
            assert found or all(map(all, state.done)), "deadlock"
            for each in found:
                if each not in seen:
                    seen.add(each)
                    left.append(each)
        return seen

    def _successors(self, state: State) -> Iterator[State]:
        for transfer in self._may_end(state):
            yield State(state.done, state.arrived | {transfer})
        for rank in range(len(self.ranks)):
            if (done := self._step(rank, state)) is not None:
                yield State((*state.done[:rank], done, *state.done[rank + 1 :]), state.arrived)

    def _may_end(self, state: State) -> Iterator[Transfer]:
        """The first transfer of each link that has not ended, if both of its ends started."""
        started = {
            (instruction.action, instruction.moved)
            for program, done in zip(self.lowered.programs, state.done, strict=True)
            for instruction, is_done in zip(program, done, strict=True)
            if is_done and instruction.action in (Action.SEND, Action.RECV)
        }
        for order in self._orders.values():
            for action in (Action.SEND, Action.RECV):
                begun = [(action, transfer) in started for transfer in order]
                assert begun == sorted(begun, reverse=True), "a link's order was not kept"
            first = next((t for t in order if t not in state.arrived), None)
            if first and {(Action.SEND, first), (Action.RECV, first)} <= started:
                yield first

    def _step(self, rank: int, state: State) -> tuple[bool, ...] | None:
        """Replay a rank up to a state and let it choose; None: it waits or has ended."""
        chooser, program = self.ranks[rank], self.lowered.programs[rank]
        restore(chooser, state.done[rank])
        if chooser.head == len(program):
            return None
        index = chooser.choose(lambda place: program[place].moved in state.arrived)
        if index is None:
            self._check_awaited(rank)
            return None
        instruction = program[index]
        if instruction.action == Action.SENT and instruction.moved not in state.arrived:
            return None
        early = index != chooser.head
        if early:
            self._check_early(rank, index, state)
        chooser.highest_bytes = 0
        chooser.run(index)
        if early and instruction.action == Action.COMPUTE:
            self.num_early += 1
            for send in chooser.sends_behind(index):
                chooser.run(send)
        assert chooser.highest_bytes <= self.caps[rank]
        return tuple(chooser._done)

    def _check_awaited(self, rank: int) -> None:
        """Check that a blocked rank waits for every receive that can change its choice."""
        chooser = self.ranks[rank]
        awaited = chooser.awaited
        assert awaited and all(chooser._done[place] for place in awaited)
        assert chooser.choose(lambda place: place not in awaited) is None

    def _check_early(self, rank: int, index: int, state: State) -> None:
        """Check that an early instruction has its inputs and passes nothing that has to stay."""
        program, done = self.lowered.programs[rank], state.done[rank]
        if program[index].action == Action.COMPUTE:
            reads = self.lowered.effects.reads(program[index].compute)
            coming = {t for t in self.lowered.transfers if t.target == rank and t.value in reads}
            assert coming <= state.arrived, "an op ran before its input came"
        passed = [i for i in range(index) if not done[i] and program[i].op is not None]
        stages = {op.stage for op in self.lowered.ops[rank]}
        backward = (OpKind.B, OpKind.W, OpKind.BW)
        lasts = {
            [op for op in self.lowered.ops[rank] if op.stage == stage and op.kind in backward][-1]
            for stage in stages
        }
        for each in passed:
            op = program[each].compute
            assert op.kind != OpKind.STEP and op not in lasts, f"{op} was passed"


def restore(chooser: LookAhead, done: Sequence[bool]) -> None:
    """Bring a chooser to a state; levels and uses follow from what has run, in any order."""
    chooser.begin()
    for index, is_done in enumerate(done):
        if is_done:
            chooser.run(index)


def depth_first() -> Lowered:
    """A looped placement in which F0.1 may pass F2.0, whose act goes over the same link before.

    rank 0:  F0.0  F2.0  F0.1  F2.1  BW2.0  BW0.0  BW2.1  BW0.1
    rank 1:  F1.0  F3.0  F1.1  F3.1  BW3.0  BW1.0  BW3.1  BW1.1
    """
    programs = [
        "F0.0 F2.0 F0.1 F2.1 BW2.0 BW0.0 BW2.1 BW0.1",
        "F1.0 F3.0 F1.1 F3.1 BW3.0 BW1.0 BW3.1 BW1.1",
    ]
    ops = tuple(tuple(map(Op.parse, program.split())) for program in programs)
    return lower(Schedule(looped(2, 2), 2, ops), costs_of(4))


@pytest.mark.parametrize("most_ops", [1, 2, 4])
def test_an_early_op_does_not_send_before_its_turn(most_ops: int) -> None:
    lowered = depth_first()
    explorer = Explorer(lowered, most_ops, roomy(lowered))
    explorer.explore()
    assert explorer.num_early > 0


@pytest.mark.parametrize(
    ("family", "ranks", "micro_batches"),
    [
        *[("1f1b", 2, 3), ("zb-h1", 2, 3), ("1f1b", 3, 2), ("zb-v", 2, 2)],
        *[("gpipe", 2, 3), ("interleaved", 2, 2), ("chimera", 2, 2)],
    ],
)
@pytest.mark.parametrize("most_ops", [1, 3])
def test_no_order_of_arrivals_deadlocks_or_exceeds_a_cap(
    family: str, ranks: int, micro_batches: int, most_ops: int
) -> None:
    lowered = lowered_family(family, ranks, micro_batches)
    explorer = Explorer(lowered, most_ops, roomy(lowered))
    assert len(explorer.explore()) > 200
    if family in ("1f1b", "zb-v", "gpipe"):
        assert explorer.num_early > 0


def jittered(
    lowered: Lowered, seed: int, spread: float, most_ops: int, caps: Sequence[int] | None
) -> LookAheadSimulation:
    """A simulation with random durations; transfers vary most."""
    draw = random.Random(seed)
    stages = lowered.costs.stages
    op_us = {
        op: stages[op.stage].duration_us[op.kind] * draw.lognormvariate(0, spread)
        for ops in lowered.ops
        for op in ops
    }
    transfer_us = {
        transfer: transfer.duration_us * draw.lognormvariate(0, 5 * spread)
        for transfer in lowered.transfers
    }
    return LookAheadSimulation(
        lowered, most_ops, caps, lambda rank, op: op_us[op], transfer_us.__getitem__
    )


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "zb-v", "interleaved", "gpipe"])
def test_without_look_ahead_a_rank_replays_its_plan_in_the_simulated_time(family: str) -> None:
    lowered = lowered_family(family, 4, 8)
    simulation = jittered(lowered, 0, 0.0, 0, None)
    assert simulation.run() == simulate(lowered).makespan_us
    for rank, found in enumerate(simulation.ranks):
        assert found.num_early == 0
        assert found.highest_bytes == peak_bytes(lowered)[rank]


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "zb-h2", "zb-v", "interleaved"])
@pytest.mark.parametrize("room", [1.0, 1.5])
def test_random_delays_neither_deadlock_nor_exceed_a_cap(family: str, room: float) -> None:
    lowered = lowered_family(family, 4, 8)
    caps = roomy(lowered, room)
    num_early = 0
    for seed in range(6):
        simulation = jittered(lowered, seed, 0.4, 1 + seed, caps)
        order = recorded(simulation)
        simulation.run()
        for rank, chooser in enumerate(simulation.ranks):
            num_early += chooser.num_early
            assert chooser.highest_bytes <= caps[rank]
            assert chooser.level_bytes == memory_usage(lowered, rank).static_bytes
            assert sorted(order[rank]) == sorted(lowered.ops[rank])
            for kind, stage in {(op.kind, op.stage) for op in order[rank]}:
                of_kind = [op for op in order[rank] if (op.kind, op.stage) == (kind, stage)]
                planned = [op for op in lowered.ops[rank] if (op.kind, op.stage) == (kind, stage)]
                assert of_kind == planned
    assert num_early > 0 or room == 1.0


def recorded(simulation: LookAheadSimulation) -> list[list[Op]]:
    """Lists that are filled with each rank's ops in the order in which they run."""
    found: list[list[Op]] = [[] for _ in simulation.ranks]
    inner = simulation._op_us

    def op_us(rank: int, op: Op) -> float:
        found[rank].append(op)
        return inner(rank, op)

    simulation._op_us = op_us
    return found


def hand_made(cap_bytes: int | None, most_ops: int) -> LookAheadSimulation:
    """Rank 0 waits for grad(0, 0), which is late; F0.1 could run meanwhile.

    rank 0:  F0.0  BW0.0  F0.1  BW0.1      a saved activation has 1000 bytes, an output 70
    rank 1:  F1.0  BW1.0  F1.1  BW1.1
    """
    orders = [["F0.0", "BW0.0", "F0.1", "BW0.1"], ["F1.0", "BW1.0", "F1.1", "BW1.1"]]
    schedule = Schedule.linear("by hand", 2, [map(Op.parse, order) for order in orders])
    lowered = lower(schedule, costs_of(2))
    caps = None if cap_bytes is None else [cap_bytes, cap_bytes]
    return jittered(lowered, 0, 0.0, most_ops, caps)


def test_a_forward_runs_while_a_gradient_is_late_if_memory_allows() -> None:
    # In order: F 100, act 40, F1 100, BW1 200, grad 40, BW 200: 680 per micro-batch.
    strict = hand_made(None, 0)
    assert strict.run() == 2 * 680
    # Early: F0.1 ends at 200, its act comes at 240, and waits for BW1.0, which ends at 440. Then
    # F1.1 and BW1.1 until 740, its grad at 780, and BW0.1 until 980.
    early = hand_made(10_000, 1)
    assert early.run() == 980
    assert early.ranks[0].num_early == 1
    # The plan's own peak has no room for a second micro-batch.
    planned = hand_made(None, 1)
    assert planned.run() == 2 * 680
    assert planned.ranks[0].num_early == 0


@pytest.mark.parametrize(("cap_bytes", "num_early"), [(2210, 1), (2209, 0)])
def test_the_cap_is_exact(cap_bytes: int, num_early: int) -> None:
    """After F0.0: a receive buffer 70, its output 70, its saved activation 1000; F0.1 adds 1070."""
    found = hand_made(cap_bytes, 1)
    found.run()
    assert found.ranks[0].num_early == num_early
    assert found.ranks[0].highest_bytes <= cap_bytes


def test_an_op_does_not_pass_one_of_its_kind_and_stage() -> None:
    """Whatever is said to have arrived; links of one sender would never say so."""
    lowered = lowered_family("gpipe", 2, 4)
    chooser, program = LookAhead(lowered, 1, 4, 10**9), lowered.programs[1]
    while program[chooser.head].action != Action.COMPUTE:
        chooser.run(chooser.head)
    assert program[chooser.head].compute.microbatch == 0

    def has_arrived(place: int) -> bool:
        return program[place].moved.value.microbatch != 0

    while (index := chooser.choose(has_arrived)) is not None:
        assert program[index].action == Action.RECV
        chooser.run(index)


def test_nothing_passes_the_last_backward_of_a_stage() -> None:
    lowered = lowered_family("zb-h1", 2, 2)
    chooser = LookAhead(lowered, 0, 9, 10**9)
    program = lowered.programs[0]
    last = max(
        place
        for place, instruction in enumerate(program)
        if instruction.action == Action.COMPUTE and instruction.compute.kind == OpKind.W
    )
    while chooser.head < last:
        chooser.run(chooser.head)
    assert chooser.choose(lambda place: True) == last
    assert chooser.awaited == set()


@pytest.mark.parametrize(
    ("most_ops", "cap_bytes", "words"),
    [(-1, None, "look-ahead of -1 ops"), (1, 10, "on rank 0, the limit is 10")],
)
def test_wrong_bounds_are_explained(most_ops: int, cap_bytes: int | None, words: str) -> None:
    with pytest.raises(SynthError, match=words):
        LookAhead(lowered_family("1f1b", 2, 2), 0, most_ops, cap_bytes)


@pytest.mark.parametrize("family", ["zero3:1", "2bw"])
def test_schedules_that_pass_or_update_weights_within_are_refused(family: str) -> None:
    with pytest.raises(SynthError, match="needs weights that stay"):
        LookAhead(lowered_family(family, 2, 4), 0, 1)
