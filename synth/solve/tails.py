"""What each op has behind it: the longest way to the end of the makespan, or of the period."""

from collections.abc import Iterator
from itertools import pairwise

from synth.objective import Objective
from synth.solve.placed import Node, Placed
from synth.solve.view import STEP, Slot, W


class Tails:
    """The longest ways through a placed solution; for the period less when a rank's time began.

    Attributes:
        weight: how often this span counts in the objective.
        from_start_us: from the start of an op.
        behind_rank_us: from the end of a rank's last op.
        behind_chunk_us: from the end of the last W's of those stages whose gradients are reduced.
    """

    def __init__(self, placed: Placed, weight: int, *, is_period: bool) -> None:
        self.placed, self.view, self.weight = placed, placed.view, weight
        ranks = range(len(placed.orders))
        self.origins_us = [placed.origin_us(rank) if is_period else 0 for rank in ranks]
        self.behind_rank_us = [self.view.step_us(rank) - self.origins_us[rank] for rank in ranks]
        self.behind_chunk_us = self._behind_reductions()
        self.from_start_us = self._from_starts()

    def _behind_reductions(self) -> dict[Node, int]:
        tails: dict[Node, int] = {}
        for held in self.view.held:
            for place, index in enumerate(held):
                chunk = self.view[index]
                if chunk.reduce_us == 0:
                    continue
                left_us = sum(self.view[c].duration_us[STEP] for c in held[place:])
                tail = chunk.reduce_us + left_us - self.origins_us[chunk.rank]
                for copy in self.view.copies(chunk.stage):
                    last = (copy, Slot(W, self.view[copy].last))
                    tails[last] = max(tail, tails.get(last, tail))
        return tails

    def _from_starts(self) -> dict[Node, int]:
        placed = self.placed
        from_start: dict[Node, int] = {}
        following: dict[Node, Node] = {}
        for order in placed.orders:
            following.update(pairwise(order))
        nothing = -4 * placed.spans.makespan_us
        for node in reversed(placed.sequence):
            rank = self.view[node[0]].rank
            tail = self.behind_chunk_us.get(node, nothing)
            after = following.get(node)
            tail = max(tail, from_start[after] if after else self.behind_rank_us[rank])
            reader = placed.reader(node)
            if reader is not None:
                tail = max(tail, reader[1] + from_start[reader[0]])
            from_start[node] = placed.duration_us(node) + tail
        return from_start


def tails_of(placed: Placed, objective: Objective) -> Iterator[Tails]:
    """Those of each span that counts."""
    for weight, is_period in ((objective.makespans, False), (objective.periods, True)):
        if weight:
            yield Tails(placed, weight, is_period=is_period)
