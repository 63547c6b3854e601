"""The boundaries between stages, found by passing one micro-batch through without autograd."""

import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from synth.errors import SynthError
from synth.schedule.model import Placement

from ...batch import Batch
from ...cutting import tensors_in
from ...state.module_state import unchanged
from ..base.boundary import Boundary, can_have_gradient, flatten
from ..base.without_graph import AutocastRefused, without_graph
from ..transport.rank_group import RankGroup
from .micro_batch_state import entered
from .stage import Stage

_REMEMBERED = 64
_NUM_DIMENSIONS_OF_IMAGES = 4

_CHANGED = (
    "make the Pipeline with changing_shapes=True, or leave out a smaller last batch (a DataLoader "
    "does with drop_last=True)"
)


class ShapeFinder:
    """Finds, together with the other ranks, the boundaries of every micro-batch.

    The rank with the first stage announces the kind of its inputs, so that no other rank needs them
    and all agree on what is known already. It does so once if shapes are fixed, at every call if
    they change.
    """

    def __init__(
        self, group: RankGroup, placement: Placement, stages: Mapping[int, Stage], *, changing: bool
    ) -> None:
        self._group = group
        self._owners = [placement.rank_of(stage) for stage in range(placement.num_stages)]
        self._stages = stages
        self._changing = changing
        self._known: OrderedDict[Hashable, list[Boundary]] = OrderedDict()
        self._kinds: list[Hashable] = []
        self._fixed: list[list[Boundary]] | None = None
        self._num_samples: int | None = None

    @property
    def kinds(self) -> Sequence[Hashable]:
        """By micro-batch, the properties that the last shapes depended on."""
        return self._kinds

    @property
    def are_fixed(self) -> bool:
        """True if the ranks need not meet to find the shapes of the next mini-batch."""
        return self._fixed is not None and not self._changing

    def of(self, batch: Batch, num_micro_batches: int) -> list[list[Boundary]]:
        """Return boundaries by micro-batch and stage; all ranks call this for one mini-batch.

        Raises:
            SynthError: on the rank with the first stage there are no inputs, or inputs of other
                shapes than the fixed ones; on all ranks, if a stage's trial fails. On any rank, if
                its mini-batch has another size than that of the rank with the first stage.
        """
        is_first = self._owners[0] == self._group.rank
        if self._fixed is not None and self.are_fixed:
            if is_first and _kinds(batch, num_micro_batches) != self._kinds:
                raise SynthError(
                    "the inputs have other shapes or dtypes, or are computed in another precision, "
                    f"than at the first step; {_CHANGED}"
                )
            self._check_size(batch, at_first_step=True)
            return self._fixed
        self._num_samples, self._kinds = self._group.agree(
            self._owners[0], lambda: (batch.num_samples, _kinds(batch, num_micro_batches))
        )
        self._check_size(batch)
        self._fixed = [self._of_kind(kind, batch, j) for j, kind in enumerate(self._kinds)]
        return self._fixed

    def _check_size(self, batch: Batch, *, at_first_step: bool = False) -> None:
        """Refuse a mini-batch of another size than that of the rank with the first stage."""
        mine, first = batch.num_samples, self._num_samples
        if None not in (mine, first) and mine != first:
            when = " at the first step" if at_first_step else ""
            otherwise = f"; or {_CHANGED}" if at_first_step else ""
            raise SynthError(
                f"this rank's batch was cut from {mine} samples, the first stage's{when} from "
                f"{first}: give synth.Replicate(…) to `split` for what is the same for every "
                f"micro-batch, or synth.Chunk(…) for rows that are no samples{otherwise}"
            )

    def _of_kind(self, kind: Hashable, batch: Batch, microbatch: int) -> list[Boundary]:
        if kind in self._known:
            return self._known[kind]
        found: list[Boundary] = []
        for number, owner in enumerate(self._owners[:-1]):
            found.append(self._group.agree(owner, self._trial(number, batch, microbatch, found)))
        self._known[kind] = found
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return found

    def _trial(
        self, number: int, batch: Batch, microbatch: int, found: Sequence[Boundary]
    ) -> Callable[[], Boundary]:
        """Return a function that runs a stage and describes its output."""
        entry = found[-1] if found else None

        def describe() -> Boundary:
            stage = self._stages[number]
            if isinstance(stage.module, torch.jit.ScriptModule):
                raise SynthError(
                    f"stage {number} is a torch.jit.ScriptModule, which torch cannot run on other "
                    f"tensors to find the shapes of its output: give a module that calls it, such "
                    f"as nn.Sequential(module)"
                )
            arguments = batch.arguments(microbatch) if entry is None else ()
            trained = (
                any(True for _ in stage.parameters())
                or (entry is not None and entry.trained)
                or any(t.requires_grad for t in tensors_in(arguments))
            )
            tried = stage, arguments, entry, batch.named(microbatch)
            try:
                output = _try_out(*tried)
            except Exception as error:
                given = "what it is given" if entry is None else "zeros or ones of its input's form"
                raise SynthError(
                    f"stage {number} cannot be run on {given}: {type(error).__name__}: {error}"
                ) from error
            own = _trained_tensors(*tried, output) if trained else False
            boundary = Boundary.of(output, trained=own, stage=number)
            try:
                pickle.dumps(boundary)
            except Exception as error:
                raise SynthError(
                    f"stage {number} gives a container that other ranks cannot make: {error}; "
                    f"define its class at the top of a module"
                ) from error
            return boundary

        return describe


