"""The memory of a layer: bytes held after F and after B, and the rise of each op; exact."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from synth.costs.recomputation import FULL
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile.layer_tensors import (
    LayerTensors,
    MadeMemory,
    ReturnedTensor,
    TakenTensor,
    last_of,
)

from ..execution.base.boundary import Tensors, is_dense
from ..execution.stage.stage_output import versions_of
from ..models.layered_stage import LayerCall
from .hand_over import HandOver
from .meter import Measurement, measure
from .sample import Sample


@dataclass(frozen=True)
class HeldBytes:
    """The bytes of one layer; the fields are defined as in `LayerProfile`."""

    output_bytes: int
    output_gradient_bytes: int
    saved_bytes: int
    saved_w_bytes: int
    rise_bytes: dict[OpKind, int]
    inner_rise_bytes: dict[OpKind, int]
    input_until: OpKind
    output_until: OpKind
    gradient_until: OpKind
    tensors: LayerTensors | None


# Measurements of a layer on a CPU that is divided over processes, of which the least counts.
_TIMES_DIVIDED = 5


def held_bytes(sample: Sample) -> HeldBytes:
    """Run F, B and W, and F and BW, and see what the layer holds in between and during them.

    What a thread of gloo frees, the meter does not see, and counts as held. Whether the thread or
    the op drops a tensor last differs from time to time, so such a layer is measured several times.
    """
    is_divided = any(hasattr(p, "to_local") for p in sample.layer.parameters())
    if not is_divided or sample.device.type == "cuda":
        held = _held_once(sample)
        if all(map(is_dense, _tensors_of(sample.x))):
            return held
        return _either_way(sample, held)
    found = [_held_once(sample) for _ in range(_TIMES_DIVIDED)]
    return replace(
        found[0],
        saved_bytes=min(one.saved_bytes for one in found),
        saved_w_bytes=min(one.saved_w_bytes for one in found),
        rise_bytes=_least([one.rise_bytes for one in found]),
        inner_rise_bytes=_least([one.inner_rise_bytes for one in found]),
    )


def _either_way(sample: Sample, held: HeldBytes) -> HeldBytes:
    """Return the most that a layer holds of its input as it is, and of the contiguous one.

    A stage receives contiguous tensors, and a layer that copies one layout saves the other itself.
    """
    received = replace(sample, x=pytree.tree_map_only(Tensor, Tensor.contiguous, sample.x))
    other, x_bytes = _held_once(received), sum(map(allocated_bytes, _tensors_of(received.x)))
    is_longer = other.input_until.rank_in_chain > held.input_until.rank_in_chain
    for_w = is_longer and other.input_until == OpKind.W
    return replace(
        held,
        saved_bytes=max(held.saved_bytes, other.saved_bytes + x_bytes * is_longer),
        saved_w_bytes=max(held.saved_w_bytes, other.saved_w_bytes + x_bytes * for_w),
        rise_bytes=_most(held.rise_bytes, other.rise_bytes),
        inner_rise_bytes=_most(held.inner_rise_bytes, other.inner_rise_bytes),
    )


def _most(rises: dict[OpKind, int], others: dict[OpKind, int]) -> dict[OpKind, int]:
    return {kind: max(rise, others.get(kind, 0)) for kind, rise in rises.items()}


def _least(rises: Sequence[dict[OpKind, int]]) -> dict[OpKind, int]:
    return {kind: min(rise[kind] for rise in rises) for kind in rises[0]}


def _held_once(sample: Sample) -> HeldBytes:
    """Measure a layer once; the two Fs hold the same, and should they not, the larger counts."""
    micro_batch = _MeasuredMicroBatch(sample)
    micro_batch.forward()
    after_f = micro_batch.drop("x", "y")
    needed_after_f = micro_batch.living()
    micro_batch.backward_input()
    after_b = micro_batch.drop("gradient", "returned")
    needed_after_b = micro_batch.living()
    micro_batch.backward_weight()
    fused = _MeasuredMicroBatch(sample, fused=True, after=micro_batch.last)
    fused.forward()
    fused_after_f = fused.drop("x", "y")
    until = dict.fromkeys(needed_after_f | fused.living(), OpKind.B)
    until |= dict.fromkeys(needed_after_b, OpKind.W)
    fused.backward_fused()
    tensors = micro_batch.tensors(until)
    rises, inner = _all_rises(sample, tensors, fused.last)
    rises = _most(rises, inner)
    rises[OpKind.F] = max(micro_batch.rises[OpKind.F], fused.rises[OpKind.F])
    sent_bytes = sum(one.num_bytes for one in tensors.returned)
    return HeldBytes(
        output_bytes=0 if sample.targets is not None else max(sent_bytes, micro_batch.output_bytes),
        output_gradient_bytes=sum(one.gradient_bytes for one in tensors.returned),
        saved_bytes=max(after_f, fused_after_f),
        saved_w_bytes=max(0, after_b),
        rise_bytes=rises,
        inner_rise_bytes=inner,
        input_until=micro_batch.until(until, "x"),
        output_until=micro_batch.until(until, "y"),
        gradient_until=last_of([OpKind.B, micro_batch.until(until, "gradient")]),
        tensors=None if tensors.are_plain else tensors,
    )


def _all_rises(
    sample: Sample, tensors: LayerTensors, after: Measurement
) -> tuple[dict[OpKind, int], dict[OpKind, int]]:
    """Measure B, W and BW at the end of a stage, and before another layer of it.

    Autograd copies the gradient of a view that is changed in place. The layer before returns one if
    the sample has one, as a linear layer does with three dimensions.
    """
    views = [leaf._is_view() for leaf in _tensors_of(sample.x)]
    taken = zip(tensors.taken, views, strict=False)  # the first layer takes none
    changes_view = any(one.is_changed and is_view for one, is_view in taken)
    found: list[dict[OpKind, int]] = [{}, {}]
    # Nothing follows the last layer.
    for is_inner in (False, True) if sample.targets is None else (False,):
        for of_view in (False, True) if changes_view else (False,):
            rises, after = _rises(sample, after, is_inner=is_inner, of_view=of_view)
            found[is_inner] = _most(rises, found[is_inner])
    return found[False], found[True]


def _rises(
    sample: Sample, after: Measurement, *, is_inner: bool, of_view: bool
) -> tuple[dict[OpKind, int], Measurement]:
    """Measure B, W and BW where what others hold stays there.

    The executor holds the input, the output and the gradient of a stage to the end of the last op
    that needs them. Before another layer of its stage (`is_inner`) autograd alone holds a layer's
    gradient, which is freed when it has been read, and the output lives on in B if the other layer
    needs it until W. The layer before may have saved the input, too; `of_view`: it returned a view.

    Returns:
        The rises, and the last window of the measurement.
    """
    rises: dict[OpKind, int] = {}
    for fused in (False, True):
        micro_batch = _MeasuredMicroBatch(
            sample, fused=fused, is_inner=is_inner, of_view=of_view, after=after
        )
        micro_batch.forward()
        if sample.is_first:  # the inputs of the model are its own
            micro_batch.drop("x")
        if fused:
            micro_batch.drop(*["y"] * is_inner)
            micro_batch.backward_fused()
        else:
            micro_batch.backward_input()
            micro_batch.drop(*["y"] * is_inner)
            micro_batch.backward_weight()
        rises |= micro_batch.rises
        after = micro_batch.last
    del rises[OpKind.F]
    return rises, after


def recompute_saved_bytes(sample: Sample, held: HeldBytes) -> int:
    """Return the bytes that F keeps besides its input if B computes all of it again.

    They are what autograd keeps out of the reach of saved-tensor hooks, such as the numbers of
    Python by which tensors are multiplied, and copies of state that F changes. Of two Fs the second
    one counts, because what the first one has copied serves others, too. A layer that cannot be
    recomputed, such as one that changes its input in place, keeps all that it holds otherwise, so
    that no plan gains by it.
    """
    call = sample.call or LayerCall(0, sample.layer)
    if call.policy is not None:
        return 0
    again = sample.of(replace(call, policy=FULL))
    stage, window, kept = again.stage(), Measurement(), []
    for microbatch in range(2):
        kept.append(x := again.copy_of_x())
        try:
            with measure(again.device, after=window) as window:
                again.forward(stage, x, microbatch=microbatch)
        except SynthError:  # the layer cannot be recomputed
            return held.saved_bytes + held.output_bytes
    return max(0, window.net_bytes)


def allocated_bytes(tensor: Tensor) -> int:
    """The bytes that the allocator hands out for a tensor's storage; CUDA's rounds up to 512."""
    return _rounded(tensor.untyped_storage().nbytes(), tensor)


def _rounded(size: int, tensor: Tensor) -> int:
    return -(-size // 512) * 512 if tensor.is_cuda else size


class _Watched(NamedTuple):
    """A storage of a boundary, and the bytes that count while it lives; 0: they count elsewhere."""

    storage: Any
    size: int

    @property
    def lives(self) -> bool:
        return not self.storage.expired()


class _Seen(NamedTuple):
    """Facts of a boundary's tensor that outlive it; `is_dense`: it fills memory without gaps."""

    address: int
    memory_bytes: int
    num_bytes: int
    version: int
    is_dense: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        return cls(
            _place(tensor),
            allocated_bytes(tensor),
            _rounded(tensor.numel() * tensor.element_size(), tensor),
            versions_of([tensor])[0],
            is_dense(tensor),
        )


