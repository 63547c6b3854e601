"""A split solution whose ops are as early as their order allows, laid out for looking around in."""

from synth.objective import Objective
from synth.solve.solution import Solution
from synth.solve.view import B, F, Slot, View

Node = tuple[int, Slot]


class Placed:
    """What neighbours what.

    Attributes:
        sequence: all ops by start, each after what it needs.
        place: where in it an op stands.
        orders: the ops of each rank.
        index: where in its rank's order an op stands.
        level_bytes: of each rank before its first op and after each of them.
    """

    def __init__(self, view: View, objective: Objective, solution: Solution) -> None:
        self.view, self.solution, self.spans = view, solution, solution.spans(view)
        self.value_us = objective.value_us(self.spans)
        self.starts = solution.starts
        # The simulation places ops after what they need, and sorting keeps that among equals.
        self.sequence = sorted(self.starts, key=self.starts.__getitem__)
        self.place = {node: i for i, node in enumerate(self.sequence)}
        self.orders: list[list[Node]] = [[] for _ in view.room_bytes]
        self.index: dict[Node, int] = {}
        self.level_bytes: list[list[int]] = [[0] for _ in view.room_bytes]
        for node in self.sequence:
            chunk = view[node[0]]
            order, level = self.orders[chunk.rank], self.level_bytes[chunk.rank]
            self.index[node] = len(order)
            order.append(node)
            level.append(level[-1] + chunk.effect_bytes[node[1].kind])

    def duration_us(self, node: Node) -> int:
        """How long an op lasts."""
        return self.view[node[0]].duration_us[node[1].kind]

    def end_us(self, node: Node) -> int:
        """When an op ends."""
        return self.starts[node] + self.duration_us(node)

    def origin_us(self, rank: int) -> int:
        """When a rank begins."""
        order = self.orders[rank]
        return self.starts[order[0]] if order else 0

    def reader(self, node: Node) -> tuple[Node, int] | None:
        """The op that waits for what F or B makes, and the time of its transfer."""
        index, (kind, k) = node
        chunk = self.view[index]
        if kind == F:
            if chunk.below is None:
                return (index, Slot(B, k)), 0
            return (chunk.below, node[1]), chunk.down_us
        if kind == B and chunk.above is not None:
            return (chunk.above, node[1]), self.view[chunk.above].up_us
        return None

    def source(self, node: Node) -> tuple[Node, int] | None:
        """The op that makes what F or B reads from another chunk, and the time of its transfer."""
        index, (kind, _) = node
        chunk = self.view[index]
        if kind == F and chunk.above is not None:
            return (chunk.above, node[1]), self.view[chunk.above].down_us
        if kind == B and chunk.below is not None:
            return (chunk.below, node[1]), chunk.up_us
        return None
