"""1F1B with vocabulary parallelism: the closed forms of its paper, and another simulation of it."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.error import ScheduleError
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import memory_usage, peak_bytes, static_bytes
from synth.schedule.verify import verify

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW

# By the name of the paper's algorithm, its barriers.
BARRIERS = {"1f1b-vocab:1": 2, "1f1b-vocab": 1}


class Times(NamedTuple):
    """F, B and W of a decoder stage, and S and T of the whole head."""

    forward: int
    input: int
    weight: int
    s: int
    t: int


# S and T are divided by 2, 3, 4, 6, 8 and 12 ranks.
TIMES = [
    Times(10, 10, 10, 24, 48),
    Times(10, 12, 8, 72, 24),
    Times(10, 20, 10, 240, 240),
    Times(20, 25, 15, 24, 24),
    Times(10, 10, 10, 720, 480),
]


def stage(times: Sequence[int], saved: int = 0, static: int = 0) -> Costs:
    """One stage of F, B and W."""
    forward_us, input_us, weight_us = times
    return uniform_costs(
        1,
        forward_us=forward_us,
        backward_input_us=input_us,
        backward_weight_us=weight_us,
        saved_bytes=saved,
        static_bytes=static,
    )


def costs_of(p: int, times: Times, saved: int = 1000) -> Costs:
    embedding = stage((0, 0, 0), static=7).stages
    decoder = stage(times[:3], saved, static=50).stages
    head = stage((times.s // p, times.t // p, 0), static=9).stages
    return Costs(stages=(*embedding * p, *decoder * p, *head * p))


def interval_us(p: int, times: Times) -> int:
    return times.forward + times.input + times.weight + (times.s + times.t) // p


@pytest.mark.parametrize("name", BARRIERS)
def test_a_rank_holds_as_many_micro_batches_as_the_paper_says(name: str) -> None:
    """p + 2 with algorithm 1, p + 1 with algorithm 2, and one less on each rank after the first."""
    for p, times in product((2, 3, 4, 6, 8, 12), TIMES):
        costs = costs_of(p, times)
        lowered, _ = verify(generate(name, p, 4 * p, costs=costs), costs)
        held = [(peak - 7 - 50 - 9) / 1000 for peak in peak_bytes(lowered)]
        assert held == [p - rank + BARRIERS[name] for rank in range(p)]


@pytest.mark.parametrize("name", BARRIERS)
def test_each_further_micro_batch_takes_an_interval_without_a_bubble(name: str) -> None:
    """Every rank runs F, B and W of its stage, and a p-th of the head's S and T."""
    for p, times in product((2, 3, 4, 6, 8, 12), TIMES):
        costs, interval = costs_of(p, times), interval_us(p, times)
        makespans_us = []
        for m in (3 * p, 3 * p + 1, 5 * p):
            _, line = verify(generate(name, p, m, costs=costs), costs)
            assert set(line.work_us) == {m * interval}
            makespans_us.append(line.makespan_us)
        first, next_, last = makespans_us
        assert (next_ - first, last - first) == (interval, 2 * p * interval)
        # The fill and drain of 1F1B without the head, and at most an interval for each barrier.
        decoder_us = times.forward + times.input + times.weight
        beyond_us = first - 3 * p * interval - (p - 1) * decoder_us
        assert beyond_us <= BARRIERS[name] * interval


