"""Starts by number, against a plain simulation, op by op."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from synth.kinds import OpKind
from synth.objective import Objective
from synth.schedule.placements import placement
from synth.solve import Problem
from synth.solve.improve.list_scheduling import search
from synth.solve.instance.earliest_start import Placed
from synth.solve.instance.event_graph import NONE, Graph, StuckError
from synth.solve.instance.instance import BW, B, F, Slot, View, W
from synth.solve.instance.memory_models import certain
from synth.solve.instance.timing import Orders, Solution, timed
from tests.synth.odd_problems import odd_costs


def plain(view: View, orders: Orders) -> dict[tuple[int, OpKind, int], int]:
    """Starts of (chunk, kind, number): over all ranks again and again, until nothing moves."""
    done: dict[tuple[int, OpKind, int], int] = {}
    arrived: dict[tuple[int, OpKind, int], int] = {}
    places, free = [0] * len(orders), [0] * len(orders)
    links: dict[tuple[int, int], int] = {}
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                chunk, kind = order[places[rank]]
                same = {F: (F,), B: (B, BW), BW: (B, BW), W: (W, BW)}[kind]
                alike = [(chunk, each) for each in same]
                k = sum(before in alike for before in order[: places[rank]])
                read = (chunk, F if kind == F else B, k)
                has_input = kind in (B, BW) or (kind == F and view[chunk].above is not None)
                if has_input and read not in arrived:
                    break
                done[chunk, kind, k] = max(free[rank], arrived[read] if has_input else 0)
                free[rank] = done[chunk, kind, k] + view[chunk].duration_us[kind]
                to, lag = chunk, 0
                if kind == F and view[chunk].below is not None:
                    to, lag = view[chunk].below, view[chunk].down_us
                elif kind in (B, BW):
                    to = view[chunk].above
                    lag = view[to].up_us if to is not None else 0
                if kind != W and to is not None:
                    at = free[rank]
                    link = rank, view[to].rank
                    if link[0] != link[1]:
                        at = links[link] = max(at, links.get(link, 0)) + lag
                    arrived[to, F if kind == F and to != chunk else B, k] = at
                places[rank] += 1
                moved = True
    return done


def drafts(seed: int) -> tuple[View, list[Orders]]:
    """Orders of a random problem with slow links, some of them with BW."""
    rng = random.Random(seed)
    where = placement(rng.choice(["v", "linear"]), 3)
    costs = odd_costs(rng, where.num_stages, 3)
    view = certain(Problem(costs, where, 5, None))
    slow = tuple(
        chunk._replace(
            down_us=chunk.down_us and rng.randint(1, 40), up_us=chunk.up_us and rng.randint(1, 40)
        )
        for chunk in view.chunks
    )
    view = replace(view, chunks=slow)
    found = search(view, Objective.MAKESPAN, 3_000, seed, lambda: False)
    return view, [draft.orders for draft, _ in found]


@pytest.mark.parametrize("seed", range(12))
def test_starts_are_those_of_a_plain_simulation(seed: int) -> None:
    view, orders = drafts(seed)
    assert orders
    for order in orders:
        expected = plain(view, order)
        starts = timed(order, view).starts
        assert len(starts) == view.num_ops
        for (chunk, kind, k), at in expected.items():
            assert at == starts[chunk, Slot(B if kind == BW else kind, k)]


@pytest.mark.parametrize("seed", range(12))
def test_in_the_sequence_each_op_comes_after_what_it_needs(seed: int) -> None:
    view, orders = drafts(seed)
    idle = replace(
        view,
        chunks=tuple(
            chunk._replace(duration_us={**chunk.duration_us, F: 0, W: 0}) for chunk in view.chunks
        ),
    )
    graph = Graph(idle)
    for order in orders:
        alone = [
            [(chunk, part) for chunk, kind in o for part in ((B, W) if kind == BW else (kind,))]
            for o in order
        ]
        placed = Placed(graph, Objective.MAKESPAN, [graph.numbered(o)[0] for o in alone])
        place = placed.place
        assert sorted(placed.sequence) == list(range(view.num_ops))
        for own in placed.orders:
            assert all(place[sooner] < place[later] for sooner, later in pairwise(own))
        for op, reader in enumerate(graph.reader):
            assert reader == NONE or place[op] < place[reader]
        assert placed.value_us == placed.solution.value_us(idle, Objective.MAKESPAN)
        assert placed.solution == Solution(timed(alone, idle).starts)


def test_orders_that_wait_for_each_other_are_refused() -> None:
    view, (order, *_) = drafts(1)
    swapped = [sorted(o, key=lambda op: op[1] == F) for o in order]
    with pytest.raises(StuckError):
        timed(swapped, view)
