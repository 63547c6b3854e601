"""Better cuts for an order that was found: layers move across stage boundaries, the order stays.

The order is judged as it is on the cuts given; from the best of them layers move as long as that
helps, those first that leave the critical path (see `neighbours`). The next search for an order can
begin there. Orders and cuts in turn are coordinate descent: each is the best known for the other.
"""

from collections.abc import Callable, Iterable

from synth.costs.costs import Costs
from synth.plan.published.neighbours import Neighbours
from synth.plan.published.order_scores import OrderScores, Score
from synth.plan.published.variants import RecomputedLayers, Sizes, VariantCosts
from synth.plan.tuning import CUT_MOVES
from synth.schedule.model import Placement


class CutMoves:
    """The search for a better cut under one order. It is deterministic."""

    def __init__(
        self,
        order: OrderScores,
        costs: VariantCosts,
        layers: RecomputedLayers,
        should_stop: Callable[[int], bool],
    ) -> None:
        """Judge nothing yet.

        Args:
            order: with the limits and the objective.
            should_stop: told how often the order was judged; ends the search.
        """
        self.order, self.costs, self.layers, self.should_stop = order, costs, layers, should_stop
        self.scores: dict[Sizes, Score | None] = {}

    def best(self, where: Placement, sizes: Sizes, others: Iterable[Sizes]) -> Sizes:
        """Return the best cut found, on which the order fits; the given one if none is better.

        Args:
            others: more cuts to begin with.
        """
        for cut in (sizes, *others):
            if self.should_stop(self.order.num_scored):
                return self._least(sizes)
            self._score(cut)
        near, at = Neighbours(self.costs.table, where, self.costs.speeds), self._least(sizes)
        while (better := self._better(at, near)) is not None:
            at = better
        return at

    def _better(self, at: Sizes, near: Neighbours) -> Sizes | None:
        """Return the first neighbour found that is better; None without one."""
        in_vain, value_us = 0, self._value_us(at)
        for cut in near.of(at, self.order.guide(self._costs(at))):
            if in_vain == CUT_MOVES.in_vain or self.should_stop(self.order.num_scored):
                break
            in_vain += cut not in self.scores
            if self._score(cut) < value_us:
                return cut
        return None

    def _score(self, cut: Sizes) -> float:
        if cut not in self.scores:
            self.scores[cut] = self.order.score(self._costs(cut), most_excess_bytes=0)
        return self._value_us(cut)

    def _value_us(self, cut: Sizes) -> float:
        score = self.scores.get(cut)
        return float("inf") if score is None else score.value_us

    def _least(self, sizes: Sizes) -> Sizes:
        return min((sizes, *self.scores), key=self._value_us)

    def _costs(self, cut: Sizes) -> Costs:
        return self.costs.of(cut, self.layers)
