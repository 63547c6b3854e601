"""Exact memory measurement: how far allocated bytes rise and where they end, on CPU and CUDA."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

# Kineto announces every start and stop of a profile on stderr unless told not to.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@dataclass
class Measurement:
    """Bytes relative to the start of the window; filled when the window closes.

    `left`: the allocations of this window and of those before it that were not freed yet, as sizes
    in bytes by address; on CPU only.
    """

    peak_bytes: int = 0
    net_bytes: int = 0
    left: dict[int, int] = field(default_factory=dict, repr=False)


@contextmanager
def measure(device: torch.device, after: Measurement | None = None) -> Iterator[Measurement]:
    """Measure the allocations within the window.

    On CUDA the counters of the caching allocator are read, so sizes are those that it hands out
    (multiples of 512 bytes). On CPU every allocation is observed through the profiler, which costs
    time. Never measure time inside such a window, and let no collective be in flight where it opens
    or closes: torch 2.13 crashes if another thread frees memory at that moment.

    On CUDA every free within the window counts. On CPU a free counts only if the memory was
    allocated within this window or the ones before it; keep other memory alive.

    Args:
        device: whose memory is measured.
        after: the window before, if this one continues it: memory that was allocated there may be
            freed here, and must not be freed in between.
    """
    found = Measurement()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        yield found
        torch.cuda.synchronize(device)
        found.peak_bytes = torch.cuda.max_memory_allocated(device) - start
        found.net_bytes = torch.cuda.memory_allocated(device) - start
        return
    # torch.profiler, built upon this, imports torch's compiler first: two seconds of every process.
    with profile(profile_memory=True) as prof:
        yield found
    if after is not None:
        found.left.update(after.left)
    level = 0
    for address, size in _allocations(prof):
        if size > 0:
            found.left[address] = size
            level += size
        else:
            # The profiler also reports frees of memory that an earlier window saw allocated, and of
            # whatever was at such an address since: nothing that belongs to this window.
            level -= found.left.pop(address, 0)
        found.peak_bytes = max(found.peak_bytes, level)
    found.net_bytes = level


def _allocations(prof: profile) -> list[tuple[int, int]]:
    """The addresses and sizes of allocations (positive) and frees (negative), in order."""
    assert prof.kineto_results is not None
    stack = list(prof.kineto_results.experimental_event_tree())
    events = []
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == _EventType.Allocation:
            allocation: Any = event.extra_fields
            if allocation.device.type == "cpu":
                change = (allocation.ptr, int(allocation.alloc_size))
                events.append((event.start_time_ns, change))
    events.reverse()  # the walk came from the end; ties keep the order of the program
    return [change for _, change in sorted(events, key=lambda event: event[0])]
