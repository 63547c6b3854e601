"""Pipelines side by side that share the optimizer state: one to search, and the plan of them all.

A search sees one pipeline. Its layers keep 1/n of their optimizer state, and their STEPs take 1/n
of the time (ZeRO-1). The schedule that it finds is run n times side by side
(`synth.schedule.sharded_pipelines`), with all-gathers of parameters and reduce-scatters of
gradients, which work in place and need no memory. They only delay ops, so that a lower bound for
one pipeline without them holds for all pipelines with them.
"""

from dataclasses import replace
from typing import Any, overload

from synth.costs import StageCosts
from synth.layer_profile import LayerProfile
from synth.op_kinds import VISITS, OpKind
from synth.partition_costs import partition_costs
from synth.profile import Profile
from synth.recomputed_layers import recomputing
from synth.schedule.files.plan_file import Plan, program_text
from synth.schedule.memory import peak_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Sharded
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result, StoppedBy


def sharing_optimizer(profile: Profile, num_pipelines: int) -> Profile:
    """Return the profile with a share of the optimizer state, and of the time of STEPs."""
    if num_pipelines == 1:
        return profile
    shared = {name: _shared(layer, num_pipelines) for name, layer in profile.layer_profiles.items()}
    return profile.replace(layer_profiles=shared)


def _shared(layer: LayerProfile, num_pipelines: int) -> LayerProfile:
    """Bytes are rounded up: a share of a stage is at most the sum of its layers' shares."""
    step = layer.time_us[OpKind.STEP]
    shared = step.replace(
        median_us=step.median_us / num_pipelines,
        p10_us=step.p10_us / num_pipelines,
        p90_us=step.p90_us / num_pipelines,
    )
    return layer.replace(
        optimizer_bytes=-(-layer.optimizer_bytes // num_pipelines),
        time_us={**layer.time_us, OpKind.STEP: shared},
    )


def problem_of_all(problem: Problem, profile: Profile, num_pipelines: int) -> Problem:
    """Return the problem of all pipelines together, on the costs of whole layers.

    Args:
        problem: of one pipeline, with a partition.
        profile: of the layers, which share nothing and recompute nothing yet.
        num_pipelines: their number.
    """
    assert problem.partition is not None
    one, count = problem.placement, range(num_pipelines)
    ranks = tuple(tuple(d * problem.num_ranks + rank for rank in one.ranks[0]) for d in count)
    caps = problem.caps_bytes
    return replace(
        problem,
        costs=partition_costs(recomputing(profile, problem.recomputed_layers), problem.partition),
        placement=replace(one, ranks=ranks),
        num_micro_batches=num_pipelines * problem.num_micro_batches,
        caps_bytes=None if caps is None else caps * num_pipelines,
        profile=None,
    )


@overload
def of_all(found: Result, problem: Problem, num_pipelines: int) -> Result: ...


@overload
def of_all(found: Incumbent, problem: Problem, num_pipelines: int) -> Incumbent: ...


def of_all(found: Incumbent | Result, problem: Problem, num_pipelines: int) -> Incumbent | Result:
    """Return a solution for one pipeline as a solution of the `problem_of_all`.

    Published schedules are those of one pipeline, and left out. A search that had proven its
    schedule is exhausted if collectives leave a gap.
    """
    if num_pipelines == 1 or found.schedule is None:
        return found
    schedule = sharded_pipelines(found.schedule, num_pipelines)
    lowered, timeline = verify(schedule, problem.costs, problem.caps_bytes)
    simulated: dict[str, Any] = {
        "schedule": schedule,
        "timeline": timeline,
        "value_us": problem.objective.value_us(timeline),
        "peak_bytes": peak_bytes(lowered),
        "certificate": None,
    }
    if isinstance(found, Incumbent):
        return replace(found, **simulated)
    whole = replace(found, **simulated, problem=problem, baselines=())
    if whole.gap != found.gap and whole.stopped_by in _PROVEN:
        return replace(whole, stopped_by=StoppedBy.EXHAUSTED)
    return whole


_PROVEN = (StoppedBy.OPTIMAL, StoppedBy.GAP)


def one_pipeline(plan: Plan) -> Plan | None:
    """Return what a search saw of a plan: the first pipeline, with its share of optimizer state.

    The claim stays that of all pipelines. None: the plan has no pipelines side by side that share
    optimizer state.
    """
    schedule, num_pipelines = plan.schedule(), len(plan.placement)
    num_ranks, count = plan.num_ranks // num_pipelines, plan.num_micro_batches // num_pipelines
    first, flow = schedule.placement.ranks[0], schedule.weights
    if flow is None or num_ranks == 1 or flow.sharded != Sharded.OPTIMIZER:
        return None
    ranks = tuple(tuple(d * num_ranks + r for r in first) for d in range(num_pipelines))
    if plan.placement != ranks:
        return None
    own = (
        tuple(op for op in program if op.kind not in VISITS)
        for program in schedule.programs[:num_ranks]
    )
    stages = tuple(_shared_stage(stage, num_pipelines) for stage in plan.costs.stages)
    return plan.replace(
        placement=(first,),
        programs=tuple(map(program_text, own)),
        num_micro_batches=count,
        weights=None,
        caps_bytes=None if plan.caps_bytes is None else plan.caps_bytes[:num_ranks],
        costs=plan.costs.replace(stages=stages),
    )


def _shared_stage(stage: StageCosts, num_pipelines: int) -> StageCosts:
    kept = stage.parameter_bytes + stage.gradient_bytes
    step_us = -(-stage.duration_us[OpKind.STEP] // num_pipelines)
    return stage.replace(
        static_bytes=kept - (kept - stage.static_bytes) // num_pipelines,
        duration_us={**stage.duration_us, OpKind.STEP: step_us},
    )
