"""The modes in which torch's calls on a thread count as calls on CUDA.

`Places` takes tensors of the CPU for those of a CUDA device: it answers where a tensor is, and
makes on the CPU what is asked for on CUDA. `Kernels` records each kernel and copy with the bytes
that it reads and writes, and each call for which CUDA's host waits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .recorder import HOST, PINNED, Place, Recorder, tensors_in
from .trace import HostUse, HostWait, Refused

# Calls whose results the host needs, such as the shape of their output.
_WAITING = {
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave",
    "aten::unique_consecutive",
    "aten::unique_dim",
}

# They change what a tensor refers to, and no bytes.
_ONLY_META = {"aten::set_", "aten::detach_", "aten::t_", "aten::transpose_", "aten::as_strided_"}

_COPIES = {"aten::copy_", "aten::_to_copy"}


def _getter(name: str) -> Any:
    """The function that the mode is called with for an attribute of tensors."""
    return getattr(torch.Tensor, name).__get__


class Places(TorchFunctionMode):
    """Lets tensors count as being on a CUDA device, or in pinned memory."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._answers: dict[Any, Callable[..., Any]] = {
            _getter("device"): self._device,
            _getter("is_cuda"): lambda tensor: self._device(tensor).type == "cuda",
            _getter("is_cpu"): lambda tensor: self._device(tensor).type == "cpu",
            torch.Tensor.get_device: self._get_device,
            torch.Tensor.is_pinned: lambda tensor, *_: recorder.place_of(tensor) == PINNED,
            torch.Tensor.numpy: self._numpy,
            torch.Tensor.tolist: lambda tensor: self._to(tensor, HOST).tolist(),
            torch.Tensor.to: self._to,
            torch.Tensor.cuda: lambda tensor, device=None, **named: self._to(
                tensor, torch.device("cuda") if device is None else device, **named
            ),
            torch.Tensor.cpu: lambda tensor: self._to(tensor, HOST),
            torch.Tensor.pin_memory: lambda tensor: self._moved(tensor, PINNED, (), {}),
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        answer = self._answers.get(func)
        if answer is not None:
            return answer(*args, **named)
        place = self._asked(named)
        if place is None:
            return func(*args, **named)
        with self._recorder.placing(place):
            made = func(*args, **named)
        if isinstance(made, Tensor) and made.device.type == "cpu":
            if func in (torch.tensor, torch.as_tensor) and place.type == "cuda":
                self._recorder.add(
                    HostWait(self._recorder.thread, f"{func.__name__} copies to the device")
                )
            self._recorder.adopt(made, place)
        return made

    def _asked(self, named: dict[str, Any]) -> Place | None:
        """The place that a call asks for, which is taken out of its arguments."""
        if named.get("pin_memory"):
            del named["pin_memory"]
            return PINNED
        place = self._place(named.get("device"))
        if place is not None and place.type == "cuda":
            named["device"] = HOST
        elif place != HOST:
            return None
        return place

    def _place(self, given: Any) -> Place | None:
        """The place of a device in torch's words; None: there is none."""
        if isinstance(given, str):
            given = torch.device(given)
        if not isinstance(given, torch.device):
            return None
        if given.type == "cuda" and given.index is None:
            return torch.device("cuda", self._recorder.device)
        return HOST if given.type == "cpu" else given

    def _device(self, tensor: Tensor) -> torch.device:
        place = self._recorder.place_of(tensor)
        return HOST if place == PINNED else place

    def _get_device(self, tensor: Tensor) -> int:
        place = self._device(tensor)
        return place.index if place.type == "cuda" else -1

    def _numpy(self, tensor: Tensor, **named: Any) -> Any:
        if self._device(tensor).type == "cuda":
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return tensor.numpy(**named)

    def _to(self, tensor: Tensor, *given: Any, **named: Any) -> Tensor:
        place = self._place(named.pop("device", None))
        rest: list[Any] = []
        for each in given:
            if isinstance(each, Tensor):
                place = self._device(each)
                rest.append(each.dtype)
            elif self._place(each) is not None:
                place = self._place(each)
            else:
                rest.append(each)
        if place is None:
            return tensor.to(*rest, **named)
        return self._moved(tensor, place, tuple(rest), named)

    def _moved(
        self, tensor: Tensor, place: Place, rest: tuple[Any, ...], named: dict[str, Any]
    ) -> Tensor:
        if place.type == "meta" or tensor.device.type != "cpu":
            return tensor.to(place, *rest, **named)
        here = self._recorder.place_of(tensor)
        if here == place or (here == PINNED and place == HOST):
            return tensor.to(HOST, *rest, **named)
        with self._recorder.placing(place):
            return tensor.to(HOST, *rest, **{**named, "copy": True})


