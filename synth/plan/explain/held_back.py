"""The limit of a plan: the rank with the most work, and the main cause of its idle time."""

from collections import Counter
from collections.abc import Sequence

from synth.plan.explain.idle_causes import RankIdle, span_us
from synth.plan.reason import full_ranks
from synth.plan.tuning import EXPLAIN
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.programs import end_name
from synth.schedule.simulate import Timeline
from synth.units import format_bytes, format_us


def what_holds_back(plan: Plan, timeline: Timeline, idle: Sequence[RankIdle]) -> str:
    """Return the rank and the resource, with figures, as a part of a sentence.

    That is the work of the busiest rank if it is hardly ever idle, else the largest cause of its
    idle time.
    """
    span = max(1, span_us(timeline, plan.claim.judged_by))
    busiest = max(idle, key=lambda each: each.work_us)
    us = busiest.causes_us
    fill_us = us["warm_up"] + us["drain"]
    causes = {
        f"filling and draining the pipeline, {fill_us / span:.1%} of the time": fill_us,
        _memory(plan, timeline, us["memory"] / span): us["memory"],
        _link(timeline, us["links"] / span): us["links"],
        f"reductions of gradients, {us['reductions'] / span:.1%} of the time": us["reductions"],
        f"waits for ops of other ranks, {us['dependences'] / span:.1%}": us["dependences"],
    }
    work = (
        f"rank {busiest.rank} has the most work ({format_us(busiest.work_us)}, "
        f"{busiest.work_us / span:.1%} of the {_span_words(plan)})"
    )
    if busiest.idle_us < EXPLAIN.little_idle_share * span:
        mean = timeline.mean_work_us / span
        return f"the work of the busiest rank: {work}, the mean rank works for {mean:.1%}"
    return f"{max(causes, key=causes.__getitem__)}: {work}"


def _span_words(plan: Plan) -> str:
    return "makespan" if plan.claim.judged_by.makespans else "period"


def _memory(plan: Plan, timeline: Timeline, share: float) -> str:
    full = full_ranks(plan, timeline.lowered) if share else []
    if not full:
        return f"memory, {share:.1%} of the time"
    one = full[0]
    return (
        f"memory, {share:.1%} of the time (rank {one.rank}: {format_bytes(max(0, one.free_bytes))} "
        f"free, another micro-batch takes {format_bytes(one.needed_bytes)})"
    )


def _link(timeline: Timeline, share: float) -> str:
    loads_us = Counter[tuple[int, int]]()
    for transfer in timeline.lowered.transfers:
        loads_us[transfer.source, transfer.target] += transfer.duration_us
    if not loads_us:
        return f"collectives between ranks, {share:.1%} of the time"
    ((source, target), load_us), *_ = loads_us.most_common(1)
    return (
        f"links, {share:.1%} of the time "
        f"(that from {end_name(source)} to {end_name(target)} transfers for "
        f"{load_us / max(1, timeline.makespan_us):.1%})"
    )
