"""PyTorch's pipeline runtimes: its schedule classes, and its runtime given our order.

A native class has an order of its own, which may differ from ours: those of `interleaved` and
`zb-v` do.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    _PipelineSchedule,
    _PipelineScheduleRuntime,
)

from benchmarks.executor.case import Case
from benchmarks.executor.stages import WholeBatch, build_stage, loss_of
from synth.interop.torch_csv import to_torch_csv
from synth.op_kinds import OpKind

# By the family, and whether B and W are apart (None: those that the family has apart). The first
# are for ranks with one stage.
_Kind = tuple[str, bool | None]
_SINGLE: Mapping[_Kind, type[PipelineScheduleSingle]] = {
    ("gpipe", False): ScheduleGPipe,
    ("1f1b", False): Schedule1F1B,
}
_SEVERAL: Mapping[_Kind, type[PipelineScheduleMulti]] = {
    ("interleaved", False): ScheduleInterleaved1F1B,
    ("interleaved", True): ScheduleInterleavedZeroBubble,
    ("breadth-first", False): ScheduleLoopedBFS,
    ("zb-v", True): ScheduleZBVZeroBubble,
    ("dualpipe-v", None): ScheduleDualPipeV,
}


def has_native(case: Case) -> bool:
    """True if PyTorch has a class for the schedule that splits the backwards of the case."""
    return _kind(case) in {**_SINGLE, **_SEVERAL}


def _kind(case: Case) -> _Kind:
    """Return name and kind of a case: True if B and W are apart, None if only some are."""
    kinds = {op.kind for program in case.make_schedule().programs for op in program}
    return case.schedule, None if {OpKind.B, OpKind.BW} <= kinds else OpKind.B in kinds


class Theirs:
    """One rank under `_PipelineScheduleRuntime`, or under the schedule's native class."""

    def __init__(self, case: Case, rank: int, batch: WholeBatch, *, native: bool = False) -> None:
        schedule = case.make_schedule()
        placement = schedule.placement
        last = placement.num_stages - 1
        self._modules = {
            stage: nn.Sequential(*build_stage(case, stage)) for stage, _ in placement.held[rank]
        }
        device = torch.device(case.device)
        stages = [
            PipelineStage(module, number, placement.num_stages, device)
            for number, module in self._modules.items()
        ]
        count, name = case.num_micro_batches, _kind(case)
        self._schedule: _PipelineSchedule
        if native and name in _SINGLE:
            self._schedule = _SINGLE[name](stages[0], count, loss_fn=loss_of)
        elif native:
            self._schedule = _SEVERAL[name](list(stages), count, loss_fn=loss_of)
        else:
            runtime = _PipelineScheduleRuntime(stages, count, loss_fn=loss_of)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "schedule.csv"
                path.write_text(to_torch_csv(schedule))
                runtime._load_csv(str(path))
            self._schedule = runtime
        inputs, targets = batch
        self._inputs = (inputs,) if 0 in self._modules else ()
        self._targets = targets if last in self._modules else None

    def step(self) -> Tensor | None:
        """One mini-batch; the mean loss on the rank with the last stage."""
        losses: list[Tensor] = []
        self._schedule.step(
            *self._inputs, target=self._targets, losses=losses, return_outputs=False
        )
        return torch.stack([loss.detach() for loss in losses]).mean() if losses else None

    def parameters(self) -> dict[int, list[nn.Parameter]]:
        """By stage."""
        return {stage: list(module.parameters()) for stage, module in self._modules.items()}
