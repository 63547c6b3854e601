"""The orders that a search knows, as solutions of its models: where they start from."""

from collections.abc import Sequence
from contextlib import suppress

from synth.objective import Objective
from synth.schedule.ops import Op
from synth.solve.instance.event_graph import StuckError
from synth.solve.instance.instance import View
from synth.solve.instance.timing import (
    Programs,
    Solution,
    keeps_caps,
    shares_alike,
    solution_of,
    split,
)


def split_solution(programs: Sequence[Sequence[Op]], view: View) -> Solution | None:
    """Programs with B W for each BW, if they share micro-batches alike and keep the caps."""
    return _in_view(split(programs, view), view) if shares_alike(view, programs) else None


def _in_view(programs: Sequence[Sequence[Op]], view: View) -> Solution | None:
    if keeps_caps(programs, view):
        with suppress(StuckError):
            return solution_of(programs, view)
    return None


class KnownOrders:
    """Drafts of the heuristics; each may fit in one view of memory and not in another."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._drafts: list[Programs] = []
        self._num_taken = 0

    def add(self, programs: Programs) -> None:
        """Remember an order."""
        self._drafts.append(programs)

    def taken(self) -> list[Programs]:
        """The orders that were added since this was last asked."""
        taken = self._drafts[self._num_taken :]
        self._num_taken = len(self._drafts)
        return taken

    def solutions(
        self, view: View, best: Sequence[Sequence[Op]] | None, fusible: bool = False
    ) -> list[Solution]:
        """All that keep a view's caps, best first.

        Args:
            best: the programs of the incumbent.
            fusible: with BW where they have it, and else only as B W.
        """
        orders: list[Sequence[Sequence[Op]]] = [*self._drafts]
        if best is not None and shares_alike(view, best):
            orders.append(best)
        divided = [split(order, view) for order in orders]
        tried = [*orders, *divided] if fusible else divided
        known = [solution for order in tried if (solution := _in_view(order, view)) is not None]
        return sorted(known, key=lambda solution: solution.value_us(view, self._objective))

    def hint(
        self, view: View, best: Sequence[Sequence[Op]] | None, fusible: bool = False
    ) -> tuple[Solution | None, int]:
        """The best one with its value there; else no solution, and a value that none exceeds."""
        known = self.solutions(view, best, fusible)
        if known:
            return known[0], known[0].value_us(view, self._objective)
        times_us = [sum(c.duration_us.values()) + c.down_us + c.up_us for c in view.chunks]
        chunks = zip(times_us, view.chunks, strict=True)
        longest_us = sum(us * c.num_micro_batches + c.reduce_us for us, c in chunks)
        return None, self._objective.iterations * longest_us
