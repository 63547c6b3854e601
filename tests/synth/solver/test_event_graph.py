"""Starts by number, against a plain simulation, op by op."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.schedule.placements import placement
from synth.solver.improve.list_scheduling import Builder, search
from synth.solver.instance.earliest_start import EarliestStart
from synth.solver.instance.event_graph import NONE, CyclicOrders, Graph
from synth.solver.instance.instance import BW, B, F, Instance, OpIndex, W
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.instance.timing import Orders, TimedOrders, timed
from synth.solver.problem import Problem
from tests.sweep import sweep
from tests.synth.odd_problems import odd_costs


def plain(instance: Instance, orders: Orders) -> dict[tuple[int, OpKind, int], int]:
    """Starts of (stage copy, kind, number): over all ranks again and again, until nothing moves."""
    done: dict[tuple[int, OpKind, int], int] = {}
    arrived: dict[tuple[int, OpKind, int], int] = {}
    places, free = [0] * len(orders), [0] * len(orders)
    links: dict[tuple[int, int], int] = {}
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                copy, kind = order[places[rank]]
                same = {F: (F,), B: (B, BW), BW: (B, BW), W: (W, BW)}[kind]
                alike = [(copy, each) for each in same]
                k = sum(before in alike for before in order[: places[rank]])
                read = (copy, F if kind == F else B, k)
                has_input = kind in (B, BW) or (kind == F and instance[copy].above is not None)
                if has_input and read not in arrived:
                    break
                done[copy, kind, k] = max(free[rank], arrived[read] if has_input else 0)
                free[rank] = done[copy, kind, k] + instance[copy].duration_us[kind]
                to: int | None = copy
                lag = 0
                if kind == F and instance[copy].below is not None:
                    to, lag = instance[copy].below, instance[copy].down_us
                elif kind in (B, BW):
                    to = instance[copy].above
                    lag = instance[to].up_us if to is not None else 0
                if kind != W and to is not None:
                    at = free[rank]
                    link = rank, instance[to].rank
                    if link[0] != link[1]:
                        at = links[link] = max(at, links.get(link, 0)) + lag
                    arrived[to, F if kind == F and to != copy else B, k] = at
                places[rank] += 1
                moved = True
    return done


def drafts(seed: int) -> tuple[Instance, list[Orders]]:
    """Orders of a random problem with slow links, some of them with BW."""
    rng = random.Random(seed)
    where = placement(rng.choice(["v", "linear"]), 3)
    costs = odd_costs(rng, where.num_stages, 3)
    instance = relaxed_memory(Problem(costs, where, 5, None))
    slow = tuple(
        copy._replace(
            down_us=copy.down_us and rng.randint(1, 40), up_us=copy.up_us and rng.randint(1, 40)
        )
        for copy in instance.copies
    )
    instance = replace(instance, copies=slow)
    found = search(Builder(instance, Objective.MAKESPAN), 3_000, seed)
    return instance, [draft.orders for draft in found]


@pytest.mark.parametrize("seed", sweep(range(12), daily=6))
def test_starts_are_those_of_a_plain_simulation(seed: int) -> None:
    instance, orders = drafts(seed)
    assert orders
    for order in orders:
        expected = plain(instance, order)
        starts = timed(order, instance).starts
        assert len(starts) == instance.num_ops
        for (copy, kind, k), at in expected.items():
            assert at == starts[copy, OpIndex(B if kind == BW else kind, k)]


@pytest.mark.parametrize("seed", sweep(range(12), daily=6))
def test_in_the_sequence_each_op_comes_after_what_it_needs(seed: int) -> None:
    instance, orders = drafts(seed)
    idle = replace(
        instance,
        copies=tuple(
            # Of W's that end at once the order of reductions would be that of the programs.
            copy._replace(duration_us={**copy.duration_us, F: 0, W: 0}, reduce_us=0)
            for copy in instance.copies
        ),
    )
    graph = Graph(idle)
    for order in orders:
        alone = [
            [(copy, part) for copy, kind in o for part in ((B, W) if kind == BW else (kind,))]
            for o in order
        ]
        earliest_start = EarliestStart(
            graph, Objective.MAKESPAN, [graph.numbered(o)[0] for o in alone]
        )
        place = earliest_start.place
        assert sorted(earliest_start.sequence) == list(range(instance.num_ops))
        for own in earliest_start.orders:
            assert all(place[sooner] < place[later] for sooner, later in pairwise(own))
        for op, reader in enumerate(graph.reader):
            assert reader == NONE or place[op] < place[reader]
        assert earliest_start.value_us == earliest_start.timing.value_us(idle, Objective.MAKESPAN)
        assert earliest_start.timing == TimedOrders(timed(alone, idle).starts)


def test_orders_that_wait_for_each_other_are_refused() -> None:
    instance, (order, *_) = drafts(1)
    swapped = [sorted(o, key=lambda op: op[1] == F) for o in order]
    with pytest.raises(CyclicOrders):
        timed(swapped, instance)
