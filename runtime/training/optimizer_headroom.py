"""Memory of a run's updates that the plan does not count: another optimizer, predicted weights."""

from collections.abc import Collection, Mapping

from torch import nn

from synth.costs.stage_costs import StageCosts
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile.optimizer import OptimizerSpec
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import lower
from synth.schedule.rank_memory import peak_bytes
from synth.units import format_bytes

from ..optimize import prediction_bytes, static_bytes, workspace_bytes


def extra_bytes(
    plan: Plan,
    rank: int,
    stages: Mapping[int, nn.Module],
    updated: Collection[nn.Module],
    chosen: OptimizerSpec,
    *,
    predicted: Collection[nn.Module] = (),
) -> int:
    """The bytes that a rank's updates need beyond those that the plan counts; may be negative.

    Args:
        updated: the modules that its STEPs update in its own memory; none if the host keeps them.
        predicted: the stages whose forwards read predicted weights.

    Raises:
        SynthError: they exceed the plan's memory limit.
    """
    profiled = plan.workload.optimizer
    extra = 0
    if chosen != profiled:
        extra = workspace_bytes(updated, chosen)
        if plan.weights is None:
            modules = stages.values()
            extra += static_bytes(modules, chosen) - static_bytes(modules, profiled)
        else:
            extra += _peak_growth(plan, rank, stages, chosen)
        _check(
            plan,
            rank,
            extra,
            f"with the optimizer {chosen}",
            f"the plan was made for {profiled}, which takes {format_bytes(extra)} less: profile "
            f"with the other optimizer and solve again, or leave it as it was",
        )
    if predicted:
        copy = prediction_bytes(predicted)
        extra += copy
        _check(
            plan,
            rank,
            extra,
            "with predicted weights",
            f"the copy of a stage's weights takes {format_bytes(copy)}: solve again with a "
            f"--mem-limit that is smaller by that, or leave --weight-prediction out",
        )
    return extra


def _peak_growth(
    plan: Plan, rank: int, stages: Mapping[int, nn.Module], chosen: OptimizerSpec
) -> int:
    """The bytes by which another optimizer raises a rank's peak with weight passing.

    Sums of gradients come and go there, so the peak is that of the programs with other sizes.
    """
    costs = list(plan.costs.stages)
    for number, module in stages.items():
        costs[number] = _updated_by(chosen, plan.workload.optimizer, costs[number], module)
    lowered = lower(plan.schedule(), plan.costs.replace(stages=tuple(costs)))
    return peak_bytes(lowered)[rank] - plan.claim.peak_bytes[rank]


def _updated_by(
    chosen: OptimizerSpec, profiled: OptimizerSpec, costs: StageCosts, module: nn.Module
) -> StageCosts:
    """A stage's costs with another optimizer than the profile's."""
    sizes = [(p.numel(), p.element_size()) for p in module.parameters() if p.requires_grad]
    wider = [chosen.gradient_bytes(*size) - profiled.gradient_bytes(*size) for size in sizes]
    # Autograd converts the gradient of one parameter after the other before it adds it. That may be
    # after the peak of a backward, so this is an upper bound.
    converted = [
        chosen.gradient_bytes(*size) for size, more in zip(sizes, wider, strict=True) if more > 0
    ]
    rises = dict(costs.rise_bytes)
    for kind in (OpKind.B, OpKind.W, OpKind.BW):
        rises[kind] += max(converted, default=0)
    return costs.replace(
        static_bytes=costs.static_bytes
        + static_bytes([module], chosen)
        - static_bytes([module], profiled),
        gradient_bytes=costs.gradient_bytes + sum(wider),
        rise_bytes=rises,
    )


def _check(plan: Plan, rank: int, extra: int, cause: str, way_out: str) -> None:
    needed = plan.claim.peak_bytes[rank] + extra
    if plan.caps_bytes is not None and needed > plan.caps_bytes[rank]:
        raise SynthError(
            f"rank {rank} needs {format_bytes(needed)} {cause}, its memory limit is "
            f"{format_bytes(plan.caps_bytes[rank])}; {way_out}"
        )
