"""The tail of each op: the longest path from it to the end of the makespan, or of the period."""

from collections.abc import Iterator

from synth.objective import Objective
from synth.solver.instance.earliest_start import EarliestStart
from synth.solver.instance.event_graph import NONE
from synth.solver.instance.instance import STEP, W


class Tails:
    """The longest paths through an order, for the period less the start of the rank's time.

    Attributes:
        weight: the weight of this span in the objective.
        from_start_us: by op, from its start.
        behind_rank_us: by rank, from the end of its last op.
        behind_copy_us: from the end of the last W's of stages whose gradients are reduced.
    """

    def __init__(self, earliest_start: EarliestStart, weight: int, *, is_period: bool) -> None:
        self.earliest_start, self.instance, self.weight = (
            earliest_start,
            earliest_start.instance,
            weight,
        )
        ranks = range(len(earliest_start.orders))
        self.origins_us = [earliest_start.origin_us(rank) if is_period else 0 for rank in ranks]
        self.behind_rank_us = [
            self.instance.step_us(rank) - self.origins_us[rank] for rank in ranks
        ]
        self.behind_copy_us = self._behind_reductions()
        self.from_start_us = self._from_starts()

    def _behind_reductions(self) -> dict[int, int]:
        tails: dict[int, int] = {}
        for held in self.instance.held:
            for place, index in enumerate(held):
                copy = self.instance[index]
                if copy.reduce_us == 0:
                    continue
                left_us = sum(self.instance[c].duration_us[STEP] for c in held[place:])
                tail = copy.reduce_us + left_us - self.origins_us[copy.rank]
                for other in self.instance.copies_of(copy.stage):
                    last = self.earliest_start.graph.last(other, W)
                    tails[last] = max(tail, tails.get(last, tail))
        return tails

    def _from_starts(self) -> list[int]:
        """Go from the last op to the first: the rest of its rank, or the op that waits for it."""
        graph = self.earliest_start.graph
        durations, readers, lags_us, ranks = (
            graph.duration_us,
            graph.reader,
            graph.lag_us,
            graph.rank,
        )
        behind_us = self.behind_rank_us.copy()
        from_start = [0] * len(durations)
        for op in reversed(self.earliest_start.sequence):
            rank = ranks[op]
            tail = behind_us[rank]
            if op in self.behind_copy_us:
                tail = max(tail, self.behind_copy_us[op])
            reader = readers[op]
            if reader != NONE and (way := lags_us[op] + from_start[reader]) > tail:
                tail = way
            from_start[op] = behind_us[rank] = tail + durations[op]
        return from_start


def tails_of(earliest_start: EarliestStart, objective: Objective) -> Iterator[Tails]:
    """Yield the tails of each span that counts."""
    for weight, is_period in ((objective.makespans, False), (objective.periods, True)):
        if weight:
            yield Tails(earliest_start, weight, is_period=is_period)
