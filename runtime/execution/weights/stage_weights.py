"""The parameters of one stage on a rank, which has them always or only during a visit.

The parameters stay the same objects for the whole run, because hooks, optimizers and the tape of
the split backward refer to them. Between visits they have their shape and the memory of a single
element (NaN); during an op they are views of the buffers that arrived. Where autograd would save
parts of the weights in F, it saves their positions in these buffers. The backward reads the same
positions in the buffers of its own visit, so that no graph keeps a visit's buffers alive.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..base.boundary import Tensors
from ..gradients.early_gradients import capture_gradients, set_gradients
from .flat_layout import ParameterLayout
from .parameter_changes import check_in_place, check_same, gradient_taken, unchanged

# In so many forwards the memory of weights is compared.
_NUM_EXACT_FORWARDS = 2

_LOST = "which other ranks have, too, and which is passed on as it was"


class _Saved(NamedTuple):
    """The position of a saved tensor in one of the weights' buffers."""

    buffer: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class StageWeights:
    """A stage's parameters and the buffers that hold them now."""

    def __init__(
        self,
        module: nn.Module,
        num_shares: int = 1,
        apart: Collection[int] = (),
        *,
        device: torch.device,
    ) -> None:
        """Take over a module's parameters, which still have their values.

        Args:
            module: the stage's module; its parameters may be on the meta device where it is not at
                home.
            num_shares: the number of ranks that keep a share of each buffer.
            apart: see `ParameterLayout.of`.
        """
        self.module, self.device = module, device
        _materialise(module, device)
        self.parameters: list[nn.Parameter] = list(module.parameters())
        self.trained = [p for p in self.parameters if p.requires_grad]
        self.layout = ParameterLayout.of(self.parameters, num_shares, apart)
        self.kept: Tensors | None = None
        """The buffers that stay on this rank; None: there are none between visits."""
        self._resting: list[Tensor] = []
        self._shells: list[Tensor] = []
        self._num_compared = 0
        self._current: Tensors | None = None

    def gather(self) -> Tensors:
        """New buffers with the values of the parameters."""
        buffers = self.layout.weights.empty(self.device)
        self.copy_to(buffers)
        return buffers

    def copy_to(self, buffers: Tensors) -> None:
        """Copy the values of the parameters into buffers, which may be on another device.

        Parameters without values leave theirs as they are.
        """
        for view, parameter in zip(self._views(buffers), self.parameters, strict=True):
            if not parameter.is_meta:
                view.copy_(parameter.detach())

    def keep(self, buffers: Tensors) -> None:
        """Make the parameters views of buffers that stay."""
        self.kept = self._current = buffers
        self._rest(self._views(buffers))

    def _stand_ins(self) -> Tensors:
        made = self.layout.weights.empty(self.device)
        for buffer in made:
            if buffer.is_floating_point() or buffer.is_complex():
                buffer.fill_(math.nan)
        return made

    def _make_shells(self) -> list[Tensor]:
        """Views of the buffers without memory; reading them would end the process.

        They are for W, which needs the parameters' strides and offsets, but does not read them.
        """
        buffers = self.layout.weights.empty(self.device)
        views = self._views(buffers)
        for buffer in buffers:
            buffer.untyped_storage().resize_(0)
        return views

    def release(self) -> None:
        """Free the memory of the parameters until the next visit."""
        self._shells = self._make_shells()
        self.kept = self._current = None
        self._rest([absent(parameter, self.device) for parameter in self.parameters])

    def check_same(self, stage: int) -> None:
        """Check that the module has the parameters that were taken over, in their own memory."""
        check_same(stage, self.module, self.parameters, self.trained)
        check_in_place(stage, self.module, self.parameters, self._resting)

    @contextmanager
    def attached(self, buffers: Tensors, *, saving: bool) -> Iterator[None]:
        """Within the block the parameters are views of the buffers of a visit.

        Args:
            buffers: as `layout.weights` describes them.
            saving: True in a forward, whose graph must not keep the buffers alive.
        """
        self._current = buffers
        self._set(self._views(buffers))
        try:
            with self._in_forward() if saving else self.in_backward():
                yield
        finally:
            self._current = self.kept
            self._set(self._resting)

    @contextmanager
    def _in_forward(self) -> Iterator[None]:
        self._num_compared += 1
        is_exact = self._num_compared <= _NUM_EXACT_FORWARDS
        with unchanged(self.parameters, _LOST, is_exact=is_exact), self._saving_places():
            yield

    def in_backward(self) -> AbstractContextManager[None]:
        """Enter a context for a backward, whose hooks must not change parameters."""
        return unchanged(self.parameters, _LOST, by="a hook in a backward")

    def present_for_trial(self) -> AbstractContextManager[None]:
        """Within the block the parameters have arbitrary values, for a warm-up run."""
        if self.kept is not None:
            return nullcontext()
        return self.attached(self.layout.weights.zeros(self.device), saving=False)

    @contextmanager
    def accumulating(self, buffers: Tensors, *, stand_ins: bool = False) -> Iterator[None]:
        """Within the block backwards add to gradients that are views of these buffers.

        Args:
            buffers: as `layout.gradients` describes them.
            stand_ins: True if weights that are not there are read, though their values do not
                matter; they are not numbers then. False: they have no memory at all, and only
                their layout may be looked at.
        """
        totals = self.layout.gradients.views(buffers)
        before = [parameter.grad for parameter in self.trained]
        if self._current is None:
            self._set(self._views(self._stand_ins()) if stand_ins else self._shells)
        set_gradients(self.trained, totals)
        try:
            with self.in_backward():
                yield
            for parameter, total in zip(self.trained, totals, strict=True):
                if parameter.grad is None:
                    raise gradient_taken(parameter)
                if parameter.grad is not total:
                    total.copy_(parameter.grad)
        finally:
            set_gradients(self.trained, before)
            if self._current is None:
                self._set(self._resting)

    def capture_gradients(self, found: dict[int, Tensor]) -> AbstractContextManager[None]:
        """Capture the gradients of the trained parameters, see `early_gradients`."""
        return capture_gradients(self.trained, found)

    def _views(self, buffers: Tensors) -> list[Tensor]:
        return self.layout.weights.views(buffers)

    def _rest(self, tensors: list[Tensor]) -> None:
        self._resting = tensors
        self._set(tensors)

    def _set(self, tensors: Sequence[Tensor]) -> None:
        for parameter, tensor in zip(self.parameters, tensors, strict=True):
            parameter.data = tensor

    def _saving_places(self) -> AbstractContextManager[object]:
        """Let autograd save positions in the buffers instead of views of them."""
        current = self._current or ()
        numbers = {buffer.untyped_storage().data_ptr(): n for n, buffer in enumerate(current)}
        return saved_tensors_hooks(_pack(numbers), self._unpack)

    def _unpack(self, saved: Any) -> Tensor:
        if not isinstance(saved, _Saved):
            tensor: Tensor = saved
            return tensor
        if self._current is None:
            raise RuntimeError("a backward needs weights that are not on this rank")
        buffer, offset, shape, stride, dtype = saved
        flat = self._current[buffer]
        if dtype != flat.dtype:
            flat = flat.view(dtype)
        return flat.as_strided(shape, stride, offset)


