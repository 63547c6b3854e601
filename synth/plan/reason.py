"""The reason for a plan, in a sentence: what binds, and how long a known schedule takes."""

from dataclasses import dataclass, replace

from synth.errors import SynthError
from synth.families import family_placement, generate
from synth.op_kinds import MOVES, VISITS, OpKind
from synth.plan.tuning import REASON
from synth.plan.weight_passing.data_parallel_plan import one_pipeline
from synth.schedule.error import ScheduleError
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines, side_by_side
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.units import counted, format_bytes, format_us

# The best known schedule for each kind of placement, and the same with everything recomputed.
_ZB_V = "zb-v"
_KNOWN = ("1f1b", _ZB_V, "chimera", "interleaved:{rounds}")
_RECOMPUTING = "1f1b:recompute"


@dataclass(frozen=True)
class FullRank:
    """A rank with no memory for one more micro-batch's activations."""

    rank: int
    free_bytes: int
    needed_bytes: int


def reason_of(plan: Plan, lowered: Lowered, timeline: Timeline) -> str:
    """Return the sentence: what binds, and how long a known schedule takes in the same memory."""
    schedule, binds = lowered.schedule, _what_binds(plan, lowered, timeline)
    if schedule.versions is not None:
        most = "every stage" if len(set(schedule.update_sizes)) == 1 else "a stage up to"
        return (
            f"{binds}; it updates {most} {schedule.num_updates} times, a schedule with a "
            f"flush once, so their times do not compare."
        )
    if schedule.vocabulary:
        return f"{binds}."  # known schedules are of whole layers
    return f"{binds}; {_compared(plan, lowered, timeline)}."


def full_ranks(plan: Plan, lowered: Lowered) -> list[FullRank]:
    """Return the ranks on which one more micro-batch would exceed the memory limit."""
    if plan.caps_bytes is None:
        return []
    found = []
    for rank, held in enumerate(lowered.schedule.placement.held):
        needed = min((plan.costs.stages[stage].saved_bytes for stage, _ in held), default=0)
        free = plan.caps_bytes[rank] - plan.claim.peak_bytes[rank]
        if free < needed:
            found.append(FullRank(rank, free, needed))
    return found


def most_in_flight(lowered: Lowered, rank: int) -> int:
    """Return the most forwards of a rank whose backward has not begun."""
    level = most = 0
    for op in lowered.ops[rank]:
        level += (op.kind == OpKind.F) - (op.kind in (OpKind.B, OpKind.BW))
        most = max(most, level)
    return most


def _what_binds(plan: Plan, lowered: Lowered, timeline: Timeline) -> str:
    full = full_ranks(plan, lowered)
    if full:
        worst = max(full, key=lambda one: most_in_flight(lowered, one.rank))
        number = most_in_flight(lowered, worst.rank)
        return (
            f"memory binds on {_ranks([one.rank for one in full])}: rank {worst.rank} holds up to "
            f"{number} micro-batch{'es' * (number != 1)}; another needs "
            f"{format_bytes(worst.needed_bytes)}, and "
            f"{format_bytes(max(0, worst.free_bytes))} are free"
        )
    busiest = max(range(len(timeline.work_us)), key=timeline.work_us.__getitem__)
    value_us = plan.claim.judged_by.value_us(timeline)
    share = plan.claim.judged_by.iterations * timeline.work_us[busiest] / max(1, value_us)
    return (
        f"{_about_limit(plan, lowered)}: rank {busiest}, which has the most work, works for "
        f"{share:.0%} of the {plan.claim.judged_by.words}"
    )


def _about_limit(plan: Plan, lowered: Lowered) -> str:
    """Return what the limit means to a plan on which no rank is full.

    That alone does not show that another limit would give the same plan: this one may have forced
    recomputation, moves, the placement or the partition. It has not if the ranks could keep the
    activations of all micro-batches at once.
    """
    if plan.caps_bytes is None:
        return "no memory limit"
    kinds = {op.kind for program in lowered.schedule.programs for op in program}
    ways = {
        "recomputation": OpKind.R in kinds or plan.recomputed_layers,
        "activations moved off their ranks": kinds & {*MOVES},
        "weights passed or gathered": kinds & {*VISITS},
    }
    if saving := " and ".join(name for name, is_used in ways.items() if is_used):
        return f"with {saving} no rank is full"
    return "memory does not bind" if _keeps_all(plan, lowered) else "no rank is full"


