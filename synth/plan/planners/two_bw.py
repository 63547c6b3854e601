"""PipeDream-2BW's planner: every width, depth, micro-batch size and choice of recomputation.

Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, section
3.3 and appendix A. A pipeline of d stages of equally many layers stands w times side by side. With
m micro-batches of each pipeline for an update, its time per micro-batch and its memory are

    time   = max over stages i of max(T(i) + transfers to i, sync(i) / m)
    memory = 2 W / d + A + d · A_in          each rank keeps the activations of d micro-batches
           = 2 W / d + A / d + d · A_in      with recomputation: inputs, and activations of one

where T is F and B of a stage, and its F once more with recomputation (the paper's factor 4/3 if B
takes twice as long as F), W are the weights of the model, A all activations of a micro-batch and
A_in those that a stage receives. Gradients and optimizer state, of which the paper's formula says
nothing, are counted beside it, divided by d. The planner takes the largest throughput that fits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.plan.planners.replicated_pipeline import Term
from synth.plan.weight_passing.choice import even_stages
from synth.profile import Profile
from synth.units import format_bytes


class TwoBwMemory(NamedTuple):
    """The memory of a rank by the planner's model, in bytes.

    Attributes:
        weights: two versions.
        activations: that forwards save, of the micro-batches that are not recomputed.
        inputs: the bytes of the stage's inputs, over all micro-batches in flight.
        others: gradients and optimizer state, which are not in the paper's formula.
    """

    weights: float
    activations: float
    inputs: float
    others: float


@dataclass(frozen=True)
class TwoBwChoice:
    """A configuration of PipeDream-2BW, and the predictions of its planner's cost model.

    Attributes:
        width: the number of data-parallel pipelines.
        depth: the number of stages of each.
        profile: the profile of the layers, with its size of a micro-batch.
        recompute: True if all stages keep only their inputs.
        micro_batches: the micro-batches of each pipeline per update.
        partition: layers of each stage.
        time_us: per micro-batch of one pipeline.
        bound_by: the kind of the largest term, and its stage.
    """

    width: int
    depth: int
    profile: Profile
    recompute: bool
    micro_batches: int
    partition: tuple[int, ...]
    time_us: float
    bound_by: tuple[Term, int]
    memory: TwoBwMemory

    @property
    def num_ranks(self) -> int:
        """The number of ranks that it uses."""
        return self.width * self.depth

    @property
    def micro_batch_us(self) -> float:
        """The time per micro-batch of all pipelines together."""
        return self.time_us / self.width

    @property
    def samples_per_s(self) -> float:
        """The predicted throughput."""
        size = self.profile.workload.micro_batch_size
        return size * 1e6 / self.micro_batch_us if self.time_us else float("inf")

    @property
    def family(self) -> str:
        """The name of this configuration as a published schedule."""
        width = [str(self.width)] if self.width > 1 else []
        rebuilt = ["recompute"] if self.recompute else []
        return f"2bw:{','.join([*width, *rebuilt, f'every={self.micro_batches}'])}"


def two_bw_plan(
    profiles: Sequence[Profile], num_ranks: int, batch_size: int, *, memory_bytes: int | None = None
) -> TwoBwChoice:
    """Return the configuration with the largest predicted throughput that fits.

    Of equal ones the narrowest is taken, then the shallowest.

    Args:
        profiles: the same layers, each measured with another size of a micro-batch.
        num_ranks: the most ranks to use.
        batch_size: samples of an update, over all pipelines.
        memory_bytes: the most that a rank may hold; None: no limit.

    Raises:
        SynthError: no configuration has whole micro-batches, at least one for each stage; or none
            fits.
    """
    found = list(two_bw_configurations(profiles, num_ranks, batch_size))
    if not found:
        sizes = ", ".join(str(each.workload.micro_batch_size) for each in profiles) or "no size"
        raise SynthError(
            f"a batch of {batch_size} samples is no whole number of micro-batches (of {sizes} "
            f"samples) on up to {num_ranks} ranks; give a multiple of the size of a micro-batch"
        )
    fitting = [one for one in found if memory_bytes is None or sum(one.memory) <= memory_bytes]
    if not fitting:
        least = min(sum(one.memory) for one in found)
        assert memory_bytes is not None
        raise SynthError(
            f"no configuration of PipeDream-2BW on up to {num_ranks} ranks fits in "
            f"{format_bytes(memory_bytes)} by its planner's formula; the least is "
            f"{format_bytes(round(least))}"
        )
    return max(fitting, key=lambda one: one.samples_per_s)


def two_bw_configurations(
    profiles: Sequence[Profile], num_ranks: int, batch_size: int
) -> Iterator[TwoBwChoice]:
    """Yield all configurations that the planner tries, fitting or not.

    An update needs whole micro-batches, of each pipeline at least as many as it has stages.

    Args:
        profiles: see `two_bw_plan`, as for the others.
        num_ranks: the most ranks to use.
        batch_size: samples of an update.
    """
    for width in range(1, num_ranks + 1):
        for profile in profiles:
            micro_batches, rest = divmod(batch_size, width * profile.workload.micro_batch_size)
            most = min(num_ranks // width, micro_batches, len(profile.layers))
            for depth in range(1, 0 if rest else most + 1):
                yield from _configurations(profile, width, depth, micro_batches)


def _configurations(
    profile: Profile, width: int, depth: int, micro_batches: int
) -> Iterator[TwoBwChoice]:
    """Yield the configuration without recomputation, and that with it."""
    partition = even_stages(profile, depth)
    costs = partition_costs(profile, partition)
    for recompute in (False, True):
        terms = [
            (us, (term, stage))
            for stage in range(depth)
            for term, us in _terms(costs, stage, width, micro_batches, recompute=recompute)
        ]
        time_us, bound_by = max(terms, key=lambda term: term[0])
        memory = two_bw_memory(costs, recompute=recompute)
        yield TwoBwChoice(
            width, depth, profile, recompute, micro_batches, partition, time_us, bound_by, memory
        )


def _terms(
    costs: Costs, stage: int, width: int, micro_batches: int, *, recompute: bool
) -> Iterator[tuple[Term, float]]:
    """Yield the terms of a stage; its ranks follow those of the stage before."""
    times = costs.stages[stage].duration_us
    kinds = (OpKind.F, OpKind.BW, *([OpKind.R] if recompute else []))
    compute_us = sum(times[kind] for kind in kinds)
    transfers_us = max(_received_us(costs, stage, width, row) for row in range(width))
    yield (Term.TRANSFER if transfers_us > compute_us else Term.COMPUTE), compute_us + transfers_us
    ranks = range(stage * width, (stage + 1) * width)
    yield Term.SYNC, costs.reduction_us(stage, ranks) / micro_batches


def _received_us(costs: Costs, stage: int, width: int, row: int) -> int:
    """The time of the activation and of the gradient that a stage of one pipeline receives."""
    rank, found = stage * width + row, 0
    if stage > 0:
        found += costs.boundary_us(stage - 1, rank - width, rank)
    if stage + 1 < costs.num_stages:
        found += costs.return_us(stage, rank + width, rank)
    return found


def two_bw_memory(costs: Costs, *, recompute: bool) -> TwoBwMemory:
    """Return the memory of a rank by appendix A.1.2; the stages' means count, as it has them equal.

    Args:
        costs: the costs of the stages of one pipeline.
        recompute: True if all stages keep only their inputs.
    """
    stages, depth = costs.stages, costs.num_stages
    weights = sum(stage.parameter_bytes for stage in stages)
    saved = sum(stage.saved_bytes for stage in stages)
    received = max((stage.output_bytes for stage in stages[:-1]), default=0)
    return TwoBwMemory(
        weights=2 * weights / depth,
        activations=saved / depth if recompute else saved,
        inputs=depth * received,
        others=sum(stage.static_bytes - stage.parameter_bytes for stage in stages) / depth,
    )
