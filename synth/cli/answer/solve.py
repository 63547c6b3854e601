"""The answer of `synth solve`: baselines, value, lower bound and memory."""

from typing import Any

from synth.cli.answer.baselines import baselines_table
from synth.cli.answer.least_memory import memory_json, memory_text
from synth.cli.answer.output import (
    conditions_json,
    estimate_json,
    estimate_lines,
    percent,
    value_line,
    window_columns,
    wrapped,
)
from synth.cli.answer.show import idle_line, steady_lines, version_lines
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.option_names import named
from synth.options.recompute import LAYERS
from synth.options.request import Request
from synth.plan.choose.unsearched import best_unsearched
from synth.plan.memory_curve.target_proof import TargetProof
from synth.plan.reason import reason_of
from synth.plan.runtimes import Runtime
from synth.report.text.plan_table import plan_table
from synth.report.text.tables import by_partition, listed, recomputed_places, size_unit, table
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Schedule
from synth.schedule.recomputed_stages import recomputed
from synth.schedule.simulate import Timeline
from synth.schedule.version_facts import largest_versions
from synth.search.outcome import StoppedBy
from synth.solver.result import Baseline, Result, SteadyBaseline, SteadyProof
from synth.system.processor_waits import WORTH_TELLING
from synth.units import format_us

# The published schedules beside the one found, and how many more make no difference.
_SHOWN, _NOT_WORTH_A_LINE = 8, 2

# The ends of a search after which more processor time would change nothing.
_DECIDED = (StoppedBy.OPTIMAL, StoppedBy.GAP, StoppedBy.INFEASIBLE)


def as_text(
    request: Request, result: Result, plan: Plan, more: str = "", *, has_all_rows: bool = True
) -> str:
    """Return the tables and the lines between them.

    Args:
        plan: the result's plan.
        more: follows the first table.
        has_all_rows: the first table has all published schedules, not only those that matter.
    """
    assert result.timeline is not None
    timeline = result.timeline
    lowered = timeline.lowered
    if result.steady is not None:
        return steady_text(plan, result, (lowered, timeline), request.limit.explanation)
    objective = plan.claim.judged_by
    assert result.value_us is not None and result.gap is not None
    rate = percent(objective.bubble_rate(timeline, max(timeline.work_us)))
    idle = percent(objective.bubble_rate(timeline, timeline.mean_work_us))
    over, speed = percent(request.over_ideal(timeline)), request.throughput(timeline).words
    rivals = _rivals(request, result)
    shown = rivals if has_all_rows else worth_showing(rivals, objective, result.value_us)
    missing = len(rivals) - len(shown)
    proof = result.memory
    return "\n".join(
        (
            *estimate_lines(request.profile),
            *([memory_text(result, proof), ""] if isinstance(proof, TargetProof) else []),
            _table_of(request, result, shown),
            *([f"({missing} more published schedules: --all)"] if missing else []),
            *_own_partitions(request, shown),
            *(["", more] if more else []),
            "",
            value_line(objective.words, result.value_us, result.lower_bound_us, result.gap),
            *_faster_on_placement(request, result),
            *_faster_elsewhere(request, result),
            f"{over} over the ideal, mean idle {idle} of the {objective.words}, bubble rate {rate}"
            f"{speed and f', {speed}'}",
            *idle_line(timeline, objective),
            *_status(result),
            wrapped(f"why: {reason_of(plan, lowered, timeline)}"),
            *_what_is_left(request, result),
            request.limit.explanation,
            *_recomputed(result, lowered.schedule),
            "",
            plan_table(plan, lowered, timeline),
        )
    )


