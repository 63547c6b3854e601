"""Copying a step's mini-batches to the device of this rank."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

Copy = Callable[[Tensor], Tensor]


class StreamEvent(Protocol):
    """A point of the device's current stream."""

    def record(self) -> None:
        """Record it after all work that the stream was given so far."""
        ...

    def synchronize(self) -> None:
        """Return when the stream has passed it; at once if it was never recorded."""
        ...


def _pinned(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, pin_memory=True)


class PinnedStaging:
    """Copies int64 tensors of one shape to a CUDA device, without the host waiting for it.

    They pass through pinned memory, since the driver copies from pageable memory only while the
    host waits. Two buffers take turns from step to step. A buffer is written again only when all
    copies from it have ended, which they have by the time the step after the next one begins. All
    of it is allocated at once: allocating pinned memory may wait for the device to be idle.
    """

    def __init__(
        self,
        device: torch.device,
        shape: tuple[int, ...],
        per_step: int,
        *,
        allocate: Callable[[tuple[int, ...]], Tensor] = _pinned,
        make_event: Callable[[], StreamEvent] = torch.cuda.Event,
    ) -> None:
        """Allocate.

        Args:
            device: the target of the copies.
            per_step: the most tensors of a step.
            allocate: makes a buffer.
            make_event: makes an event of the device.
        """
        self._device = device
        self._buffers = [(allocate((per_step, *shape)), make_event()) for _ in range(2)]

    @contextmanager
    def step(self) -> Iterator[Copy]:
        """Return the function that copies a tensor, for the copies of one step in the block."""
        memory, copied = self._buffers.pop(0)
        self._buffers.append((memory, copied))
        copied.synchronize()
        places = iter(memory)

        def copy(source: Tensor) -> Tensor:
            place = next(places)
            place.copy_(source)
            return torch.empty_like(place, device=self._device).copy_(place, non_blocking=True)

        try:
            yield copy
        finally:
            copied.record()


class PlainStaging:
    """Copies tensors to a device; those that are there already are not copied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @contextmanager
    def step(self) -> Iterator[Copy]:
        """Return the function that copies a tensor."""
        yield lambda source: source.to(self._device)
