"""Modulo schedules unrolled to all micro-batches, timed exactly, and offered to a search."""

from collections.abc import Iterable

from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.instance.event_graph import Graph
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import safe_memory
from synth.solver.instance.timing import Orders, ScoredPrograms, keeps_caps, number, value_us
from synth.solver.search_state import SearchState
from synth.solver.tuning import MODULO


class Unrolling:
    """Orders of all micro-batches under the safe memory model.

    Attributes:
        instance: the problem under that model, for which modulo schedules are searched.
    """

    def __init__(self, state: SearchState) -> None:
        self.state = state
        self.instance: Instance = safe_memory(state.problem, BUFFERINGS[0])

    def offer_best(self, unrolled: Iterable[Orders], found_by: str) -> None:
        """Offer the best of some orders that keep the caps, if any does and it is of use."""
        instance, objective = self.instance, self.state.problem.objective
        graph = Graph(instance)
        fitting = []
        for orders in unrolled:
            programs = tuple(number(instance, order) for order in orders)
            if keeps_caps(programs, instance):
                fitting.append(
                    ScoredPrograms(programs, value_us(orders, graph, objective), found_by)
                )
        if fitting:
            best = min(fitting, key=lambda one: one.value_us)
            if self._is_of_use(best.value_us):
                self.state.try_scored(best)

    def _is_of_use(self, value_us: int) -> bool:
        """Return True unless a short instance has found as much already."""
        if self.state.best is None or self.state.short_instance_share == 0:
            return True
        return value_us <= (1 - MODULO.least_gain) * self.state.best.value_us
