"""The time of a whole training step: the pipeline, data parallelism, and the optimizer.

The pipeline's schedule is simulated with the estimated times of its stages. Both schedules that
published runs use repeat from some micro-batch on, so that more of them add equal times, and few
are simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.estimates.collectives import collective_us
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import Factors
from synth.estimates.layout import Sharding
from synth.estimates.ops import ExchangeKind, GroupExchange
from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.schedule.lowering.lower import lower
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import simulate

# Of overlapped reductions: the share that is seen all the same, as the first and last bucket.
_SHOWN = 0.1

_BF16 = 2


@dataclass(frozen=True)
class TrainingStep:
    """A step of a distributed run.

    Attributes:
        estimator: model, device, layout, program and factors.
        ranks: of the pipeline.
        micro_batches: of each pipeline in a step.
        schedule: the name of a published schedule; of one rank it does not matter.
    """

    estimator: Estimator
    ranks: int
    micro_batches: int
    schedule: str = "1f1b"

    def with_factors(self, factors: Factors) -> "TrainingStep":
        """The same step under other factors."""
        return replace(self, estimator=replace(self.estimator, factors=factors))

    def us(self) -> float:
        """The time of the step.

        Raises:
            SynthError: there are fewer layers than stages, or the schedule does not admit them.
        """
        profile = self.estimator.profile()
        return self._pipeline_us(profile) + self.data_us(profile) + self.update_us(profile)

    def data_us(self, profile: Profile) -> float:
        """The part of data parallelism that is seen, of the rank where it is longest."""
        held = self._stages(profile)
        return max(self._data_of(profile, places) for places in held) + self._tied_us(held)

    def update_us(self, profile: Profile) -> float:
        """The time of the optimizer, of the rank where it is longest."""
        layers = [profile.layer_profile(place) for place in range(len(profile.layers))]
        return max(
            sum(layers[place].time_us[OpKind.STEP].median_us for place in places)
            for places in self._stages(profile)
        )

    def peaks_bytes(self) -> tuple[int, ...]:
        """The peak of each rank; the states and activations, without fragments and libraries."""
        profile = self.estimator.profile()
        sizes = self.stage_sizes(len(profile.layers))
        count = min(self.micro_batches, 3 * self.ranks)
        costs = partition_costs(profile, sizes)
        made = generate(self._name, self.ranks, count, costs=costs)
        return peak_bytes(lower(made, costs))

    @property
    def _name(self) -> str:
        return self.schedule if self.ranks > 1 else "1f1b"

    def _pipeline_us(self, profile: Profile) -> float:
        """The makespan of the schedule, from few micro-batches if there are many."""
        total, ranks = self.micro_batches, self.ranks
        if ranks == 1:
            passes = (OpKind.F, OpKind.BW)
            layers = [profile.layer_profile(place) for place in range(len(profile.layers))]
            return total * sum(one.time_us[kind].median_us for one in layers for kind in passes)
        period = ranks
        few = 3 * ranks
        if total <= few + period:
            return self._makespan_us(profile, total)
        first = few + (total - few) % period
        start = self._makespan_us(profile, first)
        more = self._makespan_us(profile, first + period) - start
        return start + more * (total - first) / period

    def _makespan_us(self, profile: Profile, count: int) -> float:
        costs = partition_costs(profile, self.stage_sizes(len(profile.layers)))
        made = generate(self._name, self.ranks, count, costs=costs)
        return simulate(lower(made, costs)).makespan_us

    def stage_sizes(self, layers: int) -> list[int]:
        """Layers of each stage: as equal as possible, embedding and head beside the layers.

        If they only divide with embedding and head counted as layers, that is meant.
        """
        stages = family_placement(self._name, self.ranks).num_stages
        inner = layers - 2
        if inner < stages and layers < stages:
            raise SynthError(
                f"{self.estimator.shape.name} has {layers} layers for {stages} stages of "
                f"{self.schedule} on {self.ranks} ranks; give fewer"
            )
        if layers % stages == 0 and (inner % stages or stages == layers):
            return [layers // stages] * stages
        each, more = divmod(inner, stages)
        sizes = [each] * stages
        # The stages without embedding and head have the remaining layers.
        for place in sorted(range(stages), key=lambda at: at in (0, stages - 1))[:more]:
            sizes[place] += 1
        sizes[0] += 1
        sizes[-1] += 1
        return sizes

    def _stages(self, profile: Profile) -> list[list[int]]:
        """By rank, the places of its layers."""
        sizes = self.stage_sizes(len(profile.layers))
        placement = family_placement(self._name, self.ranks)
        held: list[list[int]] = [[] for _ in range(self.ranks)]
        first = 0
        for stage, size in enumerate(sizes):
            for rank in {copy[stage] for copy in placement.ranks}:
                held[rank] += range(first, first + size)
            first += size
        return held

    def _tied_us(self, held: Sequence[Sequence[int]]) -> float:
        """The sum of the gradients of a tied matrix that two ranks have."""
        estimator = self.estimator
        shape, device = estimator.shape, estimator.device
        last = max(place for places in held for place in places)
        if not shape.tied or any(0 in places and last in places for places in held):
            return 0.0
        layout = estimator.layout
        apart = layout.tensor * layout.context * layout.data * (self.ranks - 1)
        group = (1, 2) if apart < device.ranks_per_node else (2, 1)
        num_bytes = estimator.software.gradient_bytes * shape.vocab * shape.hidden / layout.tensor
        call = GroupExchange(ExchangeKind.ALL_REDUCE, num_bytes, *group)
        return estimator.factors.values[2] * collective_us(device, call)

    def _data_of(self, profile: Profile, places: Sequence[int]) -> float:
        estimator = self.estimator
        layout, software = estimator.layout, estimator.software
        if layout.sharding is Sharding.FSDP:
            return 0.0
        layers = [profile.layer_profile(place) for place in places]
        states = [estimator.states(profile.layers[place].profile) for place in places]
        is_shared = layout.sharding is Sharding.ZERO1
        kind = ExchangeKind.REDUCE_SCATTER if is_shared else ExchangeKind.ALL_REDUCE
        reduce_us = estimator.exchange_us(kind, software.gradient_bytes, states)
        gather_us = 0.0
        if is_shared:
            gather_us = estimator.exchange_us(ExchangeKind.ALL_GATHER, _BF16, states)
        if not software.overlaps_gradients:
            return reduce_us + gather_us
        backward = sum(layer.time_us[OpKind.BW].median_us for layer in layers)
        forward = sum(layer.time_us[OpKind.F].median_us for layer in layers)
        return max(_SHOWN * reduce_us, reduce_us - backward) + max(
            _SHOWN * gather_us, gather_us - forward
        )


def micro_batches_of(global_batch: int, micro_batch: int, data: int) -> int:
    """The micro-batches of a pipeline in a step."""
    return max(1, ceil(global_batch / (micro_batch * data)))
