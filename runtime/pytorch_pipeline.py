"""A plan as stages and a schedule of PyTorch's own `torch.distributed.pipelining`."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.utils._pytree import PyTree, TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from synth.errors import SynthError
from synth.schedule.files.plan_file import Plan

from .models.ties import find_ties

Layers = Sequence[nn.Module] | Mapping[int, nn.Module | Sequence[nn.Module]]
LossFunction = Callable[[Any, Any], Tensor]


class RankSharedParameter(NamedTuple):
    """A parameter of this rank that stages of other ranks have, too, and all these ranks."""

    parameter: nn.Parameter
    ranks: list[int]


class TorchPipeline(NamedTuple):
    """A rank of a pipeline of PyTorch's: its stages, and the schedule that runs them.

    Attributes:
        schedule: PyTorch's, which knows nothing of shared parameters.
        shared: those of several ranks, in an order that all ranks have in common.
    """

    stages: list[PipelineStage]
    schedule: _PipelineScheduleRuntime
    shared: list[RankSharedParameter]
    group: dist.ProcessGroup | None

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of all stages of this rank, each once."""
        every = (each for stage in self.stages for each in stage.submod.parameters())
        return list(dict.fromkeys(every))

    def step(self, *inputs: Any, target: Any = None) -> Tensor | None:
        """Run a batch, and leave the mean gradients of its micro-batches in the parameters.

        Inputs, trees of tensors, and target are given on every rank, and are used where the first
        and the last stage are; PyTorch divides them into micro-batches along dimension 0. Gradients
        of parameters that several ranks share are added up over these. All are added to those that
        are there.

        Returns:
            The mean loss, detached, on the rank of the last stage; None on others.

        Raises:
            SynthError: PyTorch's split of the backward cannot divide a stage of this rank.
        """
        is_first = any(stage.is_first for stage in self.stages)
        is_last = any(stage.is_last for stage in self.stages)
        losses: list[Tensor] = []
        before = {parameter: parameter.grad for parameter in self.parameters()}
        for parameter in before:
            parameter.grad = None  # PyTorch divides also what was there by the micro-batches
        tensors, tree = tree_flatten(inputs if is_first else ())
        for first in (stage.submod for stage in self.stages if stage.is_first):
            assert isinstance(first, _StageModule)
            first.tree = tree
        with _named_reuse():
            self.schedule.step(
                *tensors,
                target=target if is_last else None,
                losses=losses if is_last else None,
                return_outputs=False,
            )
        for each in self.shared:
            each.parameter.grad = self._total(each)
        for parameter, earlier in before.items():
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else earlier + parameter.grad
        return torch.stack(losses).mean().detach() if is_last else None

    def _total(self, shared: RankSharedParameter) -> Tensor:
        """Return the sum of a parameter's gradients over its ranks, the same bits on each."""
        parameter, (home, *others) = shared
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        own = own.contiguous()
        if dist.get_rank(self.group) != home:
            dist.send(own, self._process(home), group=self.group)
            dist.recv(own, self._process(home), group=self.group)
            return own
        for other in others:
            part = torch.empty_like(own)
            dist.recv(part, self._process(other), group=self.group)
            own += part
        for other in others:
            dist.send(own, self._process(other), group=self.group)
        return own

    def _process(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


@contextmanager
def _named_reuse() -> Iterator[None]:
    """Say which stages PyTorch cannot split, where its error names none.

    Its W runs the graph between the uses of a parameter again, and frees it. The W of another
    parameter that is used there then finds nothing.
    """
    try:
        yield
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise SynthError(
            "PyTorch's split of the backward (I and W) failed: a stage uses a parameter several "
            "times, and others between; take a schedule with whole backwards, such as 1f1b, or run "
            "the plan by synth, which splits such stages"
        ) from error


class _Stage(PipelineStage):
    """A stage whose trial for shapes gets zeros: PyTorch's gets what is in memory, such as ids."""

    def _to_tensor(self, arg: Any) -> Tensor:
        tensor = super()._to_tensor(arg)
        if not isinstance(arg, Tensor):
            with torch.no_grad():
                tensor.zero_()
        return tensor


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
    stages: list[PipelineStage] = [
        _Stage(part, n, count, where, group=group) for n, part in parts.items()
    ]
    last = parts.get(count - 1)
    loss = last.loss if loss_fn is None and last is not None else loss_fn or _no_loss
    schedule = _PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
        stages, plan.num_micro_batches, loss_fn=_guarded(loss)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.csv"
        path.write_text(csv)
        schedule._load_csv(str(path))
    return TorchPipeline(stages, schedule, _shared(plan, rank, layers), group)


def _shared(plan: Plan, rank: int, layers: Layers) -> list[RankSharedParameter]:
    """Return the parameters of this rank that other ranks have, too.

    Raises:
        SynthError: there are some, and which they are is unknown without all layers.
    """
    rank_of = {n: r for r, held in enumerate(plan.placed.held) for n, _ in held}
    if isinstance(layers, Mapping):
        for stages in (tie.stages for tie in plan.costs.ties if tie.trained):
            if len({rank_of[stage] for stage in stages}) > 1:
                raise SynthError(
                    f"stages {' and '.join(map(str, stages))} of plan {plan.name!r} share "
                    f"parameters, whose gradients are added up over their ranks: give all layers "
                    f"of the model instead of those by stage"
                )
        return []
    stage_of = {i: n for n in range(len(plan.partition)) for i in plan.layers_of(n)}
    found = []
    for tie in find_ties(layers):
        ranks = sorted({rank_of[stage_of[place]] for place, _ in tie.places})
        place, name = tie.places[0]
        if len(ranks) > 1 and rank in ranks:
            found.append(RankSharedParameter(layers[place].get_parameter(name), ranks))
    return found


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

    A first stage gets the tensors of its inputs, which are a `tree`; None: as they are.
    The last layer of the last stage computes the loss if it takes the targets. PyTorch gives them
    to the loss function only, which then runs that layer.
    """

    def __init__(self, layers: Sequence[nn.Module], has_loss: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._has_loss = has_loss
        self.tree: TreeSpec | None = None

    def forward(self, *inputs: Any) -> Any:
        """Run the layers, except one that computes the loss."""
        held = list(self.layers)[:-1] if self._has_loss else list(self.layers)
        entered: PyTree = tuple(_entered(tensor) for tensor in inputs)
        if self.tree is not None:
            entered = tree_unflatten(entered, self.tree)
        output: Any = entered[0] if len(entered) == 1 else entered
        for layer in held:
            output = layer(*_arguments(output))
        return _owned(output)

    def loss(self, output: Any, target: Any) -> Tensor:
        """Run the last layer, which takes the output of those before it and the targets."""
        loss: Tensor = self.layers[-1](*_arguments(output), target)
        return loss


def _arguments(output: Any) -> tuple[Any, ...]:
    return tuple(output) if isinstance(output, tuple | list) else (output,)


class _ContiguousGradient(torch.autograd.Function):
    """Return the input; its gradient is contiguous, as PyTorch's runtime sends no other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


def _entered(tensor: Tensor) -> Tensor:
    if not tensor.requires_grad:
        return tensor
    entered: Tensor = _ContiguousGradient.apply(tensor)  # type: ignore[no-untyped-call]
    return entered


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
