"""The choice of a published planner as a schedule, with its prediction."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import generate
from synth.families._lib.updates import least_divisor
from synth.plan.planners.pipedream import pipedream_partition
from synth.plan.planners.two_bw import two_bw_plan
from synth.profile import Profile
from synth.schedule.model import Schedule


class Planner(StrEnum):
    """A published planner."""

    PIPEDREAM = "pipedream"
    TWO_BW = "2bw"


class Prediction(NamedTuple):
    """A planner's prediction by its cost model.

    Attributes:
        time_us: per micro-batch while the pipeline is full.
        bound_by: the term that is as large as that.
    """

    time_us: float
    bound_by: str


class PlannerChoice(NamedTuple):
    """A planner's choice: the layers of each stage, the schedule on their costs, the prediction."""

    partition: tuple[int, ...]
    costs: Costs
    schedule: Schedule
    prediction: Prediction


def planned(
    planner: Planner,
    profile: Profile,
    num_ranks: int,
    num_micro_batches: int,
    caps_bytes: Sequence[int] | None = None,
) -> PlannerChoice:
    """Return the schedule that a planner chooses.

    Args:
        profile: the profile of the layers, with the links.
        num_ranks: all of which the schedule must use.
        num_micro_batches: the micro-batches of the schedule. An update of 2BW takes the fewest of
            them that divide their number, at least one for each rank, as the family does.
        caps_bytes: the memory limit of each rank; planners know one, the smallest.

    Raises:
        SynthError: the planner finds no choice, or there is no schedule of it with these numbers.
    """
    memory_bytes = None if caps_bytes is None else min(caps_bytes)
    if planner == Planner.PIPEDREAM:
        return _of_pipedream(profile, num_ranks, num_micro_batches, memory_bytes)
    return _of_2bw(profile, num_ranks, num_micro_batches, memory_bytes)


def _of_pipedream(
    profile: Profile, num_ranks: int, num_micro_batches: int, memory_bytes: int | None
) -> PlannerChoice:
    found = pipedream_partition(profile, num_ranks, memory_bytes=memory_bytes)
    counts = "-".join(map(str, found.replicas))
    name = "pipedream" if max(found.replicas) == 1 else f"pipedream:{counts}"
    costs = partition_costs(profile, found.partition)
    made = generate(name, num_ranks, num_micro_batches, costs=costs, where=found.placement)
    return PlannerChoice(
        found.partition, costs, made, Prediction(found.time_us, str(found.bound_by))
    )


def _of_2bw(
    profile: Profile, num_ranks: int, num_micro_batches: int, memory_bytes: int | None
) -> PlannerChoice:
    count = least_divisor(num_micro_batches, num_ranks)
    if count is None:
        raise SynthError(
            f"an update of 2BW takes a micro-batch of each of {num_ranks} ranks at least, given "
            f"{num_micro_batches} micro-batches; give more"
        )
    batch_size = count * profile.workload.micro_batch_size
    found = two_bw_plan([profile], num_ranks, batch_size, memory_bytes=memory_bytes)
    if found.num_ranks < num_ranks:
        raise SynthError(
            f"the planner of 2BW uses {found.num_ranks} of {num_ranks} ranks ({found.family}); "
            f"compare schedules on as many"
        )
    costs = partition_costs(profile, found.partition)
    made = generate(found.family, num_ranks, num_micro_batches, costs=costs)
    term, stage = found.bound_by
    return PlannerChoice(
        found.partition, costs, made, Prediction(found.micro_batch_us, f"{term} of stage {stage}")
    )