class Kernels(TorchDispatchMode):
    """Records kernels and copies."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            self._recorder.sweep()
            made = func(*args, **(kwargs or {}))
            named = _named(func, args, kwargs or {})
            if all(t.device.type == "cpu" for t in tensors_in([*named.values(), made])):
                self._record(func, named, made)
            return made

    def _record(self, func: Any, named: Mapping[str, Any], made: Any) -> None:
        recorder, name = self._recorder, func._schema.name
        reads, writes = [], []
        for argument in func._schema.arguments:
            tensors = _strided(named.get(argument.name))
            if argument.alias_info is None:
                reads += tensors
            elif argument.alias_info.is_write:
                writes += tensors
        given = _strided(list(named.values()))
        for each in given:
            recorder.adopt(each, HOST)
        places = [recorder.place_of(each) for each in given]
        device = next((p for p in places if p.type == "cuda"), None)
        place = recorder.place or device or HOST
        fresh = [each for each in _strided(made) if not recorder.is_known(each)]
        for each in fresh:
            recorder.adopt(each, place)
        if name in _ONLY_META or name.startswith("aten::empty"):
            return
        self._enqueue(name, named, reads, writes + fresh)

    def _enqueue(
        self, name: str, named: Mapping[str, Any], reads: list[Tensor], writes: list[Tensor]
    ) -> None:
        recorder, thread = self._recorder, self._recorder.thread
        used = [t for t in reads + writes if t.numel()]
        places = {recorder.place_of(t) for t in used}
        devices = [p for p in places if p.type == "cuda"]
        if not devices:
            pinned = [
                tuple(recorder.span(t) for t in tensors if recorder.place_of(t) == PINNED)
                for tensors in (reads, writes)
            ]
            if any(pinned):
                recorder.add(HostUse(thread, name, *pinned))
            return
        index = devices[0].index
        assert index is not None
        stream = recorder.current(index)
        if len(devices) > 1 and name not in _COPIES:
            recorder.add(Refused(f"{name} is given tensors of several devices"))
        wide = [t for t in used if t.dim() and recorder.place_of(t).type == "cpu"]
        if wide and name not in _COPIES:
            recorder.add(Refused(f"{name} is given tensors of the device and of the host"))
            return
        on_device = [
            [t for t in tensors if recorder.place_of(t) != HOST] for tensors in (reads, writes)
        ]
        recorder.work(stream, name, *on_device)
        if self._waits(name, named, places):
            recorder.add(HostWait(thread, name, (stream,)))

    def _waits(self, name: str, named: Mapping[str, Any], places: set[Place]) -> bool:
        """True if the host waits for the call on CUDA."""
        if name in _COPIES:
            return HOST in places or (PINNED in places and not named.get("non_blocking"))
        indices = tensors_in(named.get("indices")) if name.startswith("aten::index") else []
        masks = any(t.dtype in (torch.bool, torch.uint8) for t in indices)
        return name in _WAITING or masks


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _strided(value: Any) -> list[Tensor]:
    return [t for t in tensors_in(value) if t.layout == torch.strided]