def _keeps_all(plan: Plan, lowered: Lowered) -> bool:
    """Return True if every rank has room for the activations of all micro-batches at once."""
    assert plan.caps_bytes is not None
    for rank, held in enumerate(lowered.schedule.placement.held):
        saved = max((plan.costs.stages[stage].saved_bytes for stage, _ in held), default=0)
        forwards = sum(op.kind == OpKind.F for op in lowered.ops[rank])
        more = (forwards - most_in_flight(lowered, rank)) * saved
        if plan.claim.peak_bytes[rank] + more > plan.caps_bytes[rank]:
            return False
    return True


def _ranks(ranks: list[int]) -> str:
    """Return `rank 0`, `ranks 0 and 3` or `all ranks from 0 to 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks == [*range(ranks[0], ranks[-1] + 1)]:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _compared(plan: Plan, own: Lowered, timeline: Timeline) -> str:
    """Compare with a known schedule on the placement, or with it recomputing if it is too large."""
    one = one_pipeline(plan) or plan
    name = _known_on(one)
    if name is None:
        return "no known schedule is defined on its placement"
    if name == _ZB_V and 3 * one.costs.num_stages * one.num_micro_batches > REASON.most_ops_of_v:
        return f"{name} is not simulated here, because fitting it to so many ops takes too long"
    too_large = ""
    for candidate in (name, _RECOMPUTING) if name == "1f1b" else (name,):
        schedule = _known_schedule(plan, one, candidate)
        found = None if schedule is None else _simulated(plan, schedule, own, timeline)
        if schedule is None or found is None:
            continue
        lowered, known = found
        peaks = peak_bytes(lowered)
        if not exceeds_caps(peaks, plan.caps_bytes):
            is_own = schedule.programs == own.schedule.programs
            return f"{too_large}{_against(plan, timeline, _title(candidate), known, is_own=is_own)}"
        too_large = f"{_title(candidate)} needs {format_bytes(max(peaks))}, and "
    sizes = f"{counted(one.num_ranks, 'rank')} and {counted(one.num_micro_batches, 'micro-batch')}"
    return too_large.removesuffix(", and ") or f"{_title(name)} is not defined for {sizes}"


def _known_on(plan: Plan) -> str | None:
    """Return the name of the known schedule on a plan's placement, if there is one."""
    where = plan.placed
    for each in _KNOWN:
        name = each.format(rounds=where.num_stages // plan.num_ranks)
        try:
            if family_placement(name, plan.num_ranks) == where:
                return name
        except SynthError:
            continue
    return None


def _known_schedule(plan: Plan, one: Plan, name: str) -> Schedule | None:
    """Return a known schedule on a plan's placement; None: it is not defined on these numbers.

    Args:
        one: one of its pipelines side by side; without any the plan itself.
        name: the name of the schedule, which all pipelines run.
    """
    try:
        schedule = generate(
            name,
            one.num_ranks,
            one.num_micro_batches,
            costs=one.costs,
            objective=plan.claim.judged_by,
        )
        return schedule if one is plan else _side_by_side(schedule, plan)
    except SynthError:
        return None


def _simulated(
    plan: Plan, schedule: Schedule, own: Lowered, timeline: Timeline
) -> tuple[Lowered, Timeline] | None:
    """Return a schedule on a plan's stages; None: it cannot run there.

    The plan's own schedule has been simulated already.
    """
    if replace(schedule, name=own.schedule.name) == own.schedule:
        return own, timeline
    try:
        return verify(schedule, plan.costs)
    except (SynthError, ScheduleError):
        return None


def _side_by_side(schedule: Schedule, plan: Plan) -> Schedule:
    """Run a schedule in all pipelines of a plan, with the same state sharded."""
    count = len(plan.placement)
    if plan.weights is None:
        return side_by_side(schedule, schedule.programs, count, None)
    return sharded_pipelines(schedule, count, plan.weights.sharded)


def _title(name: str) -> str:
    words = {"1f1b": "1F1B", _RECOMPUTING: "1F1B with recomputation"}
    return words.get(name, name)


def _against(plan: Plan, timeline: Timeline, title: str, known: Timeline, *, is_own: bool) -> str:
    """Return the time of a known schedule against the plan's, whose order may be the same."""
    value_us, known_us = map(plan.claim.judged_by.value_us, (timeline, known))
    if known_us == value_us:
        return f"the plan's order is that of {title}" if is_own else f"{title} takes as long"
    more = known_us / max(1, value_us) - 1
    word = "longer" if more > 0 else "less"
    return f"{title} takes {abs(more):.1%} {word} ({format_us(known_us)})"
