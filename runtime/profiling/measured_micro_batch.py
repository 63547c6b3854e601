"""One micro-batch through one layer: the memory that each op takes, and what stays alive."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from synth.op_kinds import OpKind
from synth.profile.layer_tensors import LayerTensors, last_of

from ..execution.base.boundary import Tensors, is_dense
from ..execution.stage.stage_output import versions_of
from ..tensor_trees import tensors_of
from .hand_over import HandOver
from .meter import Measurement, measure
from .sample import Sample
from .seen_tensors import (
    SeenTensor,
    address_of,
    allocated_bytes,
    gradient_excess,
    layer_tensors,
    shared_gradients,
)


class _Watched(NamedTuple):
    """A storage of a boundary, and the bytes that count while it lives; 0: they count elsewhere."""

    storage: Any
    size: int

    @property
    def lives(self) -> bool:
        return not self.storage.expired()


class _Views(nn.Module):
    """Returns views of its inputs."""

    def forward(self, *inputs: Any) -> Any:
        views = pytree.tree_map_only(Tensor, lambda x: x.view_as(x), inputs)
        return views[0] if len(views) == 1 else views


class MeasuredMicroBatch:
    """One micro-batch through one layer, every allocation inside a measuring window.

    `level` is the number of bytes allocated now, and `last` the last of the windows. Boundary
    tensors (input x, output y, the gradient of y) that were dropped but still exist are held by the
    layer; they are recognised by their storages. `unused` are the tensors of x that B computes no
    gradient of.
    """

    def __init__(
        self,
        sample: Sample,
        *,
        fused: bool = False,
        is_inner: bool = False,
        of_view: bool = False,
        after: Measurement | None = None,
    ) -> None:
        self.hand_over = HandOver() if is_inner else None
        self.stage = sample.stage(self.hand_over, _Views() if of_view else None)
        self.fused = fused
        self.sample = sample
        self.device = sample.device
        self.level = 0
        self.last = after or Measurement()
        self.rises: dict[OpKind, int] = {}
        self.output_bytes = 0
        self.unused: frozenset[int] = frozenset()
        self._tensors: dict[str, Any] = {}
        self._watched: dict[str, list[_Watched]] = {}
        self._seen: dict[str, list[SeenTensor]] = {"returned": []}
        self._after_f: tuple[int, ...] = ()
        self._changes_targets = False
        own = [[*vars(part).values()] for part in sample.layer.modules()]
        self._own = {address_of(tensor) for tensor in tensors_of(own)}  # also of attributes
        self._put("x", self._window(sample.copy_of_x))
        if sample.is_first:  # the bytes that the layer saves of its own inputs count as its own
            self._watched["x"] = [watched._replace(size=0) for watched in self._watched["x"]]

    def forward(self) -> None:
        """Measure F."""
        self._run(OpKind.F, self._forward)

    def backward_input(self) -> None:
        """Measure B, with a gradient that is made before."""
        gradient = self._gradient()
        self._run(OpKind.B, lambda: self.stage.backward_input(0, gradient))
        if (entry := self.sample.entry) is not None:
            places = entry.differentiable_places
            self.unused = frozenset(places[number] for number in self.stage.unused_inputs(0))

    def backward_weight(self) -> None:
        """Measure W."""
        self._run(OpKind.W, lambda: self.stage.backward_weight(0))

    def backward_fused(self) -> None:
        """Measure BW, with a gradient that is made before."""
        gradient = self._gradient()
        self._run(OpKind.BW, lambda: self.stage.backward(0, gradient))

    def _gradient(self) -> Tensors:
        """Make the gradient of the output, and give what a backward takes of it."""
        self._put("gradient", self._window(self._make_gradient))
        if self.hand_over is not None:
            given: Tensors = self._tensors.pop("gradient")
            self._tensors["gradient"] = self._window(partial(self.hand_over.leave, given))
        gradient: Tensors = self._tensors["gradient"]
        return gradient

    def drop(self, *names: str) -> int:
        """Drop boundary tensors; return the bytes that the layer holds besides those alive."""
        self._window(lambda: [self._tensors.pop(name, None) for name in names] and None)
        return self.level - sum(
            watched.size for found in self._watched.values() for watched in found if watched.lives
        )

    def living(self) -> set[tuple[str, int]]:
        """Return the tensors whose memory is alive, by boundary and place in it."""
        return {
            (name, place)
            for name, found in self._watched.items()
            for place, watched in enumerate(found)
            if watched.lives
        }

    def until(self, kinds: Mapping[tuple[str, int], OpKind], name: str) -> OpKind:
        """Return the last op that needs any tensor of a boundary."""
        places = range(len(self._watched[name]))
        return last_of([kinds[name, place] for place in places if (name, place) in kinds])

    def tensors(self, until: Mapping[tuple[str, int], OpKind]) -> LayerTensors:
        """Return what the layer takes and returns; not the inputs of the model, nor the loss.

        Args:
            until: by boundary and place, the last op that needs the memory of a tensor; else F.
        """
        is_last = self.sample.targets is not None
        found = layer_tensors(
            self._seen["x"],
            self._after_f,
            is_first=self.sample.is_first,
            returned=[] if is_last else self._seen["y"],
            unused=self.unused,
            exit=self.sample.exit,
            until=until,
        )
        return found.replace(changes_given=found.changes_given or self._changes_targets)

    def with_gradients(self, tensors: LayerTensors) -> LayerTensors:
        """Return the tensors of the layer with what the gradients share that this one returned."""
        if (entry := self.sample.entry) is None:
            return tensors
        gradients = self._seen["returned"]
        excess = gradient_excess(entry, gradients)
        taken = tuple(
            one.replace(gradient_excess_bytes=excess.get(place, 0))
            for place, one in enumerate(tensors.taken)
        )
        return tensors.replace(
            taken=taken, shared_gradients=tuple(shared_gradients(entry, gradients))
        )

    def _forward(self) -> None:
        given, targets = map(tensors_of, (self._tensors["x"], self.sample.targets))
        before = versions_of(targets)
        y = self.sample.forward(self.stage, self._tensors["x"], fused=self.fused)
        self._changes_targets = versions_of(targets) != before
        self._after_f = versions_of(given)
        sent = filter(is_dense, y)  # copies of the others are
        self.output_bytes = sum({address_of(t): allocated_bytes(t) for t in sent}.values())
        self._put("y", y)

    def _make_gradient(self) -> Tensors:
        return tuple(one.fill_(1e-3) for one in self.sample.exit.gradients(self.device))

    def _put(self, name: str, tree: Any) -> None:
        """Hold the tensors of a boundary; a storage that is held already has no size here.

        An in-place layer returns such a storage, and so does one that passes a mask on, or returns
        a part of its own state. Of the first layer it is the output's.
        """
        theirs = ["x"] * self.sample.is_first
        others = [other for key, other in self._tensors.items() if key not in (name, *theirs)]
        held = self._own | {address_of(tensor) for tensor in tensors_of(others)}
        self._tensors[name], self._watched[name] = tree, []
        for tensor in tensors_of(tree):
            size = 0 if address_of(tensor) in held else allocated_bytes(tensor)
            held.add(address_of(tensor))
            storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._watched[name].append(_Watched(storage, size))
        self._seen[name] = [SeenTensor.of(tensor) for tensor in tensors_of(tree)]

    def _run(self, kind: OpKind, action: Callable[[], Tensors | None]) -> None:
        """Measure an op; what it returns is held, as the gradient to send back."""
        returned = self._window(action)
        self.rises[kind] = self.last.peak_bytes
        if returned:
            self._tensors["returned"] = returned
            self._seen["returned"] = list(map(SeenTensor.of, returned))

    def _window(self, action: Callable[[], Any]) -> Any:
        with measure(self.device, after=self.last) as self.last:
            result = action()
        self.level += self.last.net_bytes
        return result
