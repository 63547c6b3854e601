"""The memory of a layer: bytes held after F and after B, and the rise of each op; exact."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from torch.utils import _pytree as pytree

from synth.costs.recomputation import FULL
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile.layer_tensors import LayerTensors, last_of

from ..execution.base.boundary import is_dense
from ..models.layered_stage import LayerCall
from ..tensor_trees import tensors_of
from .measured_micro_batch import MeasuredMicroBatch
from .meter import Measurement, measure
from .sample import Sample
from .seen_tensors import allocated_bytes


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
        if all(map(is_dense, tensors_of(sample.x))):
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
    other, x_bytes = _held_once(received), sum(map(allocated_bytes, tensors_of(received.x)))
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
    micro_batch = MeasuredMicroBatch(sample)
    micro_batch.forward()
    after_f = micro_batch.drop("x", "y")
    needed_after_f = micro_batch.living()
    micro_batch.backward_input()
    after_b = micro_batch.drop("gradient", "returned")
    needed_after_b = micro_batch.living()
    micro_batch.backward_weight()
    fused = MeasuredMicroBatch(sample, fused=True, after=micro_batch.last)
    fused.forward()
    fused_after_f = fused.drop("x", "y")
    until = dict.fromkeys(needed_after_f | fused.living(), OpKind.B)
    until |= dict.fromkeys(needed_after_b, OpKind.W)
    fused.backward_fused()
    tensors = micro_batch.tensors(until)
    either = [one.with_gradients(tensors) for one in (micro_batch, fused)]
    tensors = min(either, key=lambda one: one.shared_gradient_bytes)
    used = sample.without_gradients(micro_batch.unused)
    rises, inner = _all_rises(used, tensors, fused.last)
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
    views = [leaf._is_view() for leaf in tensors_of(sample.x)]
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
        micro_batch = MeasuredMicroBatch(
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
