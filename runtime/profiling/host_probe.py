"""Measuring the link to the host's memory: latency and bandwidth, over the run's own copies."""

import statistics
import time

import torch
from torch import Tensor

from synth.costs.costs import HOST
from synth.profile.links import Link
from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind

from ..execution.transport.host.host_link import HostLink

_SMALL_BYTES = 64
_LARGE_BYTES = 8 << 20
_WARMUP, _ROUNDS = 3, 15

_OUT = Transfer(Value(ValueKind.MOVED_OUT, 0, 0), 0, HOST, 0, 0)
_BACK = Transfer(Value(ValueKind.MOVED_BACK, 0, 0), HOST, 0, 0, 0)


def probe_host(device: torch.device) -> Link:
    """Copy to the host and back, as moves of saved activations do.

    A profile has one link for both directions, so it is that of the slower one: latency is the
    small copy's, unless that took longer than half a large one, and bandwidth follows from the
    large one's. On CUDA the host's memory is pinned; on CPU it is a copy within the memory that the
    rank itself has.
    """
    small_us, large_us = (_one_way_us(device, size) for size in (_SMALL_BYTES, _LARGE_BYTES))
    latency_us = min(small_us, large_us / 2)
    per_second = (_LARGE_BYTES - _SMALL_BYTES) / (large_us - latency_us) * 1e6
    return Link(latency_us=round(latency_us, 3), bandwidth_bytes_per_s=round(per_second))


def _one_way_us(device: torch.device, size: int) -> float:
    """The slower direction's median."""
    link = HostLink(device)
    buffer = torch.zeros(size, dtype=torch.uint8, device=device)
    outs, backs = [], []
    for _ in range(_WARMUP + _ROUNDS):
        outs.append(_time_us(link, buffer, _OUT))
        backs.append(_time_us(link, buffer, _BACK))
    return max(statistics.median(times[_WARMUP:]) for times in (outs, backs))


def _time_us(link: HostLink, buffer: Tensor, transfer: Transfer) -> float:
    _settle(buffer)
    start = time.perf_counter()
    run = link.send if transfer.target == HOST else link.receive
    run((buffer,), transfer).wait()
    _settle(buffer)
    return (time.perf_counter() - start) * 1e6


def _settle(buffer: Tensor) -> None:
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)
