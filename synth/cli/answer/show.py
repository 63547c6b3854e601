"""The figures of a plan, as text and as JSON."""

from collections.abc import Iterator
from typing import Any

from synth.cli.answer.output import conditions_json, percent, value_line, wrapped
from synth.objective import Objective
from synth.profile.throughput import Throughput, throughput
from synth.schedule.files.claim import SAME_OPS
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.measured.execution_trace import planned_spans
from synth.schedule.rank_memory import static_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.steady_state import least_steady_us, steady_us
from synth.schedule.version_facts import version_facts
from synth.search.outcome import StoppedBy
from synth.units import counted


def headline(plan: Plan, timeline: Timeline, reason: str) -> str:
    """Return the lines above the chart: the problem, value and bound, bubble rates, status."""
    claim = plan.claim
    asked, group = claim.judged_by, plan.workload.group
    speed = _throughput(plan, timeline).words
    devices = () if group is None else (f"devices: {group.layout(plan.num_ranks)}",)
    value = value_line(asked.words, asked.value_us(timeline), claim.lower_bound_us, claim.gap)
    return "\n".join(
        (
            f"{plan.name}: {counted(plan.num_ranks, 'rank')}, "
            f"{counted(len(plan.partition), 'stage')}{_copies(plan)}, "
            f"{counted(plan.num_micro_batches, 'micro-batch')} of {plan.profile_name} on "
            f"{plan.device}",
            *devices,
            f"{value} among {SAME_OPS}" if plan.bounds_same_ops else value,
            f"{', '.join(_idle_shares(asked, timeline))}{speed and f'; {speed}'}",
            *idle_line(timeline, asked),
            f"status: {claim.stopped_by} ({claim.found_by}); all times predicted from the profile",
            wrapped(f"why: {reason}"),
        )
    )


def version_lines(timeline: Timeline) -> Iterator[str]:
    """Yield the rule of weights with versions, the stages' delays, and the steady state."""
    lowered = timeline.lowered
    rule = lowered.schedule.versions
    if rule is None:
        return
    facts = version_facts(lowered)
    sizes = lowered.schedule.update_sizes
    every = str(sizes[0]) if len(set(sizes)) == 1 else f"{' '.join(map(str, sizes))} by stage"
    yield f"weights: an update every {every}, F reads {rule.forward}, B {rule.backward}"
    figures = {
        "delay": [one.delay for one in facts],
        "drift from F to B": [one.drift for one in facts],
        "versions": [one.alive for one in facts],
    }
    yield "by stage: " + "; ".join(
        f"{name} {' '.join(map(str, numbers))}" for name, numbers in figures.items()
    )
    found_us, least_us = steady_us(timeline), least_steady_us(lowered)
    if found_us is not None and least_us is not None:
        yield (
            f"while the pipeline is full a micro-batch takes {found_us / 1000:,.3f} ms "
            f"(at least {least_us / 1000:,.3f} ms with as many in flight)"
        )


def steady_lines(plan: Plan) -> Iterator[str]:
    """Yield the bounds of the steady state of a plan that was searched for."""
    claim = plan.claim.steady
    if claim is None:
        return
    # The search calls a time optimal that is less than a tick above its bound.
    is_optimal = claim.gap == 0 or plan.claim.stopped_by.startswith(StoppedBy.OPTIMAL)
    proven = "proven optimal" if is_optimal else f"gap {percent(claim.gap)}"
    yield (
        f"of all orders with such versions: lower bound {claim.lower_bound_us / 1000:,.3f} ms, "
        f"{proven}; of those that repeat with every micro-batch: "
        f"{claim.repeating_us / 1000:,.3f} ms"
    )


