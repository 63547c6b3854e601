"""Runs each kind of op of a rank once, ahead of its first step.

A posted NCCL receive occupies the device until its data arrives. An op that waits for an idle
device at its first use (loading a kernel, a cuBLAS workspace, growth of the allocator, autotuning)
would then wait for a message, which may in turn depend on the op. At warm-up nothing is posted yet.

Every kind of F, R, B, W and BW in the program runs on zeros of the boundary's shapes (on the
batch's own inputs and targets where the stage takes those), with zero gradients. No trace remains:
gradients, buffers, random states and what the code of modules changes are restored. Stand-ins take
the gradients of parameters with hooks, so that no hook runs.
"""

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.costs.costs import HOST
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Action, Lowered
from synth.schedule.ops import ValueKind

from ...batch import Batch
from ...split import gradient_dtype
from ...split.listeners import find_listened
from ...state.module_state import unchanged
from ..base.loss_terms import LossTerms
from ..base.stage_protocol import ForwardInput, OutputTap
from ..base.step_table import Shapes
from ..transport.host.host_link import HostMove
from .stage import Stage

# In the first pass the stage is observed; in the second its rules apply, and gradients add up.
_NUM_PASSES = 2


class _MicroBatchPath(NamedTuple):
    """The combination of ops by which a micro-batch passes a stage."""

    stage: int
    fused: bool
    rebuilt: bool
    moved: bool


class WarmUp:
    """Runs each kind of op once, ahead of the first step and of the first evaluation."""

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        stages: Mapping[int, Stage],
        device: torch.device,
        present: Mapping[int, Callable[[], AbstractContextManager[None]]] | None = None,
    ) -> None:
        """Find the kinds of op in the rank's program; `active` is False until it is set.

        Args:
            present: by stage with weight passing, a context in which its parameters have memory.
        """
        self.active = False
        self._stages = stages
        self._present = present or {}
        self._device = device
        self._paths = _paths(lowered, rank)
        self._host_moves = _host_moves(lowered, rank)
        self._is_over = {"step": False, "evaluate": False}

    def before_step(
        self, batch: Batch, shapes: Shapes, kinds: Sequence[Hashable]
    ) -> list[HostMove]:
        """Run F, R, B, W and BW, at the first call only.

        Args:
            shapes: boundaries by micro-batch and stage.
            kinds: by micro-batch, the properties that shapes depend on.

        Returns:
            The moves to the host and back, in the program's order, with their bytes.
        """
        if not self._begin_once("step"):
            return []
        sizes: dict[Hashable, int] = {}
        for (path, kind), j in self._distinct(kinds).items():
            sizes[path, kind] = self._run(path, j, batch, shapes, trains=True)
        self._synchronize()
        return [
            HostMove(whose, is_out, sizes[self._paths[whose[:2]], kinds[whose[1]]])
            for whose, is_out in self._host_moves
        ]

    def before_evaluation(
        self, batch: Batch, shapes: Shapes, kinds: Sequence[Hashable], *, with_loss: bool
    ) -> None:
        """Run F without a graph, at the first call only; arguments as for `before_step`."""
        if not self._begin_once("evaluate"):
            return
        done = set()
        for (path, kind), j in self._distinct(kinds).items():
            if (path.stage, kind) not in done:
                done.add((path.stage, kind))
                light = _MicroBatchPath(path.stage, fused=True, rebuilt=False, moved=False)
                self._run(light, j, batch, shapes, trains=False, with_loss=with_loss)
        self._synchronize()

    def _begin_once(self, what: str) -> bool:
        """Return True at the first call for a phase, if the warm-up is active."""
        begins = self.active and not self._is_over[what]
        self._is_over[what] = True
        return begins

    def _distinct(self, kinds: Sequence[Hashable]) -> dict[tuple[_MicroBatchPath, Hashable], int]:
        """One micro-batch for each path and kind; the same one on all ranks that share a stage."""
        found: dict[tuple[_MicroBatchPath, Hashable], int] = {}
        for (_, microbatch), path in sorted(self._paths.items()):
            found.setdefault((path, kinds[microbatch]), microbatch)
        return found

    def _run(
        self,
        path: _MicroBatchPath,
        microbatch: int,
        batch: Batch,
        shapes: Shapes,
        *,
        trains: bool,
        with_loss: bool = True,
    ) -> int:
        """Run a stage; return the bytes that moved."""
        stage = self._stages[path.stage]
        if stage.is_sharded:  # FSDP2's own gradients could not be put back
            _connect_shards(stage, self._device)
            return 0
        try:
            lists = (batch.inputs, batch.targets, batch.keywords)
            given = [rows[microbatch] for rows in lists if rows is not None]
            with (
                self._present.get(path.stage, nullcontext)(),
                _untouched(stage, self._device, given),
            ):
                trial = stage.twin()
                trial.begin()
                passes = _Passes(trial, path, microbatch, batch, shapes, self._device)
                for _ in range(_NUM_PASSES):
                    moved_bytes = passes.run(trains=trains, with_loss=with_loss)
                trial.end()
                return moved_bytes
        except Exception as error:
            warnings.warn(
                f"stage {path.stage} could not be run ahead of the first step, which on NCCL may "
                f"now wait forever where a kernel is loaded: {type(error).__name__}: {error}",
                stacklevel=4,
            )
            return 0

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class _Passes:
    """Runs one micro-batch through a stage repeatedly."""

    def __init__(
        self,
        stage: Stage,
        path: _MicroBatchPath,
        microbatch: int,
        batch: Batch,
        shapes: Shapes,
        device: torch.device,
    ) -> None:
        self._stage, self._path, self._microbatch = stage, path, microbatch
        self._batch, self._device = batch, device
        boundaries = shapes[microbatch]
        self._entry = boundaries[path.stage - 1] if path.stage else None
        self._exit = None if stage.is_last else boundaries[path.stage]

    def run(self, *, trains: bool, with_loss: bool) -> int:
        """Run F to W once; return the bytes that moved."""
        stage, j, moved_bytes = self._stage, self._microbatch, 0
        given = self._given(with_loss)
        if self._path.rebuilt:
            outputs = stage.forward_light(j, given)
            stage.rebuild(j, given)
        else:
            outputs = stage.forward(j, given)
        if self._path.moved:
            moved = stage.take_saved(j)
            moved_bytes = sum(stage.saved_sizes(j))
            stage.put_back(j, moved)
            del moved
        if trains:
            self._backward(self._gradients(outputs))
        stage.forget()
        return moved_bytes

    def _given(self, with_loss: bool) -> ForwardInput:
        """Return copies of the input, because a stage may change it."""
        j, batch, entry = self._microbatch, self._batch, self._entry
        if entry is None:
            arguments = _copied(batch.arguments(j))
        else:
            arguments = tuple(x.zero_() for x in entry.activations(self._device))
        targets = batch.targets[j] if self._stage.is_last and batch.targets is not None else None
        tap = None if with_loss else OutputTap(lambda _: None, with_loss=False)
        named = _copied(dict(batch.named(j)))
        return ForwardInput(
            arguments,
            entry,
            _copied(targets),
            named,
            self._path.fused,
            self._path.moved,
            tap,
            self._exit,
        )

    def _gradients(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self._exit is not None:
            return tuple(x.zero_() for x in self._exit.gradients(self._device))
        (loss,) = outputs
        terms = LossTerms.of(2)
        terms.add(torch.zeros((), device=self._device), loss, 0)
        return (terms.seed(loss, 0).zero_(),)

    def _backward(self, gradients: tuple[Tensor, ...]) -> None:
        if self._path.fused:
            self._stage.backward(self._microbatch, gradients)
        else:
            self._stage.backward_input(self._microbatch, gradients)
            self._stage.backward_weight(self._microbatch)


def _connect_shards(stage: Stage, device: torch.device) -> None:
    """Run FSDP2's collectives once, as NCCL connects at the first use of each."""
    meshes = dict.fromkeys(p.device_mesh for p in stage.parameters() if hasattr(p, "device_mesh"))
    for group in dict.fromkeys(group for mesh in meshes for group in mesh.get_all_groups()):
        one = torch.zeros(1, device=device)
        each = torch.zeros(group.size(), device=device)
        dist.all_gather_into_tensor(each, one, group)
        dist.reduce_scatter_tensor(one, each, group=group)
        dist.all_reduce(one, group=group)


def _paths(lowered: Lowered, rank: int) -> dict[tuple[int, int], _MicroBatchPath]:
    """The path of each micro-batch in the rank's program, by stage and micro-batch."""
    having: dict[OpKind, set[tuple[int, int]]] = {kind: set() for kind in OpKind}
    for op in lowered.ops[rank]:
        having[op.kind].add((op.stage, op.microbatch))
    return {
        each: _MicroBatchPath(
            each[0],
            fused=each in having[OpKind.BW],
            rebuilt=each in having[OpKind.R],
            moved=each in having[OpKind.OFFLOAD],
        )
        for each in having[OpKind.F]
    }


def _host_moves(lowered: Lowered, rank: int) -> list[tuple[tuple[int, int, int], bool]]:
    """The moves to the host (True) and back in program order, by stage and micro-batch."""
    return [
        (instruction.moved.value[1:], instruction.action == Action.SEND)
        for instruction in lowered.programs[rank]
        if instruction.action in (Action.SEND, Action.RECV)
        and HOST in (instruction.moved.source, instruction.moved.target)
        and instruction.moved.value.kind in (ValueKind.MOVED_OUT, ValueKind.MOVED_BACK)
    ]


def _copied(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), tree)


