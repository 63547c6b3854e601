"""Exchanges of gradients and parameters between data-parallel ranks, and what they take."""

from collections.abc import Iterable
from dataclasses import dataclass

from synth.estimates.collectives import collective_us
from synth.estimates.device import Device
from synth.estimates.factors import Factors
from synth.estimates.layout import Layout, Sharding
from synth.estimates.memory import States
from synth.estimates.ops import ExchangeKind, GroupExchange
from synth.op_kinds import OpKind
from synth.profile.layer_profile import LayerProfile, Timing

# Share of an overlapped exchange by which compute beside it gets longer.
_EXCHANGE_SHOWN = 0.25


@dataclass(frozen=True)
class DataParallelExchanges:
    """The exchanges of the layers of a rank.

    Attributes:
        factors: what times are multiplied by.
        gradient_bytes: of an element of the gradients that are reduced: as they are kept.
    """

    device: Device
    layout: Layout
    factors: Factors
    gradient_bytes: int

    @property
    def reduction(self) -> ExchangeKind:
        """The exchange of gradients between data-parallel ranks."""
        is_whole = self.layout.sharding is Sharding.NONE
        return ExchangeKind.ALL_REDUCE if is_whole else ExchangeKind.REDUCE_SCATTER

    def reduce_us(self, layers: Iterable[States]) -> float:
        """The time in which data-parallel ranks reduce layers' gradients."""
        numbers = [(states.shared, states.experts) for states in layers]
        num_bytes = (self.gradient_bytes * sum(column) for column in zip(*numbers, strict=True))
        return self._exchange_us(self.reduction, *num_bytes)

    def gather_us(self, layers: Iterable[States]) -> float:
        """The time in which data-parallel ranks gather layers' parameters."""
        gathered = [states.gathered_bytes for states in layers]
        return self._exchange_us(
            ExchangeKind.ALL_GATHER, *(sum(column) for column in zip(*gathered, strict=True))
        )

    def _exchange_us(
        self, kind: ExchangeKind, shared_bytes: float = 0.0, expert_bytes: float = 0.0
    ) -> float:
        """The time of an exchange between data-parallel ranks.

        Experts are exchanged between the ranks that have the same ones, and all else between those
        of data and context parallelism.
        """
        layout, node = self.layout, self.device.ranks_per_node
        groups = (
            layout.group(layout.state_ranks, layout.tensor, node),
            layout.group(layout.expert_state_ranks, layout.expert_ranks, node),
        )
        calls = (
            GroupExchange(kind, num_bytes, *group)
            for num_bytes, group in zip((shared_bytes, expert_bytes), groups, strict=True)
            if num_bytes
        )
        return self.factors.values[2] * sum(collective_us(self.device, call) for call in calls)

    def beside_compute(self, layer: LayerProfile, states: States) -> LayerProfile:
        """Add FSDP's exchanges to the times of compute.

        Parameters are gathered before F and before B, and W's gradients are reduced.
        """
        gather_us = self.gather_us((states,))
        reduce_us = self.reduce_us((states,))
        beside_us = {kind: gather_us for kind in (OpKind.F, OpKind.R, OpKind.B)}
        beside_us[OpKind.W] = reduce_us
        beside_us[OpKind.BW] = gather_us + reduce_us
        times = {
            op: Timing.exactly(round(_beside(time.median_us, beside_us.get(op, 0.0)), 3))
            for op, time in layer.time_us.items()
        }
        return layer.replace(time_us=times)


def _beside(compute_us: float, exchange_us: float) -> float:
    """The time of compute with an exchange beside it, which takes memory bandwidth and kernels."""
    return max(compute_us + _EXCHANGE_SHOWN * exchange_us, exchange_us)
