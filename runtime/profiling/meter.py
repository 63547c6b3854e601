"""Exact memory measurement: how far allocated bytes rise and where they end, on CPU and CUDA."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

# Kineto announces every start and stop of a profile on stderr unless told not to.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@dataclass
class Measurement:
    """Bytes relative to the start of the window; filled when the window closes."""

    peak_bytes: int = 0
    net_bytes: int = 0


@contextmanager
def measure(device: torch.device) -> Iterator[Measurement]:
    """Measure the allocations within the window.

    On CUDA the counters of the caching allocator are read, so sizes are those that it hands out
    (multiples of 512 bytes). On CPU every allocation is observed through the profiler, which costs
    time. Never measure time inside such a window, and let no collective be in flight where it opens
    or closes: torch 2.13 crashes if another thread frees memory at that moment. Memory allocated
    before the window and freed inside it is seen on CUDA only; keep such memory alive.
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
    with profile(profile_memory=True, acc_events=True) as prof:
        yield found
    level = 0
    for size in _allocations(prof):
        level += size
        found.peak_bytes = max(found.peak_bytes, level)
    found.net_bytes = level


def _allocations(prof: profile) -> list[int]:
    """The sizes of allocations (positive) and frees (negative), in order."""
    assert prof.kineto_results is not None
    stack = list(prof.kineto_results.experimental_event_tree())
    events = []
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == _EventType.Allocation:
            allocation: Any = event.extra_fields
            if allocation.device.type == "cpu":
                events.append((event.start_time_ns, int(allocation.alloc_size)))
    events.reverse()  # the walk came from the end; ties keep the order of the program
    return [size for _, size in sorted(events, key=lambda event: event[0])]
