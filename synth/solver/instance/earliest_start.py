"""The earliest start of every op in given orders, indexed for neighbourhood searches."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from synth.objective import Objective, Spans
from synth.solver.instance.event_graph import Graph
from synth.solver.instance.instance import F, W
from synth.solver.instance.timing import TimedOrders, spans_of


class EarliestStart:
    """Start times, sequence and places of all ops, which are numbers of the event graph.

    Attributes:
        starts: by op, in microseconds.

    Raises:
        CyclicOrders: ops wait for each other.
    """

    def __init__(self, graph: Graph, objective: Objective, orders: Sequence[list[int]]) -> None:
        self.graph, self.instance, self.orders = graph, graph.instance, orders
        self.starts, self._started = graph.start(orders)
        self.spans = self._spans()
        self.value_us = objective.value_us(self.spans)

    def _spans(self) -> Spans:
        graph, copies = self.graph, range(len(self.instance))
        begins_us = [self.starts[graph.first[copy, F]] for copy in copies]
        ends_us = [self.end_us(graph.last(copy, W)) for copy in copies]
        return spans_of(self.instance, begins_us, ends_us)

    @cached_property
    def timing(self) -> TimedOrders:
        """The start times by stage copy and op."""
        return TimedOrders(dict(zip(self.graph.nodes, self.starts, strict=True)))

    @cached_property
    def sequence(self) -> list[int]:
        """All ops by start; among equal starts each op follows those that it waits for."""
        return sorted(self._started, key=self.starts.__getitem__)

    @cached_property
    def place(self) -> list[int]:
        """The place of each op in the sequence."""
        return _places([self.sequence], len(self.starts))

    @cached_property
    def index(self) -> list[int]:
        """The place of each op in its rank's order."""
        return _places(self.orders, len(self.starts))

    @cached_property
    def usage_bytes(self) -> list[list[int]]:
        """Memory usage of each rank before its first op and after each op."""
        deltas = self.graph.delta_bytes
        return [list(accumulate((deltas[op] for op in o), initial=0)) for o in self.orders]

    def end_us(self, op: int) -> int:
        """Return the end of an op."""
        return self.starts[op] + self.graph.duration_us[op]

    def origin_us(self, rank: int) -> int:
        """Return the start of a rank's first op."""
        order = self.orders[rank]
        return self.starts[order[0]] if order else 0


def _places(orders: Sequence[Sequence[int]], count: int) -> list[int]:
    places = [0] * count
    for order in orders:
        for place, op in enumerate(order):
            places[op] = place
    return places