def as_json(request: Request, result: Result) -> dict[str, Any]:
    """Return the answer for scripts; without a schedule, the reason."""
    timeline, objective = result.timeline, result.problem.objective
    found = (
        {}
        if timeline is None
        else {
            "makespan_us": timeline.makespan_us,
            "period_us": timeline.period_us,
            "over_ideal": request.over_ideal(timeline),
            "bubble_rate": objective.bubble_rate(timeline, max(timeline.work_us)),
            "mean_idle": objective.bubble_rate(timeline, timeline.mean_work_us),
            **request.throughput(timeline).as_json(),
            "peak_bytes": result.peak_bytes,
            "found_by": result.found_by,
            "recomputed": [] if result.schedule is None else recomputed(result.schedule),
            "recomputed_layers": tuple(result.problem.recomputed_layers),
            "recompute_policies": result.problem.recomputed_layers.of_policies,
            "gap": result.gap,
        }
    )
    return {
        "objective": str(objective),
        "value_us": result.value_us,
        "lower_bound_us": result.lower_bound_us,
        "bound_holds_for": result.bound_scope,
        **found,
        "stopped_by": result.stopped_by,
        "message": result.message and named(result.message),
        "seconds": round(result.wall_s, 3),
        "waiting_share": result.waiting_share,
        "conditions": conditions_json(request.profile.provenance.conditions),
        **estimate_json(request.profile),
        "partition": request.partition,
        "placement": request.problem.placement.ranks,
        "caps_bytes": request.problem.caps_bytes,
        "rivals": [
            {
                "name": baseline.name,
                "makespan_us": baseline.makespan_us,
                "period_us": baseline.period_us,
                "over_ideal": request.over_ideal(baseline),
                "bubble_rate": objective.bubble_rate(baseline, baseline.work_us),
                "mean_idle": objective.bubble_rate(baseline, baseline.mean_work_us),
                **request.throughput(baseline).as_json(),
                "peak_bytes": baseline.peak_bytes,
                "partition": baseline.partition or request.partition,
                "fits": None if request.problem.caps_bytes is None else baseline.fits,
            }
            for baseline in _rivals(request, result)
        ],
        "plan": str(request.output) if request.output and timeline is not None else None,
        **steady_json(result.steady),
        **memory_json(result),
    }


def _rivals(request: Request, result: Result) -> list[Baseline]:
    """Return the published schedules that the plan's runtime can run."""
    runs = request.allowed.runs
    return [one for one in result.baselines if runs(one.name, keeps_saved=one.keeps_saved)]


def worth_showing(rivals: list[Baseline], objective: Objective, found_us: int) -> list[Baseline]:
    """Return the few schedules that matter: the fastest that fit, and the nearest that do not.

    One that does not fit is among them if there is any.

    Args:
        objective: what their times are measured by.
    """
    if len(rivals) <= _SHOWN + _NOT_WORTH_A_LINE:
        return rivals
    fitting = sorted((one for one in rivals if one.fits), key=objective.value_us)
    others = [one for one in rivals if not one.fits]
    others.sort(key=lambda one: abs(objective.value_us(one) - found_us))
    kept = fitting[: _SHOWN - bool(others)]
    return kept + others[: _SHOWN - len(kept)]


def _table_of(request: Request, result: Result, rivals: list[Baseline]) -> str:
    """Return the table of published schedules, slowest first, and of the one found."""
    problem, objective = request.problem, request.problem.objective
    assert result.timeline is not None and result.peak_bytes is not None
    ours = Baseline.of("this plan", result.timeline, result.peak_bytes, fits=True)
    listed = [*sorted(rivals, key=lambda rival: -objective.value_us(rival)), ours]
    has_cap, speed = problem.caps_bytes is not None, request.throughput
    over = request.over_ideal
    return baselines_table(listed, objective, over, speed, window_columns(), has_cap=has_cap)


def _own_partitions(request: Request, rivals: list[Baseline]) -> list[str]:
    """List the partitions of published schedules that are not the plan's."""
    own = [
        (one.partition, one.name)
        for one in rivals
        if one.partition is not None and one.partition != request.partition
    ]
    return ["", "layers of each stage:", *listed(by_partition(own))] if own else []


def _status(result: Result) -> list[str]:
    """Say why and when the search ended, and whether others had its processors meanwhile."""
    said = [f"status: {result.stopped_by} ({result.found_by}) after {result.wall_s:.1f} s"]
    share, is_open = result.waiting_share or 0.0, result.stopped_by not in _DECIDED
    if is_open and share > WORTH_TELLING:
        said.append(
            f"the search waited {percent(share, 0)} of its time for a processor; on a quiet "
            f"machine it finds more in the same time, or give a longer --time-limit"
        )
    return said


def _what_is_left(request: Request, result: Result) -> list[str]:
    """Explain a search all of whose parts ended without a proof."""
    if result.stopped_by != StoppedBy.NOTHING_BETTER:
        return []
    allowed = request.allowed
    if not allowed.orders_freely:
        return [
            f"nothing better found: every part of the search has ended; the lower bound holds for "
            f"every order, also for those that {allowed.runtime} cannot run"
        ]
    return [
        "nothing better found: every part of the search has ended, and more time would change "
        "little; it is not proven that there is nothing better between the bound and the plan"
    ]


def _recomputed(result: Result, schedule: Schedule) -> list[str]:
    """List the layers that are recomputed within B, and the stages before it, if any."""
    stages, layers = recomputed(schedule), result.problem.recomputed_layers
    said = [f"layer{'s' * (len(layers) > 1)} {recomputed_places(layers)} in B"] if layers else []
    if stages:
        said.append(f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}")
    return [f"recomputed: {'; '.join(said)}"] if said else []


