"""Optimizer headroom: memory for a run's optimizer that is not the one in the profile."""

from collections.abc import Collection

from torch import nn

from synth.errors import SynthError
from synth.optimizer import OptimizerSpec
from synth.schedule.files.plan_file import Plan
from synth.units import format_bytes

from ..optimize import static_bytes, workspace_bytes


def extra_bytes(
    plan: Plan, rank: int, modules: Collection[nn.Module], chosen: OptimizerSpec
) -> int:
    """The bytes that a rank's optimizer needs beyond those that the plan counts; may be negative.

    Raises:
        SynthError: they exceed the plan's memory limit.
    """
    profiled = plan.workload.optimizer
    if chosen == profiled:
        return 0
    extra = static_bytes(modules, chosen) - static_bytes(modules, profiled)
    extra += workspace_bytes(modules, chosen)
    needed = plan.claim.peak_bytes[rank] + extra
    if plan.caps_bytes is not None and needed > plan.caps_bytes[rank]:
        raise SynthError(
            f"rank {rank} needs {format_bytes(needed)} with the optimizer {chosen}, its memory "
            f"limit is {format_bytes(plan.caps_bytes[rank])}; the plan was made for {profiled}, "
            f"which takes {format_bytes(extra)} less: profile with the other optimizer and solve "
            f"again, or leave it as it was"
        )
    return extra
