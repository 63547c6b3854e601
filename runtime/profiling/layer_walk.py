"""Walks a model with one micro-batch, with at most one of its layers on the device."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from synth.errors import SynthError
from synth.profile.workload import Workload

from ..execution.base.boundary import way_to_trees
from ..execution.base.without_graph import without_graph
from ..input_function import MicroBatch
from ..models import layer_signature, num_safe_ids
from ..models.layered_stage import LayerCall
from ..tensor_trees import tensors_of
from .sample import Sample, positional

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class VisitedLayer:
    """A layer of the walk.

    `same_as` names the first layer identical to it, which may be itself. Only that one has a
    `sample`, whose layer is on the device until the next layer is visited. `is_elsewhere` if the
    two differ in what tells their places, such as `layer_idx`, and run the same ops.
    `can_be_left_out` if the next layer may take the input of this one: it looks like the output.
    """

    name: str
    same_as: str
    sample: Sample | None
    is_elsewhere: bool = False
    can_be_left_out: bool = False


def walk_layers(
    calls: Sequence[LayerCall],
    names: Sequence[str],
    batch: MicroBatch,
    device: torch.device,
    fill: Callable[[LayerCall], LayerCall] = lambda call: call,
    *,
    separate: bool = False,
) -> Iterator[VisitedLayer]:
    """Walk the model with one micro-batch, so that each layer gets a real input.

    A layer is moved to the device to be run, and back. It is not run if it is identical to an
    earlier layer whose output looks like its own input; that input is passed on. A layer that
    differs from earlier ones in numbers and names of its place alone is run, and identical to one
    whose forward ran the same ops on the same shapes.

    Args:
        calls: the layers, on the CPU, or on the meta device if `fill` is given.
        batch: the inputs of the first layer, and the targets of the last one.
        fill: makes a layer with data of one without, when it is its turn to be run.
        separate: no layers are identical.

    Raises:
        SynthError: a layer cannot take the output of the previous one, or returns something else
            than a tensor or a tree of tensors.
    """
    # Copies, because a layer may change what it is given in place.
    x, targets = pytree.tree_map_only(Tensor, lambda t: t.to(device, copy=True), tuple(batch))
    seen = _Seen(calls)
    trained: tuple[bool, ...] = (False,)
    for index, (call, name) in enumerate(zip(calls, names, strict=True)):
        is_first, is_last = index == 0, index == len(calls) - 1
        sample = Sample(call.module, x, targets if is_last else None, is_first, call, trained)
        is_inside = not (is_first or is_last)
        same_as = None if separate else seen.identical(sample, call)
        if same_as is not None:
            yield VisitedLayer(name, same_as, None, can_be_left_out=is_inside)
            continue
        here = sample.of(fill(call))
        here.layer.to(device)
        ops = Ops() if not separate and seen.has_others_like(call) else None
        x, changes = _output(name, here, ops)
        trained = here.trained_outputs(x)
        same_as, by_ops = (
            (name, False)
            if separate
            else seen.add(name, sample, call, ops, (_look(x), trained), changes=changes)
        )
        passes = is_inside and (_look(x), trained) == (_look(sample.x), sample.trained)
        yield VisitedLayer(name, same_as, here if same_as == name else None, by_ops, passes)
        if here.call is call:
            call.module.to(_CPU)
        del here  # one with data at a time


class _Seen:
    """The layers that were run, by their signatures and ops."""

    def __init__(self, calls: Sequence[LayerCall]) -> None:
        self._kinds: dict[Hashable, set[Hashable]] = defaultdict(set)
        for call in calls:
            self._kinds[_anywhere(call)].add(layer_signature(call.module))
        self._exact: dict[Hashable, str] = {}
        self._by_ops: dict[Hashable, str] = {}
        self._outputs: dict[str, Hashable] = {}

    def identical(self, sample: Sample, call: LayerCall) -> str | None:
        """Name a layer that is identical to one to be run, and whose output looks like its input;
        None: there is none."""
        own = _signature(sample, call, layer_signature(sample.layer))
        found = self._exact.get((own, None)) or self._exact.get((own, _views(sample.x)))
        is_alike = found and self._outputs[found] == (_look(sample.x), sample.trained)
        return found if is_alike else None

    def has_others_like(self, call: LayerCall) -> bool:
        """True if only its place may distinguish a layer from another one."""
        return len(self._kinds[_anywhere(call)]) > 1

    def add(
        self,
        name: str,
        sample: Sample,
        call: LayerCall,
        ops: "Ops | None",
        output: Hashable,
        *,
        changes: bool,
    ) -> tuple[str, bool]:
        """Add a layer that was run; name the first one like it, and say whether ops tell so.

        Args:
            output: how its output looks, and of which of its tensors a gradient is asked for.
            changes: True if it changes its input in place, so that a view costs more.
        """
        views = _views(sample.x) if changes else None
        own = _signature(sample, call, layer_signature(sample.layer)), views
        same_as = self._exact.get(own, name)
        if is_new := ops is not None and same_as == name:
            key = _signature(sample, call, _anywhere(call)), views, output
            same_as = self._by_ops.setdefault((key, tuple(ops.found)), name)
        self._exact[own] = same_as
        self._outputs[name] = output
        return same_as, is_new and same_as != name


def num_distinct(calls: Sequence[LayerCall], *, separate: bool = False) -> int:
    """Return how many layers the walk measures, if identical ones get inputs that look alike."""
    if separate:
        return len(calls)
    last, kinds, is_trained = len(calls) - 1, set(), False
    for place, call in enumerate(calls):
        ends = (place == 0, place == last)
        kinds.add((_anywhere(call), call.policy, *ends, is_trained))
        is_trained = is_trained or any(p.requires_grad for p in call.module.parameters())
    return len(kinds)


def _anywhere(call: LayerCall) -> Hashable:
    return layer_signature(call.module, with_places=False)


class Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the ops that run: their names, the shapes and dtypes of tensors, and whole numbers.

    Other numbers, such as a scale that depends on a layer's place, change no cost.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Hashable] = []

    def watch(self, run: Callable[[], Any]) -> Any:
        """Run a forward, and again unwatched if it cannot be watched: then it is like no other."""
        try:
            with self:
                return run()
        except Exception:
            self.found = [object()]
            return run()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        self.found.append((str(func), *(_cost_of(leaf) for leaf in leaves)))
        return func(*args, **kwargs)


def _cost_of(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype
    return (
        leaf if isinstance(leaf, int | str) else str(leaf) if isinstance(leaf, torch.dtype) else ""
    )


def random_tokens(first_layer: nn.Module, workload: Workload, seed: int) -> MicroBatch:
    """Random inputs and targets, int64 [micro_batch_size, sequence_length]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (workload.micro_batch_size, workload.sequence_length)
    vocabulary = num_safe_ids(first_layer) or 256
    return MicroBatch(*(torch.randint(vocabulary, shape, generator=generator) for _ in range(2)))


