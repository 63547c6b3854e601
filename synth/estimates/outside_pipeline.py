"""The parts of a training step outside of the pipeline: exchanges of state, and the optimizer.

Where the reduction of gradients runs beside compute, it is part of the pipeline: the estimate has
its time by layer (`LayerProfile.reduce_us`), and the simulator and the solver place it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.estimates.collectives import collective_us
from synth.estimates.estimated_profile import Estimator
from synth.estimates.layout import Sharding
from synth.estimates.memory import States
from synth.estimates.ops import ExchangeKind, GroupExchange
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.schedule.model import Placement

# Of overlapped gathering: the share that is seen all the same, as the first bucket.
_SHOWN = 0.1


class OutsideTimes(NamedTuple):
    """Microseconds of a step beside forwards and backwards.

    Attributes:
        reduce_us: the reduction of gradients that are not reduced beside compute.
        gather_us: what is seen of the gathering of parameters.
        step_us: the optimizer, with which the simulated schedules of pipelines end.
    """

    reduce_us: float
    gather_us: float
    step_us: float

    @property
    def data_us(self) -> float:
        """Both exchanges, one after the other."""
        return self.reduce_us + self.gather_us


@dataclass(frozen=True)
class OutsidePipeline:
    """The work of a training step outside of its forwards and backwards.

    Attributes:
        estimator: model, device, layout, program and factors.
    """

    estimator: Estimator
    ranks: int

    def times(self, profile: Profile, held: Sequence[Sequence[int]]) -> OutsideTimes:
        """The times of the ranks where both exchanges, and the optimizer, are longest.

        Args:
            profile: the estimator's.
            held: by rank, the places of its layers.
        """
        reduce_us, gather_us = max((self._data_of(profile, places) for places in held), key=sum)
        step_us = max(update_us(profile, places) for places in held)
        return OutsideTimes(reduce_us + self._tied_us(held), gather_us, step_us)

    def least(self, profile: Profile) -> OutsideTimes:
        """Lower bounds over all partitions and placements: the mean of the ranks.

        An exchange takes no more than its parts one after another, and what is seen of it is convex
        in its time and that of compute, so the rank where most is seen has no less than the mean.
        """
        every = range(len(profile.layers))
        share = 1 / self.ranks
        return OutsideTimes(
            *self._data_of(profile, every, share), share * update_us(profile, every)
        )

    def _tied_us(self, held: Sequence[Sequence[int]]) -> float:
        """The sum of the gradients of a tied matrix that two ranks have."""
        estimator = self.estimator
        shape, device = estimator.shape, estimator.device
        last = max(place for places in held for place in places)
        if not shape.tied or any(0 in places and last in places for places in held):
            return 0.0
        layout = estimator.layout
        apart = layout.group_size * (self.ranks - 1)
        group = (1, 2) if apart < device.ranks_per_node else (2, 1)
        num_bytes = estimator.exchanges.gradient_bytes * shape.vocab * shape.hidden / layout.tensor
        call = GroupExchange(ExchangeKind.ALL_REDUCE, num_bytes, *group)
        return estimator.factors.values[2] * collective_us(device, call)

    def _data_of(
        self, profile: Profile, places: Sequence[int], share: float = 1.0
    ) -> tuple[float, float]:
        """Return the reduction and the gathering outside of the pipeline, of layers or a share."""
        estimator = self.estimator
        layout, software = estimator.layout, estimator.software
        if layout.sharding is Sharding.FSDP:
            return 0.0, 0.0
        layers = [profile.layer_profile(place) for place in places]
        known: dict[str, States] = {
            kind: estimator.states(kind) for kind in {layer.profile for layer in profile.layers}
        }
        states = [known[profile.layers[place].profile] for place in places]
        is_shared = layout.sharding is Sharding.ZERO1
        gather_us = 0.0
        if is_shared:
            gather_us = share * estimator.exchanges.gather_us(states)
        if not software.overlaps_gradients:
            return share * estimator.exchanges.reduce_us(states), gather_us
        forward = share * sum(layer.time_us[OpKind.F].median_us for layer in layers)
        return 0.0, max(_SHOWN * gather_us, gather_us - forward)


def layers_of_ranks(sizes: Sequence[int], placement: Placement) -> list[list[int]]:
    """By rank, the places of its layers on a partition.

    Args:
        sizes: layers of each stage.
        placement: of the stages; each copy has its layers.
    """
    held: list[list[int]] = [[] for _ in range(placement.num_ranks)]
    first = 0
    for stage, size in enumerate(sizes):
        for rank in {copy[stage] for copy in placement.ranks}:
            held[rank] += range(first, first + size)
        first += size
    return held


def update_us(profile: Profile, places: Sequence[int]) -> float:
    """The optimizer on a rank with layers at these places, which updates what they share once."""
    each = (profile.layer_profile(place).time_us[OpKind.STEP].median_us for place in places)
    ties = zip(profile.tied_parameters or (), profile.tied_places, strict=True)
    again = (tied.step_us * max(0, len({*shared} & {*places}) - 1) for tied, shared in ties)
    return sum(each) - sum(again)