def _idle_shares(asked: Objective, timeline: Timeline) -> Iterator[str]:
    """Yield mean idle and bubble rate of the objective, then those of makespan and period."""
    work_us = max(timeline.work_us)
    idle = percent(asked.bubble_rate(timeline, timeline.mean_work_us))
    yield f"mean idle {idle} of the {asked.words}"
    yield f"bubble rate {percent(asked.bubble_rate(timeline, work_us))}"
    for other in (Objective.MAKESPAN, Objective.PERIOD):
        if other != asked:
            rate, other_us = other.bubble_rate(timeline, work_us), other.value_us(timeline)
            yield f"{percent(rate)} of the {other} ({other_us} µs)"


def _throughput(plan: Plan, timeline: Timeline) -> Throughput:
    per_s = plan.claim.judged_by.iterations_per_s(timeline)
    return throughput(per_s, plan.num_micro_batches, plan.num_ranks, plan)


def _copies(plan: Plan) -> str:
    """Return the number of replicas and their names in ops; empty for one."""
    copies = len(plan.placement)
    return f" in {copies} replicas (@1: the second)" if copies > 1 else ""


def as_json(plan: Plan, lowered: Lowered, timeline: Timeline, reason: str) -> dict[str, Any]:
    """Return everything that the text shows, for scripts."""
    claim = plan.claim
    return {
        "name": plan.name,
        "profile": plan.profile_name,
        "device": plan.device,
        "num_ranks": plan.num_ranks,
        "num_micro_batches": plan.num_micro_batches,
        "objective": claim.objective,
        "makespan_us": timeline.makespan_us,
        "period_us": timeline.period_us,
        "lower_bound_us": claim.lower_bound_us,
        "gap": claim.gap,
        "bubble_rate_of_makespan": timeline.bubble_rate(timeline.makespan_us),
        "bubble_rate_of_period": timeline.bubble_rate(timeline.period_us),
        "mean_idle_of_makespan": timeline.mean_idle(timeline.makespan_us),
        "mean_idle_of_period": timeline.mean_idle(timeline.period_us),
        "versions": _versions_json(timeline),
        **_throughput(plan, timeline).as_json(),
        "reason": reason,
        "conditions": conditions_json(plan.conditions),
        "found_by": claim.found_by,
        "stopped_by": claim.stopped_by,
        "recomputed_layers": plan.recomputed_layers or (),
        "recompute_policies": plan.recompute_policies or {},
        "ranks": _ranks_json(plan, lowered, timeline),
    }


def _versions_json(timeline: Timeline) -> dict[str, Any] | None:
    lowered = timeline.lowered
    rule = lowered.schedule.versions
    if rule is None:
        return None
    return {
        "update_every": rule.every,
        "forward": rule.forward,
        "backward": rule.backward,
        "steady_us": steady_us(timeline),
        "least_steady_us": least_steady_us(lowered),
        "stages": [facts._asdict() for facts in version_facts(lowered)],
    }


def _ranks_json(plan: Plan, lowered: Lowered, timeline: Timeline) -> list[dict[str, Any]]:
    spans = planned_spans(timeline)
    return [
        {
            "rank": rank,
            "stages": [stage for stage, _ in lowered.schedule.placement.held[rank]],
            "replicas": [replica for _, replica in lowered.schedule.placement.held[rank]],
            "work_us": timeline.work_us[rank],
            "static_bytes": static_bytes(lowered, rank),
            "peak_bytes": plan.claim.peak_bytes[rank],
            "cap_bytes": None if plan.caps_bytes is None else plan.caps_bytes[rank],
            "ops": [
                {"op": str(op), "start_us": start, "end_us": end} for op, start, end in spans[rank]
            ],
        }
        for rank in range(plan.num_ranks)
    ]


def idle_line(timeline: Timeline, objective: Objective) -> list[str]:
    """Say why bubble rate and mean idle share differ, in one line; none if they are equal."""
    work_us = timeline.work_us
    rates = (objective.bubble_rate(timeline, us) for us in (max(work_us), timeline.mean_work_us))
    if len(set(map(percent, rates))) == 1:
        return []
    return [
        wrapped(
            f"(the bubble rate is the idle share of rank {work_us.index(max(work_us))}, which has "
            f"the most work; mean idle is that of all ranks, and others have less work)"
        )
    ]
