"""Sums of gradients of the real size among the ranks that hold copies of a stage."""

from typing import NamedTuple

import torch

from synth.schedule.lowering.collectives import Collective
from synth.schedule.lowering.lower import Lowered

from ..execution.base.clock import OpClock
from ..execution.transport.groups import Group
from .collectives import PacedCollective, PacedCollectives, reducible_bytes


class _Working(NamedTuple):
    """A reduction in flight."""

    reduction: Collective
    started: PacedCollective


class EmulatedReducer:
    """One rank's part of all reductions, each of which takes at least the plan's time."""

    def __init__(
        self, lowered: Lowered, group: Group, clock: OpClock, collectives: PacedCollectives
    ) -> None:
        """Make the process groups; every rank calls this at the same time."""
        self._clock, self._collectives = clock, collectives
        sets = sorted({reduction.ranks for reduction in lowered.started_collectives})
        self._groups = {ranks: group.subgroup(ranks) for ranks in sets}
        self._gradients = {
            r.stage: torch.zeros(reducible_bytes(r.num_bytes), dtype=torch.uint8)
            for r in lowered.started_collectives
            if group.rank in r.ranks
        }
        self._working: list[_Working] = []

    def begin(self, *, steps: bool) -> None:
        """Begin a step; its sums begin anew."""

    def start(self, reduction: Collective) -> None:
        """Start a reduction among its ranks."""
        self._clock.ready(reduction)
        group, gradient = self._groups[reduction.ranks], self._gradients[reduction.stage]
        started = self._collectives.start(reduction, group, gradient)
        self._working.append(_Working(reduction, started))

    def finish(self) -> None:
        """Wait for all reductions."""
        self._finish(self._working)

    def finish_update(self, stage: int) -> None:
        """Wait for the reduction of a stage's update; there is none if one rank holds it."""
        self._finish([each for each in self._working if each.reduction.stage == stage])

    def _finish(self, ending: list[_Working]) -> None:
        for reduction, started in ending:
            with self._clock.wait(reduction):
                started.wait()
        self._working = [each for each in self._working if each not in ending]