@contextmanager
def _untouched(stage: Stage, device: torch.device, given: Sequence[Any]) -> Iterator[None]:
    """Allow a stage to be trained within the block; restore it and what it is given afterwards."""
    modules = [stage.module, *([stage.loss] if isinstance(stage.loss, nn.Module) else [])]
    drawn = [device] if device.type == "cuda" else []
    with ExitStack() as within:
        within.enter_context(torch.random.fork_rng(devices=drawn))
        within.enter_context(unchanged(stage.module, stage.loss, given=given))
        for module in modules:
            within.enter_context(_without_gradients(module.parameters()))
            within.enter_context(_stand_ins(module))
            for part in module.modules():
                if "require_forward_param_sync" in vars(part):  # DDP would broadcast buffers
                    vars(part)["require_forward_param_sync"] = False
        yield


@contextmanager
def _without_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Hide the gradients of parameters within the block."""
    before = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


@contextmanager
def _stand_ins(module: nn.Module) -> Iterator[None]:
    """Replace parameters with hooks by others on the same memory within the block."""
    listened = find_listened(module.parameters())
    made = {key: _stand_in(parameter) for key, parameter in listened.items()}
    tables = [(part._parameters, dict(part._parameters)) for part in module.modules()]
    for table, before in tables:
        table.update({name: made.get(id(p), p) for name, p in before.items()})
    try:
        yield
    finally:
        for table, before in tables:
            table.update(before)


def _stand_in(parameter: Tensor) -> nn.Parameter:
    made = nn.Parameter(parameter.detach(), requires_grad=True)
    dtype = gradient_dtype(parameter)
    if dtype != parameter.dtype:
        made.grad_dtype = dtype
    return made
