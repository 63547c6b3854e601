"""A plan under PyTorch's own pipelining runtime, by the path that programs import.

pipeline = synth.interop.torch.build("plan.json", layers)
loss = pipeline.step(tokens, target=targets)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.errors import SynthError
from synth.interop.torch_csv import to_torch_csv
from synth.records.safe_read import AnyPath
from synth.schedule.files.plan_file import Plan

if TYPE_CHECKING:
    from torch import device as Device
    from torch.distributed import ProcessGroup

    from synth.runtime.pytorch_pipeline import Layers, LossFunction, TorchPipeline

__all__ = ["build"]


def build(
    plan: Plan | AnyPath,
    modules: Layers,
    *,
    loss_fn: LossFunction | None = None,
    group: ProcessGroup | None = None,
    device: Device | str | None = None,
) -> TorchPipeline:
    """Build the `PipelineStage`s of this rank, and the schedule that runs them in the plan's order.

    Args:
        plan: a plan or its file, for as many ranks as the group has.
        modules: all layers of the model, in the order in which they were profiled; or those of this
            rank's stages, as `{stage: module or layers}`. Layers of a stage are called one after
            another; a tuple that one returns becomes arguments of the next, also of the next stage.
            Those in `plan.recomputed_layers` are to be wrapped in activation checkpointing before.
        loss_fn: the loss, given the last stage's output and the targets; None: the last layer takes
            the targets as its last argument and returns it.
        group: the processes of the pipeline; None: all.
        device: of the stages; None: that of their parameters.

    Returns:
        The stages and the schedule (`_PipelineScheduleRuntime`), and a `step` that runs both.

    Raises:
        SynthError: the plan cannot run or be expressed (`to_torch_csv`), is for another number of
            ranks, or the modules are of other stages.
    """
    from synth.runtime.pytorch_pipeline import build_pipeline

    plan = plan if isinstance(plan, Plan) else Plan.load(plan)
    plan.check()
    if plan.weights is not None:
        raise SynthError(
            f"plan {plan.name!r} is of pipelines with sharded state; write its CSV with `synth "
            f"export`, wrap the stages in fully_shard, and load it with format='compute_comms'"
        )
    csv = to_torch_csv(plan.schedule())
    return build_pipeline(plan, csv, modules, loss_fn, group, device)