def _signature(sample: Sample, call: LayerCall, of_layer: Hashable) -> Hashable:
    """A key that is equal for layers that cost the same at their places."""
    place = (call.policy, sample.is_first, sample.targets is not None, sample.trained)
    return of_layer, place, _look(sample.x)


def _look(x: Any) -> Hashable:
    """The properties of an input that costs can depend on."""
    if isinstance(x, Tensor):
        return x.shape, x.stride(), x.dtype
    leaves, spec = pytree.tree_flatten(x)
    return str(spec), *(_look(leaf) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves)


def _views(x: Any) -> tuple[bool, ...]:
    """Say which tensors are views, whose gradients autograd copies if they are changed in place."""
    return tuple(tensor._is_view() for tensor in tensors_of(x))


def _output(name: str, sample: Sample, ops: Ops | None) -> tuple[Any, bool]:
    """Return what a layer returns, and if it has changed its input in place."""
    is_last = sample.targets is not None
    try:
        with without_graph():
            run = sample.run_and_watch
            y, changes = run() if ops is None else ops.watch(run)
    except Exception as error:
        raise _misfit(name, sample, error) from error
    if is_last and not (isinstance(y, Tensor) and y.numel() == 1):
        returned = f"{shown_tree(y)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise SynthError(
            f"the last layer {name!r} returned {returned}; needed: the scalar loss of (x, targets)"
        )
    for leaf in pytree.tree_leaves(y):
        if not isinstance(leaf, Tensor):
            raise SynthError(
                f"layer {name!r} returned a {type(y).__name__} with a {type(leaf).__name__} in it; "
                f"needed: a tensor, or a tuple, list or dictionary of tensors (from the last "
                f"layer: the scalar loss){way_to_trees([leaf])}"
            )
    return y, changes


def _misfit(name: str, sample: Sample, error: Exception) -> SynthError:
    given = positional(sample.x, is_first=sample.is_first)
    names = ["x"] if len(given) == 1 else [f"x{number}" for number in range(len(given))]
    described = " and ".join(
        f"{x} {shown_tree(value)}" for x, value in zip(names, given, strict=True)
    )
    called = ", ".join(names if sample.targets is None else [*names, "targets"])
    return SynthError(
        f"layer {name!r}, called as layer({called}) with {described}, failed: {error}"
    )


def shown_tree(value: Any) -> str:
    """Describe a tensor, or a tree of tensors, for a message."""
    if isinstance(value, Tensor):
        return f"of shape {tuple(value.shape)} and {value.dtype}"
    leaves = tensors_of(value)
    inside = ", ".join(f"{list(leaf.shape)} {leaf.dtype}" for leaf in leaves)
    return f"a {type(value).__name__} of {inside or 'no tensors'}"