def _faster_on_placement(request: Request, result: Result) -> list[str]:
    """Mention the best one that the search may not take, as it recomputes or offloads."""
    value_us, found_us = request.problem.objective.value_us, result.value_us
    assert found_us is not None
    is_other = request.allowed.runtime != Runtime.SYNTH
    can_rebuild = is_other or OpKind.R in request.problem.further_ops
    faster = [
        r
        for r in result.baselines
        if r.fits and not r.keeps_saved and (can_rebuild or r.offloads) and value_us(r) < found_us
    ]
    if not faster:
        return []
    best = min(faster, key=value_us)
    ways = [] if request.recompute is None else ["try --recompute auto"]
    if is_other:
        runtime, has_menu = request.allowed.runtime, request.allowed.layer_menu is not None
        layers = "auto" if has_menu else f"{LAYERS}all"
        is_tried = has_menu and request.recompute is None
        ways = [] if is_tried else [f"give --recompute {layers}, which {runtime} can run"]
        ways.append("leave --for out")
    elif best.offloads and OpKind.OFFLOAD not in request.problem.further_ops:
        ways.append("allow it with --offload")
    how = "offloads" if best.offloads else "recomputes"
    return [
        f"{best.name} fits and takes {_less(value_us(best), found_us)}, as it {how} activations in "
        f"a way that the search did not: "
        f"{', or '.join((*ways, 'take it from synth compare --save FOLDER'))}"
    ]


def _faster_elsewhere(request: Request, result: Result) -> list[str]:
    """Mention the best one on a placement, or with an order, that was not searched."""
    best, found_us = best_unsearched(request.unsearched), result.value_us
    assert found_us is not None
    if best is None or best.value_us >= found_us:
        return []
    how = f"on a placement that was not searched; give --placement {best.placement}"
    runtime = request.allowed.runtime
    if runtime != Runtime.SYNTH:
        how = f"but {runtime} cannot run it; give --placement {best.placement} without --for"
    return [f"{best.name} fits and takes {_less(best.value_us, found_us)}, {how}"]


def _less(value_us: int, found_us: int) -> str:
    """Return `1.19 s, 3.1 % less`."""
    return f"{format_us(value_us)}, {1 - value_us / found_us:.1%} less"


def steady_text(plan: Plan, result: Result, simulated: tuple[Lowered, Timeline], limit: str) -> str:
    """Return the table of schedules without a flush, the bounds, and the table of ranks.

    Args:
        plan: the result's plan.
        simulated: the plan's schedule.
        limit: explains the memory limit.
    """
    lowered, timeline = simulated
    assert result.steady is not None
    bounds = (
        "the bound of all orders, in which stages take micro-batches in order, is from work, links "
        "and the states of a stage; that of orders which repeat with every micro-batch is proven "
        "by CP-SAT"
    )
    return "\n".join(
        (
            _table(result, lowered, result.steady),
            "",
            *version_lines(timeline),
            *steady_lines(plan),
            wrapped(bounds),
            f"makespan {timeline.makespan_us / 1000:,.3f} ms with fill and drain",
            *_status(result),
            limit,
            "",
            plan_table(plan, lowered, timeline),
        )
    )


def _table(result: Result, lowered: Lowered, proof: SteadyProof) -> str:
    assert result.peak_bytes is not None
    has_cap, facts = result.problem.caps_bytes is not None, largest_versions(lowered)
    peaks = result.peak_bytes
    own = SteadyBaseline("this plan", proof.us, facts.delay, facts.alive, peaks, fits=True)
    listed = (*proof.baselines, own)
    factor, unit = size_unit(max(max(one.peak_bytes) for one in listed))
    header = ["schedule", "ms of a\nmicro-batch", "delay", "versions", f"peak memory\n{unit}"]
    rows = [
        [
            one.name,
            "never full" if one.us is None else f"{one.us / 1000:,.3f}",
            str(one.delay),
            str(one.versions),
            f"{max(one.peak_bytes) / factor:,.3f}",
            *(["yes" if one.fits else "no"] if has_cap else []),
        ]
        for one in listed
    ]
    return table([*header, *(["fits"] if has_cap else [])], rows)


def steady_json(proof: SteadyProof | None) -> dict[str, Any]:
    """Return the steady state for scripts; nothing if the search was not for one."""
    if proof is None:
        return {}
    return {
        "steady": {
            "micro_batch_us": proof.us,
            "lower_bound_us": proof.lower_bound_us,
            "gap": proof.gap,
            "repeating_us": proof.repeating_us,
            "rivals": [
                {
                    "name": one.name,
                    "micro_batch_us": one.us,
                    "delay": one.delay,
                    "versions": one.versions,
                    "peak_bytes": one.peak_bytes,
                    "fits": one.fits,
                }
                for one in proof.baselines
            ],
        }
    }
