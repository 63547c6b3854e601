"""One of several data-parallel pipelines, with the least memory that any sharding leaves it.

A schedule of all pipelines that shards any part of their state is a schedule of this one: ranks
keep at least a share of all state, and the running op needs its weights and its gradient whole.
Collectives only delay ops. So a lower bound for this pipeline holds for all kinds of sharding and
all places of all-gathers and reduce-scatters.
"""

from dataclasses import replace

from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import ADDING, READING, OpKind
from synth.schedule.model import Placement
from synth.schedule.rank_memory import sharded_bytes
from synth.schedule.weight_flow import Sharded
from synth.solver.problem import Problem

# None: ranks keep all state, and gradients are added up by all-reduces.
SHARDINGS: tuple[Sharded | None, ...] = (None, *Sharded)


def with_least_share(costs: Costs, num_pipelines: int) -> Costs:
    """Return the costs of one pipeline whose ranks keep and update their share of all state.

    Args:
        costs: the costs of whole stages, with the bytes of parameters known.
        num_pipelines: the data-parallel pipelines.
    """
    stages = tuple(_least_share(stage, num_pipelines) for stage in costs.stages)
    return costs.replace(stages=stages, ties=tuple(tie.share(num_pipelines) for tie in costs.ties))


def with_share(costs: Costs, num_pipelines: int, sharded: Sharded | None) -> Costs:
    """Return the costs of one pipeline that keeps a share of some state, and the rest whole.

    The buffers of all-gathers and the gradients that are accumulated for reduce-scatters are not
    counted.
    """
    stages = tuple(
        _updating_a_share(stage, num_pipelines, _kept_bytes(stage, num_pipelines, sharded))
        for stage in costs.stages
    )
    shared = costs if sharded is None else costs.untied()
    return shared.replace(stages=stages)


def with_optimizer_share(costs: Costs, num_pipelines: int) -> Costs:
    """Return the costs of one pipeline that keeps its share of the optimizer state (ZeRO-1)."""
    stages = []
    for stage in costs.stages:
        whole = stage.parameter_bytes + stage.gradient_bytes
        kept_bytes = whole - (whole - stage.static_bytes) // num_pipelines
        stages.append(_updating_a_share(stage, num_pipelines, kept_bytes))
    return costs.replace(stages=tuple(stages), ties=())


def one_of(problem: Problem, costs: Costs) -> Problem:
    """Return the problem of the first of several data-parallel pipelines, on given costs."""
    num_pipelines = problem.num_replicas
    num_ranks, caps = problem.num_ranks // num_pipelines, problem.caps_bytes
    return replace(
        problem,
        costs=costs,
        placement=Placement(problem.placement.ranks[:1]),
        num_micro_batches=problem.num_micro_batches // num_pipelines,
        caps_bytes=None if caps is None else caps[:num_ranks],
        profile=None,
    )


def _least_share(stage: StageCosts, num_pipelines: int) -> StageCosts:
    kept = _kept_bytes(stage, num_pipelines, Sharded.WEIGHTS)
    more = {
        kind: min(_held_bytes(stage, num_pipelines, sharded, kind) for sharded in SHARDINGS) - kept
        for kind in (*READING, *ADDING)
    }
    rise_bytes = {kind: rise + more.get(kind, 0) for kind, rise in stage.rise_bytes.items()}
    light = stage.light_rise_bytes
    return _updating_a_share(stage, num_pipelines, kept).replace(
        rise_bytes=rise_bytes, light_rise_bytes=None if light is None else light + more[OpKind.F]
    )


def _held_bytes(
    stage: StageCosts, num_pipelines: int, sharded: Sharded | None, kind: OpKind
) -> int:
    """The least state of its stage that a rank holds while an op runs."""
    held = _kept_bytes(stage, num_pipelines, sharded)
    if sharded == Sharded.WEIGHTS and kind in READING:
        held += stage.parameter_bytes
    if sharded in (Sharded.GRADIENTS, Sharded.WEIGHTS) and kind in ADDING:
        held += stage.gradient_bytes
    return held


def _kept_bytes(stage: StageCosts, num_pipelines: int, sharded: Sharded | None) -> int:
    """The state of a stage that a rank holds all the time."""
    shared = 0 if sharded is None else sharded_bytes(stage, sharded)
    return stage.static_bytes - shared + -(-shared // num_pipelines)


def _updating_a_share(stage: StageCosts, num_pipelines: int, kept_bytes: int) -> StageCosts:
    step_us = -(-stage.duration_us[OpKind.STEP] // num_pipelines)
    return stage.replace(
        static_bytes=kept_bytes,
        duration_us={**stage.duration_us, OpKind.STEP: step_us},
        reduce_us=0,
    )
