"""Memory of a run's updates that the plan does not count: another optimizer, predicted weights."""

from collections.abc import Collection

from torch import nn

from synth.errors import SynthError
from synth.optimizer import OptimizerSpec
from synth.schedule.files.plan_file import Plan
from synth.units import format_bytes

from ..optimize import prediction_bytes, static_bytes, workspace_bytes


def extra_bytes(
    plan: Plan,
    rank: int,
    modules: Collection[nn.Module],
    chosen: OptimizerSpec,
    *,
    predicted: Collection[nn.Module] = (),
) -> int:
    """The bytes that a rank's updates need beyond those that the plan counts; may be negative.

    Args:
        plan: of the run.
        rank: of the plan.
        modules: the stages of the rank.
        chosen: the optimizer of the run.
        predicted: the stages whose forwards read predicted weights.

    Raises:
        SynthError: they exceed the plan's memory limit.
    """
    profiled = plan.workload.optimizer
    extra = 0
    if chosen != profiled:
        extra = static_bytes(modules, chosen) - static_bytes(modules, profiled)
        extra += workspace_bytes(modules, chosen)
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


def _check(plan: Plan, rank: int, extra: int, cause: str, way_out: str) -> None:
    needed = plan.claim.peak_bytes[rank] + extra
    if plan.caps_bytes is not None and needed > plan.caps_bytes[rank]:
        raise SynthError(
            f"rank {rank} needs {format_bytes(needed)} {cause}, its memory limit is "
            f"{format_bytes(plan.caps_bytes[rank])}; {way_out}"
        )
