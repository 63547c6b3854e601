"""The STEPs of emulated devices: they take their time, and wait as real ones do."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered

from ..execution.base.stepper import Stepper
from ..execution.transport.groups import Group
from ..optimize import GradientNorm
from .emulated_clock import EmulatedClock, now_ns
from .emulated_stage import EmulatedStage

_CPU = torch.device("cpu")


def make_steps(
    lowered: Lowered,
    group: Group,
    stages: Mapping[int, EmulatedStage],
    device: EmulatedClock,
    *,
    late: bool,
) -> Stepper:
    """The steps of a rank, validated `late` or not; every rank calls this at the same time."""
    if late:
        return _LateSteps(stages, group.subgroup(range(group.size), purpose="norm"))
    stepping = [
        rank for rank, ops in enumerate(lowered.ops) if any(op.kind == OpKind.STEP for op in ops)
    ]
    return _Steps(stages, group.subgroup(stepping, purpose="norm"), device)


def step_durations(lowered: Lowered, rank: int) -> dict[int, int]:
    """The time in µs of a rank's STEP of each stage; of a stage with several homes its share."""
    first = lowered.first_node[rank]
    return {
        op.stage: lowered.durations_us[node]
        for node, op in enumerate(lowered.ops[rank], first)
        if op.kind == OpKind.STEP
    }


class _Steps:
    """STEPs after a sum over the ranks that have any, like that of the global norm."""

    late = False

    def __init__(
        self, stages: Mapping[int, EmulatedStage], group: Any, device: EmulatedClock
    ) -> None:
        self._stages, self._group, self._device = stages, group, device
        self._latest = dist.AllreduceOptions()
        self._latest.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)

    def begin(self) -> None:
        """Do nothing: there are no gradients."""

    def validate(self) -> bool:
        """Return True: no step is ever wrong."""
        return True

    def synchronize(self) -> None:
        """Wait for all ranks that step."""
        asked_ns, late_ns = now_ns(), torch.tensor([self._device.late_ns])
        self._group.allreduce([late_ns], self._latest).wait()
        self._device.arrived(0, asked_ns, int(late_ns))

    def step(self, stage: int) -> None:
        """STEP of one stage."""
        self._stages[stage].step()

    def finish(self) -> bool:
        """Return True: no step is open."""
        return True


class _LateSteps:
    """STEPs that do not wait: the norm is gathered after them."""

    late = True

    def __init__(self, stages: Mapping[int, EmulatedStage], group: Any) -> None:
        self._stages = stages
        self._norm = GradientNorm(None, _CPU, group)
        self._open = False

    def begin(self) -> None:
        """Do nothing: there are no gradients."""

    def validate(self) -> bool:
        """Wait for the norm; no step is ever wrong."""
        return self.finish()

    def synchronize(self) -> None:
        """Start gathering the norm."""
        self._norm.start(())
        self._open = True

    def step(self, stage: int) -> None:
        """STEP of one stage."""
        self._stages[stage].step()

    def finish(self) -> bool:
        """Wait for the norm."""
        if self._open:
            self._norm.verdict()
            self._open = False
        return True
