"""Stages with weight passing on an emulated device: buffers of the real sizes.

    homes      rank          weights          gradients
    one        home          allocated        counted
    one        another       –                –
    one        its host      –                –
    n          ZeRO-3        counted          counted
    n          ZeRO-2        allocated        counted
    n          ZeRO-1        allocated        allocated

Allocated is what is sent or reduced in place. The buffers of visits and sums are allocated where
the program says. Nothing is computed with them.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from synth.costs.stage_costs import StageCosts
from synth.schedule.lowering.collectives import Collective
from synth.schedule.lowering.lower import Lowered
from synth.schedule.weight_flow import Sharded

from ..execution.base.boundary import Tensors
from ..execution.transport.groups import Group
from ..execution.weights.flat_layout import FlatLayout, ParameterLayout
from ..execution.weights.kept_protocol import StartedCollective
from .collectives import PacedCollectives, reducible_bytes

_CPU = torch.device("cpu")


class _Bytes(FlatLayout):
    """One buffer of bytes, which is never touched, so that the system commits no memory for it."""

    @classmethod
    def of(cls, num_bytes: int) -> "_Bytes":
        return cls((torch.uint8,), (reducible_bytes(num_bytes),), ())

    def sums(self, device: torch.device) -> Tensors:
        return self.empty(device)


class EmulatedWeights:
    """Implements `WeightsProtocol`: ops read and add to nothing."""

    def __init__(self, costs: StageCosts, *, stay: bool) -> None:
        """Make the buffers that stay, if they do."""
        self.layout = ParameterLayout(
            _Bytes.of(costs.parameter_bytes), _Bytes.of(costs.gradient_bytes)
        )
        self.kept: Tensors | None = self.layout.weights.empty(_CPU) if stay else None
        self.trained: Sequence[Tensor] = ()

    def attached(self, buffers: Tensors, *, saving: bool) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def in_backward(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def accumulating(
        self, buffers: Tensors, *, stand_ins: bool = False
    ) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def capture_gradients(self, found: dict[int, Tensor]) -> AbstractContextManager[None]:
        """Do nothing: B leaves no gradients."""
        return nullcontext()


class EmulatedKept:
    """Implements `KeptProtocol` for one stage of a rank."""

    def __init__(
        self, lowered: Lowered, stage: int, rank: int, group: Any, collectives: PacedCollectives
    ) -> None:
        """Make what is kept of a stage.

        Args:
            lowered: a schedule with weight passing.
            group: of the stage's homes; None: there is only one.
            collectives: starts those of this rank.
        """
        flow = lowered.schedule.weights
        assert flow is not None
        self._group, self._collectives = group, collectives
        stay = flow.keeps_all(stage, rank) or flow.sharded != Sharded.WEIGHTS
        self.weights = EmulatedWeights(lowered.costs.stages[stage], stay=stay)
        is_whole = group is not None and flow.sharded == Sharded.OPTIMIZER
        self.shared_host = None
        self.totals = self.weights.layout.gradients.empty(_CPU) if is_whole else None

    def begin(self) -> None:
        """Do nothing: a step needs no preparation."""

    def synchronize(self) -> None:
        """Do nothing: the emulated link to the host only takes its time."""

    def start_all_gather(self, collective: Collective) -> StartedCollective:
        """Start gathering weights, into the buffers that stay or into those of a visit."""
        kept = self.weights.kept
        buffers = self.weights.layout.weights.empty(_CPU) if kept is None else kept
        return self._start(collective, buffers)

    def start_reduce_scatter(self, collective: Collective, sums: Tensors) -> StartedCollective:
        """Start adding up the sums."""
        return self._start(collective, sums)

    def add(self, sums: Tensors) -> None:
        """Do nothing: STEP uses no gradient."""

    def add_from_below(self, total: Tensors, sums: Tensors) -> None:
        """Do nothing: REDUCE_GRAD takes no time in the plan."""

    def add_arrived(self) -> None:
        """Do nothing: the executor has waited for the sums that left for the host."""

    def leave_out_unused(self) -> None:
        """Do nothing: there are no gradients."""

    def clear_other_shares(self) -> None:
        """Do nothing: there are no gradients."""

    def _start(self, collective: Collective, buffers: Tensors) -> StartedCollective:
        if self._group is None:
            return StartedCollective(buffers, ())
        return StartedCollective(
            buffers, (self._collectives.start(collective, self._group, buffers[0]),)
        )


def keep_emulated(
    lowered: Lowered, group: Group, collectives: PacedCollectives
) -> dict[int, EmulatedKept] | None:
    """Keep the stages of a rank, by number; every rank calls this at the same time.

    Returns:
        None if weights stay where they are.
    """
    flow = lowered.schedule.weights
    if flow is None:
        return None
    groups = {
        homes: group.subgroup(homes, purpose="weights")
        for homes in sorted(set(flow.homes))
        if len(homes) > 1
    }
    held = sorted({stage for stage, _ in lowered.schedule.placement.held[group.rank]})
    return {
        stage: EmulatedKept(lowered, stage, group.rank, groups.get(flow.homes[stage]), collectives)
        for stage in held
    }
