"""The recorder of a trace: the numbers of memory and threads, and the current streams.

Tensors of the fake device are tensors of the CPU; the recorder knows which storages count as the
device's, as pinned memory, and as other memory of the host.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .trace import Allocated, Entry, Freed, Span, StepBegun, StepEnded, Work

HOST = torch.device("cpu")
PINNED = torch.device("cpu", 0)
"""Stands for pinned memory of the host."""

Place = torch.device
"""The place of a storage: a CUDA device, the host, or pinned memory."""


class _Storage(NamedTuple):
    reference: StorageWeakRef
    number: int
    place: Place


class Recorder:
    """Records what the threads of a process ask of CUDA devices."""

    def __init__(self) -> None:
        self.trace: list[Entry] = []
        self.names: dict[int, str] = {}
        """Streams by number, for the reader of a trace."""
        self._lock = threading.RLock()
        self._numbers = count(1)
        self._storages: dict[int, _Storage] = {}
        self._default: dict[int, int] = {}
        self._thread = threading.local()

    def number(self) -> int:
        """A number that nothing else has."""
        with self._lock:
            return next(self._numbers)

    def add(self, *entries: Entry) -> None:
        """Add to the trace, after what was freed before."""
        with self._lock:
            self._sweep()
            self.trace += entries

    @property
    def thread(self) -> int:
        """The number of this thread."""
        if not hasattr(self._thread, "number"):
            self._thread.number = self.number()
        return int(self._thread.number)

    @property
    def device(self) -> int:
        """The index of this thread's current device; 0 in a new thread, as on CUDA."""
        return int(getattr(self._thread, "device", 0))

    @device.setter
    def device(self, index: int) -> None:
        self._thread.device = index

    def new_stream(self, name: str) -> int:
        """Make a stream."""
        made = self.number()
        self.names[made] = name
        return made

    def current(self, index: int) -> int:
        """This thread's current stream of a device."""
        current: dict[int, int] = self._thread.__dict__.setdefault("current", {})
        if index not in current:
            with self._lock:
                if index not in self._default:
                    self._default[index] = self.new_stream(f"default of {index}")
            current[index] = self._default[index]
        return current[index]

    def set_current(self, index: int, stream: int) -> None:
        """Set this thread's current stream of a device."""
        self.current(index)
        self._thread.current[index] = stream

    @property
    def streams(self) -> tuple[int, ...]:
        """All streams."""
        return tuple(self.names)

    @contextmanager
    def placing(self, place: Place | None) -> Iterator[None]:
        """Let the storages that this thread makes in the block count as being in a place."""
        before = self.place
        self._thread.place = place
        try:
            yield
        finally:
            self._thread.place = before

    @property
    def place(self) -> Place | None:
        """The place of the storages that this thread makes; None: that of what they are made of."""
        place: Place | None = getattr(self._thread, "place", None)
        return place

    @contextmanager
    def step(self) -> Iterator[None]:
        """Mark the block as a step of the executor."""
        self.add(StepBegun(self.thread))
        try:
            yield
        finally:
            self.add(StepEnded(self.thread))

    def adopt(self, tensor: Tensor, place: Place) -> None:
        """Let a tensor's storage count as being in a place, unless it is known already."""
        with self._lock:
            self._sweep()
            self._adopt(tensor, place)

    def _adopt(self, tensor: Tensor, place: Place) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._storages:
            return
        made = _Storage(StorageWeakRef(storage), self.number(), place)
        self._storages[storage._cdata] = made
        if place.type == "cuda":
            assert place.index is not None
            self.trace.append(Allocated(made.number, self.current(place.index)))

    def is_known(self, tensor: Tensor) -> bool:
        """True if the tensor's storage was seen before."""
        return tensor.untyped_storage()._cdata in self._storages

    def place_of(self, tensor: Tensor) -> Place:
        """Return the place of a tensor; of one on another device than the CPU, that device."""
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return tensor.device
        known = self._storages.get(tensor.untyped_storage()._cdata)
        return HOST if known is None or known.reference.expired() else known.place

    def span(self, tensor: Tensor) -> Span:
        """The bytes that a tensor uses, from its first to its last one."""
        size = tensor.element_size()
        low = int(tensor.storage_offset()) * size
        reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        high = low + (int(reach) + 1) * size if tensor.numel() else low
        self.adopt(tensor, HOST)
        return Span(self._storages[tensor.untyped_storage()._cdata].number, low, high)

    def work(
        self, stream: int, name: str, reads: Iterable[Tensor], writes: Iterable[Tensor]
    ) -> None:
        """Record work on a stream."""
        found = [tuple(map(self.span, tensors)) for tensors in (reads, writes)]
        self.add(Work(self.thread, stream, name, *found))

    def sweep(self) -> None:
        """Record what has been freed by now."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        gone = [key for key, known in self._storages.items() if known.reference.expired()]
        for key in gone:
            known = self._storages.pop(key)
            if known.place.type == "cuda":
                self.trace.append(Freed(self.thread, known.number))


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []
