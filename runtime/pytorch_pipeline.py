"""A plan as stages and a schedule of PyTorch's own `torch.distributed.pipelining`."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.utils._pytree import tree_map_only

from synth.errors import SynthError
from synth.schedule.files.plan_file import Plan

Layers = Sequence[nn.Module] | Mapping[int, nn.Module | Sequence[nn.Module]]
LossFunction = Callable[[Any, Any], Tensor]


class TorchPipeline(NamedTuple):
    """A rank of a pipeline of PyTorch's: its stages, and the schedule that runs them."""

    stages: list[PipelineStage]
    schedule: _PipelineScheduleRuntime

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of all stages of this rank."""
        return [each for stage in self.stages for each in stage.submod.parameters()]

    def step(self, *inputs: Any, target: Any = None) -> Tensor | None:
        """Run a batch, and leave the mean gradients of its micro-batches in the parameters.

        Inputs and target are given on every rank, and are used where the first and the last stage
        are; PyTorch divides them into micro-batches along dimension 0.

        Returns:
            The mean loss, detached, on the rank of the last stage; None on others.
        """
        is_first = any(stage.is_first for stage in self.stages)
        is_last = any(stage.is_last for stage in self.stages)
        losses: list[Tensor] = []
        self.schedule.step(
            *(inputs if is_first else ()),
            target=target if is_last else None,
            losses=losses if is_last else None,
            return_outputs=False,
        )
        return torch.stack(losses).mean().detach() if is_last else None


def build_pipeline(
    plan: Plan,
    csv: str,
    layers: Layers,
    loss_fn: LossFunction | None,
    group: dist.ProcessGroup | None,
    device: torch.device | str | None,
) -> TorchPipeline:
    """Build this rank's part of a plan; see `synth.interop.torch.build`.

    Args:
        csv: the plan's order of ops, as PyTorch reads it.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size != plan.num_ranks:
        raise SynthError(
            f"plan {plan.name!r} is for {plan.num_ranks} ranks, the group has {size}; start "
            f"{plan.num_ranks} processes, or give the group of the pipeline"
        )
    held = _held(plan, rank, layers)
    count = len(plan.partition)
    parts = {
        stage: _StageModule(given, has_loss=loss_fn is None and stage == count - 1)
        for stage, given in held.items()
    }
    where = _device_of(parts.values()) if device is None else torch.device(device)
    stages = [PipelineStage(part, n, count, where, group=group) for n, part in parts.items()]
    last = parts.get(count - 1)
    loss = last.loss if loss_fn is None and last is not None else loss_fn or _no_loss
    schedule = _PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
        stages, plan.num_micro_batches, loss_fn=_guarded(loss)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.csv"
        path.write_text(csv)
        schedule._load_csv(str(path))
    return TorchPipeline(stages, schedule)


def _held(plan: Plan, rank: int, given: Layers) -> dict[int, list[nn.Module]]:
    """Return the layers of this rank's stages."""
    if not isinstance(given, Mapping):
        return plan.modules(rank, list(given))
    numbers = sorted({stage for stage, _ in plan.placed.held[rank]})
    if sorted(given) != numbers:
        raise SynthError(
            f"rank {rank} of plan {plan.name!r} holds stages {numbers}, modules were given for "
            f"{sorted(given)}; give {{stage: module}} for each, or all layers of the model"
        )
    return {
        number: [module] if isinstance(module := given[number], nn.Module) else list(module)
        for number in numbers
    }


class _StageModule(nn.Module):
    """Layers as a stage of PyTorch's, which takes and returns tensors or tuples of them.

    The last layer of the last stage computes the loss if it takes the targets. PyTorch gives them
    to the loss function only, which then runs that layer.
    """

    def __init__(self, layers: Sequence[nn.Module], has_loss: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._has_loss = has_loss

    def forward(self, *inputs: Any) -> Any:
        """Run the layers, except one that computes the loss."""
        held = list(self.layers)[:-1] if self._has_loss else list(self.layers)
        output: Any = inputs[0] if len(inputs) == 1 else inputs
        for layer in held:
            output = layer(*_arguments(output))
        return _owned(output)

    def loss(self, output: Any, target: Any) -> Tensor:
        """Run the last layer, which takes the output of those before it and the targets."""
        loss: Tensor = self.layers[-1](*_arguments(output), target)
        return loss


def _arguments(output: Any) -> tuple[Any, ...]:
    return tuple(output) if isinstance(output, tuple | list) else (output,)


def _owned(output: Any) -> Any:
    """Copy tensors that are views, inputs or not contiguous.

    PyTorch's runtime sends contiguous tensors only, and detaches outputs in place once their
    gradients are known, which views do not allow.
    """
    return tree_map_only(Tensor, _own, output)


def _own(tensor: Tensor) -> Tensor:
    is_input = tensor.is_leaf
    if tensor._is_view() or is_input or not tensor.is_contiguous():
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def _guarded(loss: LossFunction) -> LossFunction:
    """Give a loss function aliases of the output, and return a loss that is no view.

    PyTorch's runtime detaches output and loss in place, of which autograd may have saved tensors
    that W still needs.
    """

    def guarded(output: Any, target: Any) -> Tensor:
        return _own(loss(tree_map_only(Tensor, lambda t: t.view_as(t), output), target))

    return guarded


def _no_loss(output: Any, target: Any) -> Tensor:
    raise SynthError("the last stage of the plan is on another rank")


def _device_of(modules: Any) -> torch.device:
    """Return the device of the parameters; the CPU if there are none."""
    found = next((each.device for module in modules for each in module.parameters()), None)
    return torch.device("cpu") if found is None else found