def test_1f1b_waits_for_the_head_of_the_last_rank_and_this_does_not() -> None:
    p, m, times = 8, 64, Times(10, 10, 10, 240, 240)
    whole = stage((10, 10, 10)).stages
    last = stage((10 + 240, 10 + 240, 10)).stages
    costs = Costs(stages=(*whole * (p - 1), *last))
    usual = verify(generate("1f1b", p, m, costs=costs), costs)[1].makespan_us
    divided = costs_of(p, times)
    found = verify(generate("1f1b-vocab", p, m, costs=divided), divided)[1].makespan_us
    assert usual >= m * (30 + 480)
    assert found < (m + p) * (30 + 480 // p) + p * 30


# Another simulation of the same programs


def awaited(op: Op, p: int, barriers: int) -> Iterator[Op]:
    """The ops whose results an op needs, from the paper's figures of the passes.

    E are the embedding's parts, stages 0 to p − 1; the decoder's are p to 2p − 1; the head's S and
    T are F and BW of the rest. The first barrier is between S and what follows on all ranks, the
    second one between T and the backward of the last decoder stage.
    """
    kind, at, j, _ = op
    decoder, heads = range(p, 2 * p), range(2 * p, 3 * p)
    if kind == F and at == p:
        yield from (Op(F, each, j) for each in range(p))
    elif kind == F and at in decoder:
        yield Op(F, at - 1, j)
    elif kind == F and at in heads:
        yield Op(F, decoder[-1], j)
    elif kind == BW and at in heads:
        yield from (Op(F, each, j) for each in heads)
    elif kind == BW and at == decoder[-1]:
        yield from (Op(F if barriers == 1 else BW, each, j) for each in heads)
    elif kind == BW and at in decoder:
        yield Op(BW, at + 1, j)
    elif kind == BW:
        yield Op(BW, p, j)
    if kind == BW:
        yield Op(F, at, j)


def ends_us(schedule: Schedule, costs: Costs, link_us: int) -> dict[Op, int]:
    """When each op ends if ranks run their programs in order, and transfers wait for nothing."""
    p, found = schedule.num_ranks, dict[Op, int]()
    rank_of = schedule.placement.ranks[0]
    places, free_us = [0] * p, [0] * p
    while any(place < len(ops) for place, ops in zip(places, schedule.programs, strict=True)):
        before = sum(places)
        for rank, ops in enumerate(schedule.programs):
            if places[rank] == len(ops):
                continue
            op = ops[places[rank]]
            needs = list(awaited(op, p, schedule.vocabulary))
            if any(need not in found for need in needs):
                continue
            there = (found[need] + link_us * (rank_of[need.stage] != rank) for need in needs)
            begin_us = max(free_us[rank], max(there, default=0))
            found[op] = free_us[rank] = begin_us + costs.stages[op.stage].duration_us[op.kind]
            places[rank] += 1
        assert sum(places) > before, "the programs deadlock"
    return found


# With one barrier S hands on two values, the second one behind the first on the same link.
@pytest.mark.parametrize(("name", "link_us"), [*product(BARRIERS, [0]), ("1f1b-vocab:1", 3)])
@pytest.mark.parametrize("seed", range(8))
def test_another_simulation_has_the_same_times(name: str, link_us: int, seed: int) -> None:
    rng = random.Random(seed)
    p, m = rng.randint(2, 6), rng.randint(2, 12)
    stages = tuple(
        stage([rng.randint(link_us, 20) for _ in range(3)], rng.randint(0, 9)).stages[0]
        for _ in range(3 * p)
    )
    costs = Costs(stages=stages, links=Links(default=Link(latency_us=link_us)))
    made = replace(generate(name, p, m, costs=costs), buffering=Buffering(10**4, 10**4))
    lowered, line = verify(made, costs)
    expected = ends_us(made, costs, link_us)
    for rank, ops in enumerate(lowered.ops):
        for node, op in enumerate(ops, lowered.first_node[rank]):
            assert op.kind == OpKind.STEP or line.end_us[node] == expected[op], op


def test_what_travels_is_what_the_passes_hand_on() -> None:
    """Per micro-batch: parts of the sum, the sum's gradient, the decoder's, and the barriers."""
    p = 4
    for name, barriers in BARRIERS.items():
        costs = Costs(
            stages=tuple(
                each.replace(output_bytes=10 ** (k // p), output_gradient_bytes=7 * 10 ** (k // p))
                for k, each in enumerate(costs_of(p, TIMES[0]).stages)
            )
        )
        lowered, _ = verify(generate(name, p, 1, costs=costs), costs)
        sent = sum(one.num_bytes for one in lowered.transfers)
        others, everyone = p - 1, p * (p - 1)
        embedding = others * 1 + others * 7
        decoder = others * 10 + others * 70
        input_of_head = others * 10
        # One barrier: gradients go to the last rank (ACT), what is of the softmax to all (GRAD).
        barrier = {1: others * 100 + everyone * 700, 2: everyone * 100 + others * 700}[barriers]
        assert sent == embedding + decoder + input_of_head + barrier


@pytest.mark.parametrize("name", BARRIERS)
def test_both_readings_of_memory_agree(name: str) -> None:
    p, rng = 4, random.Random(1)
    stages = tuple(
        each.replace(
            output_bytes=rng.randint(1, 50),
            output_gradient_bytes=rng.randint(1, 50),
            input_until=B if k >= 2 * p else F,
        )
        for k, each in enumerate(costs_of(p, TIMES[1]).stages)
    )
    costs = Costs(stages=stages)
    lowered, _ = verify(generate(name, p, 9, costs=costs), costs)
    for rank, peak in enumerate(peak_bytes(lowered)):
        usage = memory_usage(lowered, rank)
        assert max(usage.highest) == peak
        # All that a micro-batch made is freed by the end.
        assert usage.after[-1] == static_bytes(lowered, rank)


# What the verifier refuses


def schedule(name: str = "1f1b-vocab", p: int = 3, m: int = 4) -> Schedule:
    return generate(name, p, m)


def refused(made: Schedule, words: str) -> None:
    costs = uniform_costs(
        made.placement.num_stages, forward_us=1, backward_input_us=1, backward_weight_us=1
    )
    with pytest.raises(ScheduleError, match=words):
        verify(made, costs)


def test_parts_are_one_on_each_rank() -> None:
    made = schedule()
    swapped = Placement(((0, 1, 2, 0, 1, 2, 0, 2, 1),))
    fine = replace(
        made,
        placement=swapped,
        programs=tuple(
            tuple(op._replace(stage={7: 8, 8: 7}.get(op.stage, op.stage)) for op in ops)
            for ops in made.programs
        ),
    )
    costs = uniform_costs(9, forward_us=1, backward_input_us=1, backward_weight_us=1)
    verify(fine, costs)  # any part of the head on any rank
    chained = schedule("interleaved:2", m=6)
    refused(replace(chained, vocabulary=1), "needs on each rank a part of the embedding")
    refused(replace(made, vocabulary=3), "1 or 2 barriers, given 3")


def test_parts_run_f_and_bw() -> None:
    made = schedule()
    apart = tuple(
        tuple(
            each
            for op in ops
            for each in (
                (op._replace(kind=B), op._replace(kind=W))
                if op.kind == BW and op.stage == 8
                else (op,)
            )
        )
        for ops in made.programs
    )
    refused(replace(made, programs=apart), r"\(B8\.0\): .*its parts F and BW alone")


def test_a_pass_that_waits_for_one_behind_it_on_another_rank_deadlocks() -> None:
    # With two barriers T of rank 0 needs S of all ranks; rank 1 runs its S only behind B, for which
    # rank 2 waits for T of rank 0.
    made = schedule("1f1b-vocab:1")
    first = list(made.programs[1])
    first.remove(Op(F, 7, 0))
    first.insert(first.index(Op(BW, 4, 0)) + 1, Op(F, 7, 0))
    first.remove(Op(BW, 7, 0))
    first.insert(first.index(Op(F, 7, 0)) + 1, Op(BW, 7, 0))
    refused(replace(made, programs=(made.programs[0], tuple(first), made.programs[2])), "deadlock")
