"""`synth.simulate`: the plan of any schedule, with its times and memory on measured costs."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from synth.api.front import AnyProfile, named_as_arguments
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import family_placement, generate
from synth.objective import Objective
from synth.options.arguments.groups import MemoryArguments, RankHardwareArguments
from synth.options.values import AUTO, Count, Partition, ProfileSource
from synth.plan.partition.balance import balance
from synth.plan.partition.divided import as_parts, partitions
from synth.plan.problem_arguments import sizes_on
from synth.records.command_option import from_values, not_understood
from synth.records.record import Record
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement, Schedule


class _SimulateArguments(Record):
    """The arguments of `simulate` that have limits or are read."""

    profile: ProfileSource
    ranks: Annotated[Count, Field(ge=1)] | None
    micro_batches: Annotated[Count, Field(ge=1)] | None
    memory: MemoryArguments
    partition: Partition
    hardware: RankHardwareArguments


@named_as_arguments
def simulate(
    schedule: str | Schedule,
    profile: AnyProfile,
    *,
    ranks: int | None = None,
    micro_batches: int | None = None,
    mem_limit: str | int | Sequence[int | str] = "none",
    partition: str | Sequence[int] = "even",
    link: str | Sequence[str] | None = None,
    rank_speed: str | Sequence[float] | None = None,
) -> Plan:
    """Verify a schedule and simulate it on a profile's costs, without any search.

    Args:
        schedule: the name of a published schedule, such as `"1f1b"` or `"interleaved:2"`; or a
            `Schedule`.
        profile: a `Profile`, the path of a profile file, or the name of a shipped profile.
        ranks: number of ranks; None: of the `Schedule`.
        micro_batches: number of micro-batches; None: of the `Schedule`.
        mem_limit: the memory limit to meet, as of `synth.solve`; schedules that are made to a
            limit use it.
        partition: layers per stage, or `"even"`: balance the work of the ranks.
        link: latency and bandwidth instead of the profile's, as of `synth.solve`.
        rank_speed: the speed of each rank, as of `synth.solve`.

    Returns:
        The plan; `plan.claim` has makespan, period and peaks. Its bound is the largest work of a
        rank.

    Raises:
        SynthError: the name is unknown or does not admit the numbers, the schedule cannot run, or
            it exceeds the memory limit.

    Example:
        >>> plan = synth.simulate("1f1b", "zb-1.5b-p8-m24", ranks=4, micro_batches=8)
        >>> plan.claim.makespan_us
    """
    options = locals()
    given = from_values(_SimulateArguments, options)
    if given.partition == AUTO:
        raise SynthError("§partition auto needs a search; give even, or the layers of each stage")
    size = _size_of(schedule, given.ranks, given.micro_batches)
    where = size.placement
    measured = given.hardware.of_ranks(given.profile, size.num_ranks)
    caps = given.memory.limits(size.num_ranks, measured).caps_bytes
    parts = measured
    if not isinstance(schedule, Schedule):
        parts = as_parts(measured, schedule, size.num_ranks)
    sizes = sizes_on(where, given.partition)
    if sizes is None and parts is not measured:
        sizes = partitions(parts, size.num_ranks)[0]
    sizes = sizes or balance(measured, where, caps, size.num_micro_batches)
    if not isinstance(schedule, Schedule):
        costs = partition_costs(parts, sizes, where.ranks)
        schedule = generate(
            schedule,
            size.num_ranks,
            size.num_micro_batches,
            costs=costs,
            caps_bytes=caps,
            objective=Objective.MAKESPAN,
        )
    return Plan.of(measured, sizes, schedule, caps_bytes=caps)


class _Size(NamedTuple):
    num_ranks: int
    num_micro_batches: int
    placement: Placement


def _size_of(schedule: object, ranks: int | None, micro_batches: int | None) -> _Size:
    """The size and the placement of a schedule that is given, or of a published one."""
    if isinstance(schedule, Plan):
        raise SynthError("schedule is a Plan; give plan.schedule(), the order of its ops")
    if isinstance(schedule, Schedule):
        _check_sizes(schedule, ranks, micro_batches)
        return _Size(schedule.num_ranks, schedule.num_micro_batches, schedule.placement)
    if not isinstance(schedule, str):
        needed = "a Schedule, or the name of a published one, such as '1f1b'"
        raise not_understood("schedule", schedule, needed)
    if ranks is None or micro_batches is None:
        raise SynthError(
            f"a published schedule such as {schedule} needs §ranks and §micro_batches; give both"
        )
    return _Size(ranks, micro_batches, family_placement(schedule, ranks))


def _check_sizes(schedule: Schedule, ranks: int | None, micro_batches: int | None) -> None:
    sizes = ((ranks, schedule.num_ranks), (micro_batches, schedule.num_micro_batches))
    for (given, there), name in zip(sizes, ("ranks", "micro-batches"), strict=True):
        if given is not None and given != there:
            raise SynthError(
                f"{given} {name} are asked for, and the schedule {schedule.name!r} has {there}; "
                f"leave the number out"
            )