def _kinds(batch: Batch, num_micro_batches: int) -> list[Hashable]:
    """The properties of every micro-batch that the shapes between stages can depend on."""
    if batch.inputs is None:
        raise SynthError("the rank with the first stage was given no inputs; its batch needs them")
    precision = tuple(
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        for kind in ("cpu", "cuda")
    )
    return [(precision, batch.signature(j)) for j in range(num_micro_batches)]


def _trained_tensors(
    stage: Stage,
    arguments: tuple[Any, ...],
    entry: Boundary | None,
    keywords: Mapping[str, Any],
    output: Any,
) -> bool | list[bool]:
    """Return for each tensor of an output if a gradient of it is asked for; True: of all.

    Tables that a stage makes have none, for one. Only a forward with a graph shows that; where a
    stage gives one tensor, or cannot be run so, gradients of all are taken to come back. A stage in
    evaluation mode may be trained later, and then give a loss of its own: it runs in both modes.
    """
    if sum(map(can_have_gradient, tensors_in(output))) < 2:
        return True
    tried = partial(_try_out, stage, arguments, entry, keywords, graph=True)
    with suppress(Exception):
        found = [flatten(tried())[0]]
        if not stage.module.training:
            with _in_training(stage.module):
                found.append(flatten(tried())[0])
        trained = [any(t.requires_grad for t in both) for both in zip(*found, strict=True)]
        return trained if any(trained) else True
    return True


@contextmanager
def _in_training(module: nn.Module) -> Iterator[None]:
    """Set training mode in the block."""
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _try_out(
    stage: Stage,
    arguments: tuple[Any, ...],
    entry: Boundary | None,
    keywords: Mapping[str, Any],
    *,
    graph: bool = False,
) -> Any:
    """Run a stage on the meta device if its module supports that, else on its device.

    There inputs of other stages are zeros, and if it refuses these, such as lengths, ones.
    """
    run = partial(_run, stage, arguments, entry, keywords, graph=graph)
    real = stage.device
    # The meta device does not know which convolutions return channels last; a graph is the same.
    fake = not graph and any(t.ndim >= _NUM_DIMENSIONS_OF_IMAGES for t in stage.state())
    if real.type == "meta":
        return _run_without_data(run, stage.trial_device, fake=fake)
    if stage.is_wrapped:  # every replica runs the same trial, collectives of wrappers included
        return run(real)
    if not torch.is_autocast_enabled(real.type):  # autocast does not reach the meta device
        try:
            return _run_without_kernels(run, real, fake=fake)
        except Exception:  # some modules make tensors of their own, or have kernels of their own
            pass
    if entry is not None:
        with suppress(Exception):
            return run(real)
    return run(real, fill=1)


def _run_without_kernels(run: Callable[..., Any], device: torch.device, *, fake: bool) -> Any:
    """Run a stage on the meta device, or on fake tensors of its own device."""
    if fake:
        return run(device, fake=True)
    with AutocastRefused():
        return run(torch.device("meta"))


def _run_without_data(run: Callable[..., Any], trial_device: torch.device, *, fake: bool) -> Any:
    """Run a stage that has no data itself.

    Fake tensors tell it the device on which it will run; if it branches on values, zeros take the
    place of all data.
    """
    with suppress(Exception):
        return _run_without_kernels(run, trial_device, fake=fake)
    with suppress(Exception):
        return run(trial_device, fake=True)
    return run(torch.device("cpu"))


def _run(
    stage: Stage,
    arguments: tuple[Any, ...],
    entry: Boundary | None,
    keywords: Mapping[str, Any],
    device: torch.device,
    *,
    fill: int = 0,
    graph: bool = False,
    fake: bool = False,
) -> Any:
    given = (arguments, keywords)
    # In place of a stage without data no kernel runs on the trial's device, and none draws.
    drawn = [device] if device.type == stage.device.type == "cuda" else []
    random = torch.random.fork_rng(devices=drawn)
    restored = unchanged(stage.module, given=given)
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext()
    with torch.enable_grad() if graph else without_graph(), random, restored, mode:
        if entry is not None:
            tensors = tuple(t.fill_(fill) for t in entry.activations(device))
            arguments = entered(tensors, entry)[0] if graph else entry.arguments(tensors)
        arguments, keywords = pytree.tree_map_only(
            Tensor, lambda t: _like(t, device), (arguments, dict(keywords))
        )
        if stage.is_wrapped:
            with stage.not_reducing():
                return stage.module(*arguments, **keywords)
        states = {name: b.clone() for name, b in stage.module.named_buffers()}
        if device.type == "meta" or stage.device.type == "meta":
            kept = (*stage.module.named_parameters(), *stage.module.named_buffers())
            states = {
                name: torch.zeros_like(t, device=device).requires_grad_(t.requires_grad and graph)
                for name, t in kept
            }
        with _same_tensors(stage.module):
            return torch.func.functional_call(stage.module, states, arguments, dict(keywords))


@contextmanager
def _same_tensors(module: nn.Module) -> Iterator[None]:
    """Put parameters and buffers back, as torch (2.13) does not for modules with several names."""
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    tables: list[dict[str, Any]] = [vars(part)["_parameters"] for part in parts]
    tables += [vars(part)["_buffers"] for part in parts]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.update(entries)


def _like(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device; of one on the meta device only the shape is known."""
    if tensor.is_meta and device.type != "meta":
        return torch.zeros_like(tensor, device=device)
    return tensor.to(device)