def _pack(numbers: dict[int, int]) -> Callable[[Tensor], Any]:
    def pack(tensor: Tensor) -> Any:
        if tensor.layout != torch.strided or tensor.is_meta or type(tensor) not in _PLAIN:
            return tensor
        number = numbers.get(tensor.untyped_storage().data_ptr())
        if number is None or not tensor.numel():
            return tensor
        return _Saved(
            number, int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor.dtype
        )

    return pack


_PLAIN = (Tensor, nn.Parameter)


def release_parameters(module: nn.Module) -> None:
    """Free the memory of a module's parameters, which keep their shapes."""
    for parameter in module.parameters():
        parameter.data = absent(parameter, parameter.device)


def has_values(module: nn.Module) -> bool:
    """True if all parameters have memory for their elements, and no buffer is on meta."""
    return not any(buffer.is_meta for buffer in module.buffers()) and all(
        not p.is_meta and p.untyped_storage().nbytes() >= p.numel() * p.element_size()
        for p in module.parameters()
    )


def absent(tensor: Tensor, device: torch.device) -> Tensor:
    """A stand-in with a tensor's shape and dtype, and the memory of one element (NaN).

    The meta device would be clearer, but a parameter cannot move to it and back.
    """
    number = math.nan if tensor.is_floating_point() or tensor.is_complex() else 0
    one = torch.full((), number, dtype=tensor.dtype, device=device)
    return one.expand(tensor.shape)


def _materialise(module: nn.Module, device: torch.device) -> None:
    """Replace parameters on the meta device by stand-ins on a real one."""
    found = {id(p): p for p in module.parameters() if p.is_meta}
    made = {
        key: nn.Parameter(absent(p, device), requires_grad=p.requires_grad)
        for key, p in found.items()
    }
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and id(parameter) in made:
                part._parameters[name] = made[id(parameter)]
