"""The time of a whole training step: the pipeline, exchanges of parameters, and the optimizer.

The pipeline's schedule, with the reduction of its gradients, is simulated with the estimated times
of its stages. Both schedules that published runs use repeat from some micro-batch on, so that more
of them add equal times, and few are simulated.
"""

from dataclasses import dataclass, replace
from math import ceil

from synth.costs.costs import Costs
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import Factors
from synth.estimates.outside_pipeline import OutsidePipeline, OutsideTimes, layers_of_ranks
from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.schedule.lowering.lower import lower
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import simulate


@dataclass(frozen=True)
class TrainingStep:
    """A step of a distributed run.

    Attributes:
        estimator: model, device, layout, program and factors.
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
        return self._pipeline_us(profile) + self.outside(profile).data_us

    def outside(self, profile: Profile) -> OutsideTimes:
        """The times of data parallelism and of the optimizer; `profile` is the estimator's."""
        placement = family_placement(self._name, self.ranks)
        held = layers_of_ranks(self.stage_sizes(len(profile.layers)), placement)
        return OutsidePipeline(self.estimator, self.ranks).times(profile, held)

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
        """The makespan with the optimizer, from few micro-batches if there are many."""
        total, ranks = self.micro_batches, self.ranks
        if ranks == 1:
            layers = [profile.layer_profile(place) for place in range(len(profile.layers))]
            passes = (OpKind.F, OpKind.BW)
            once_us = sum(one.time_us[kind].median_us for one in layers for kind in passes)
            reduced_us = partition_costs(profile, [len(layers)]).reduction_us(0, [0], is_alone=True)
            return total * once_us + reduced_us + self.outside(profile).step_us
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
        waits = self.estimator.software.waits_for_sends
        return pipeline_us(self._name, self.ranks, count, costs, waits=waits)

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


def micro_batches_of(global_batch: int, micro_batch: int, data: int) -> int:
    """The micro-batches of a pipeline in a step."""
    return max(1, ceil(global_batch / (micro_batch * data)))


# Their programs validate the optimizer's step late, so that a rank begins the next iteration when
# its own work is done (Qi et al. 2023, arXiv 2401.10241, section 4).
_LATE_VALIDATION = ("zb-1p", "zb-2p")


def pipeline_us(
    name: str, ranks: int, micro_batches: int, costs: Costs, *, waits: bool = False
) -> int:
    """Simulate a published schedule; with late validation its period counts.

    Args:
        waits: interleaved 1F1B waits for its transfers.

    Raises:
        SynthError: the family does not admit the sizes.
    """
    if waits and name.startswith("interleaved"):
        costs = _with_waits(costs, ranks)
    line = simulate(lower(generate(name, ranks, micro_batches, costs=costs), costs))
    return line.period_us if name in _LATE_VALIDATION else line.makespan_us


def _with_waits(costs: Costs, ranks: int) -> Costs:
    """Add half of a transfer to each F and BW.

    All ranks exchange with both neighbours after each pair of F and BW, activations and gradients
    at once, and go on together: the slowest link sets the pace (Megatron-LM without overlap of
    p2p communication; Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
    """
    stages = list(costs.stages)
    for number, stage in enumerate(stages):
        sent = (costs.boundary_us(number, rank, (rank + 1) % ranks) for rank in range(ranks))
        each_us = max(sent) // 2 if number + 1 < len(stages) else 0
        durations = {
            kind: us + each_us if kind in (OpKind.F, OpKind.BW) else us
            for kind, us in stage.duration_us.items()
        }
        stages[number] = stage.replace(duration_us=durations)
    return costs.replace(stages=tuple(stages))
