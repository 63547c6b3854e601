"""`synth.simulate`: the plan of any schedule, with its times and memory on measured costs."""

from collections.abc import Sequence
from typing import NamedTuple

from synth.api.words import (
    AnyProfile,
    limit_text,
    links_texts,
    named_as_arguments,
    number_or_none,
    numbers_text,
    profile_or_name,
    shown_value,
)
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import family_placement, generate
from synth.options.memory_limit import read_limit
from synth.options.partition import read_partition
from synth.options.profiles import load_profile
from synth.plan.partition.balance import balance
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement, Schedule


@named_as_arguments
def simulate(
    schedule: str | Schedule,
    profile: AnyProfile,
    *,
    ranks: int | None = None,
    micro_batches: int | None = None,
    mem_limit: str | int | Sequence[int | str] | None = None,
    partition: str | Sequence[int] = "even",
    link: str | Sequence[str] | None = None,
) -> Plan:
    """Verify a schedule and simulate it on a profile's costs, without any search.

    Args:
        schedule: the name of a published schedule, such as `"1f1b"` or `"interleaved:2"`; or a
            `Schedule`.
        profile: a `Profile`, the path of a profile file, or the name of a shipped profile.
        ranks: number of ranks; None: of the `Schedule`.
        micro_batches: number of micro-batches; None: of the `Schedule`.
        mem_limit: the memory limit to meet, as of `synth.solve`; schedules that are made to a
            limit use it. None: no limit.
        partition: layers per stage, or `"even"`: balance the work of the ranks.
        link: latency and bandwidth instead of the profile's, as of `synth.solve`.

    Returns:
        The plan; `plan.claim` has makespan, period and peaks. Its bound is the largest work of a
        rank.

    Raises:
        SynthError: the name is unknown or does not admit the numbers, the schedule cannot run, or
            it exceeds the memory limit.
    """
    ranks = number_or_none(ranks, "ranks", 1)
    micro_batches = number_or_none(micro_batches, "micro_batches", 1)
    size = _size_of(schedule, ranks, micro_batches)
    where = size.placement
    measured = load_profile(profile_or_name(profile), links_texts(link))
    caps = read_limit(limit_text(mem_limit), size.num_ranks, measured).caps_bytes
    given = read_partition(numbers_text(partition, "partition") or "even", where)
    sizes = given or balance(measured, where, caps, size.num_micro_batches)
    if not isinstance(schedule, Schedule):
        costs = partition_costs(measured, sizes)
        schedule = generate(
            schedule, size.num_ranks, size.num_micro_batches, costs=costs, caps_bytes=caps
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
        raise SynthError(
            f"schedule={shown_value(schedule)} is not understood; give a Schedule, or the name of "
            f"a published one, such as '1f1b'"
        )
    if ranks is None or micro_batches is None:
        raise SynthError(
            f"a published schedule such as {schedule} needs the number of ranks and of "
            f"micro-batches; give both"
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
