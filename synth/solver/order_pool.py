"""The orders that a search knows, as solutions of its models."""

from collections.abc import Sequence
from contextlib import suppress

from synth.objective import Objective
from synth.schedule.ops import Op
from synth.solver.instance.event_graph import CyclicOrders
from synth.solver.instance.instance import Instance
from synth.solver.instance.timing import (
    Programs,
    TimedOrders,
    keeps_caps,
    shares_alike,
    split,
    timing_of,
)


def split_timing(programs: Sequence[Sequence[Op]], instance: Instance) -> TimedOrders | None:
    """Time programs with B W for each BW; None if they do not fit the instance.

    They must share micro-batches as the problem does, and keep the caps.
    """
    return (
        _in_instance(split(programs, instance), instance)
        if shares_alike(instance, programs)
        else None
    )


def _in_instance(programs: Sequence[Sequence[Op]], instance: Instance) -> TimedOrders | None:
    if keeps_caps(programs, instance):
        with suppress(CyclicOrders):
            return timing_of(programs, instance)
    return None


class OrderPool:
    """Orders found by heuristics; each may fit one memory model and not another."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._orders: list[Programs] = []
        self._num_taken = 0

    def add(self, programs: Programs) -> None:
        """Remember an order."""
        self._orders.append(programs)

    def take_new(self) -> list[Programs]:
        """Return the orders added since the last call."""
        taken = self._orders[self._num_taken :]
        self._num_taken = len(self._orders)
        return taken

    def timings(
        self, instance: Instance, best: Sequence[Sequence[Op]] | None, fusible: bool = False
    ) -> list[TimedOrders]:
        """Return the orders that keep an instance's caps, best first.

        Args:
            best: programs of the incumbent.
            fusible: with their BW too, and not only as B W.
        """
        orders: list[Sequence[Sequence[Op]]] = [*self._orders]
        if best is not None and shares_alike(instance, best):
            orders.append(best)
        split_orders = [split(order, instance) for order in orders]
        tried = [*orders, *split_orders] if fusible else split_orders
        known = [timing for order in tried if (timing := _in_instance(order, instance)) is not None]
        return sorted(known, key=lambda timing: timing.value_us(instance, self._objective))

    def hint(
        self, instance: Instance, best: Sequence[Sequence[Op]] | None, fusible: bool = False
    ) -> tuple[TimedOrders | None, int]:
        """Return the best known order and its value; else None and a value that none exceeds."""
        known = self.timings(instance, best, fusible)
        if known:
            return known[0], known[0].value_us(instance, self._objective)
        times_us = [sum(c.duration_us.values()) + c.down_us + c.up_us for c in instance.copies]
        copies = zip(times_us, instance.copies, strict=True)
        longest_us = sum(us * c.num_micro_batches + c.reduce_us for us, c in copies)
        return None, self._objective.iterations * longest_us