def _tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Views(nn.Module):
    """Returns views of its inputs."""

    def forward(self, *inputs: Any) -> Any:
        views = pytree.tree_map_only(Tensor, lambda x: x.view_as(x), inputs)
        return views[0] if len(views) == 1 else views


class _MeasuredMicroBatch:
    """One micro-batch through one layer, every allocation inside a measuring window.

    `level` is the number of bytes allocated now, and `last` the last of the windows. Boundary
    tensors (input x, output y, the gradient of y) that were dropped but still exist are held by the
    layer; they are recognised by their storages.
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
        self._tensors: dict[str, Any] = {}
        self._watched: dict[str, list[_Watched]] = {}
        self._seen: dict[str, list[_Seen]] = {}
        self._after_f: list[_Seen] = []
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
        taken = [] if self.sample.is_first else self._seen["x"]
        before = [one.version for one in taken]
        after = [one.version for one in self._after_f] if taken else []
        memories = {one.address: number for number, one in enumerate(taken)}
        made: list[MadeMemory] = []
        returned: list[ReturnedTensor] = []
        gradients = count()
        ends = () if self.sample.targets is not None else self._seen["y"]
        for number, (one, leaf) in enumerate(zip(ends, self.sample.exit.leaves, strict=False)):
            if one.address not in memories:
                memories[one.address] = len(taken) + len(made)
                own = until.get(("y", number), OpKind.F)
                made.append(MadeMemory(num_bytes=one.memory_bytes, until=own))
            place = next(gradients) if leaf.differentiable else None
            kept = OpKind.B if place is None else until.get(("gradient", place), OpKind.B)
            returned.append(
                ReturnedTensor(
                    memory=memories[one.address],
                    num_bytes=one.num_bytes,
                    gradient_bytes=0 if place is None else one.num_bytes,
                    gradient_until=last_of([OpKind.B, kept]),
                    is_copied=not one.is_dense,
                )
            )
        return LayerTensors(
            taken=tuple(
                TakenTensor(
                    num_bytes=one.num_bytes,
                    until=until.get(("x", number), OpKind.F),
                    is_changed=before[number] != after[number],
                )
                for number, one in enumerate(taken)
            ),
            made=tuple(made),
            returned=tuple(returned),
        )

    def _forward(self) -> None:
        y = self.sample.forward(self.stage, self._tensors["x"], fused=self.fused)
        sent = filter(is_dense, y)  # copies of the others are
        self.output_bytes = sum({_place(t): allocated_bytes(t) for t in sent}.values())
        self._after_f = [_Seen.of(x) for x in _tensors_of(self._tensors["x"])]
        self._put("y", y)

    def _make_gradient(self) -> Tensors:
        return tuple(one.fill_(1e-3) for one in self.sample.exit.gradients(self.device))

    def _put(self, name: str, tree: Any) -> None:
        """Hold the tensors of a boundary; a storage that is held already has no size here.

        An in-place layer returns such a storage, and so does one that passes a mask on. Of the
        first layer it is the output's.
        """
        theirs = ["x"] * self.sample.is_first
        others = [other for key, other in self._tensors.items() if key not in (name, *theirs)]
        held = {_place(tensor) for tensor in _tensors_of(others)}
        self._tensors[name], self._watched[name] = tree, []
        for tensor in _tensors_of(tree):
            size = 0 if _place(tensor) in held else allocated_bytes(tensor)
            held.add(_place(tensor))
            storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._watched[name].append(_Watched(storage, size))
        self._seen[name] = [_Seen.of(tensor) for tensor in _tensors_of(tree)]

    def _run(self, kind: OpKind, action: Callable[[], Tensors | None]) -> None:
        """Measure an op; what it returns is held, as the gradient to send back."""
        returned = self._window(action)
        self.rises[kind] = self.last.peak_bytes
        if returned:
            self._tensors["returned"] = returned

    def _window(self, action: Callable[[], Any]) -> Any:
        with measure(self.device, after=self.last) as self.last:
            result = action()
        self.level += self.last.net_bytes
        return result
