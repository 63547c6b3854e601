"""Measuring links: latency and bandwidth between neighbours, over the run's own channels."""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from synth.profile.links import Link, Links, PairLink
from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind

from ..execution.base.channels import Channels
from ..execution.transport.gloo.eager_sockets import MOST_BYTES
from ..execution.transport.groups import Group
from ..execution.transport.objects import broadcast_object, gather_objects
from ..execution.transport.open_channels import open_channels
from ..world import World, join_world
from .host_probe import probe_host

# Message sizes in bytes: one that shows the latency, and two above the size of eager messages, as
# the activations of a model worth a profile are.
_TINY_BYTES = 64
_SMALL_BYTES = 2 * MOST_BYTES
_LARGE_BYTES = 4 << 20
_WARMUP, _ROUNDS = 5, 30
_SAME_LINK = 0.25


def probe_links(world: World) -> Links | None:
    """Measure between each rank and the next, and the copies to the hosts and back.

    Every rank calls this at the same time. Latency comes from ping-pong: it is that of the line
    through the one-way times (half a round trip) of a small and a large message, and at least that
    of a tiny message. Bandwidth comes from large messages in both directions at the same time, as
    pipelines send them. The default link is the median; pairs that differ by more than a quarter
    are listed.

    Returns:
        The links on rank 0; empty on other ranks.
    """
    pairs = [(rank, rank + 1) for rank in range(world.size - 1)]
    both_ways = [_transfer(*pair) for pair in pairs] + [_transfer(b, a) for a, b in pairs]
    group = Group.world()
    channels = open_channels(world.device, both_ways, group=group)
    found = [_probe_pair(world, channels, pair) for pair in pairs]
    group.close()
    host = _probe_hosts(world)
    if world.rank != 0:
        return None
    return _summarise(dict(zip(pairs, found, strict=True))).replace(host=host)


def _probe_hosts(world: World) -> Link:
    """All ranks at once, as they would in a run; the median."""
    dist.barrier()
    links: list[Link] = gather_objects(probe_host(world.device))
    return Link(
        latency_us=round(statistics.median(link.latency_us for link in links), 3),
        bandwidth_bytes_per_s=round(
            statistics.median(link.bandwidth_bytes_per_s or 0.0 for link in links)
        ),
    )


def _transfer(source: int, target: int) -> Transfer:
    return Transfer(Value(ValueKind.ACT, 0, 0), source, target, 0, 0)


def _probe_pair(world: World, channels: Channels, pair: tuple[int, int]) -> Link:
    """Measure on the pair's first rank, and share the result with all."""
    times: list[list[float]] = []
    if world.rank in pair:
        times = _times_us(world, channels, pair)
    medians = [statistics.median(of_kind) for of_kind in times]
    return fitted_link(*broadcast_object(medians, pair[0]))


def fitted_link(tiny_us: float, small_us: float, large_us: float, both_us: float) -> Link:
    """The link on which a large message takes as long as where both directions are busy.

    On a busy machine the times may be in any order: still no byte is free, and no latency is below
    that of a tiny message, unless that took longer than half a large one.

    Args:
        tiny_us: one way of a tiny message, with nothing else on the link.
        small_us: the same of a small one.
        large_us: the same of a large one.
        both_us: the time of two large messages, one in each direction, at the same time.
    """
    us_per_byte = (large_us - small_us) / (_LARGE_BYTES - _SMALL_BYTES)
    latency_us = max(tiny_us, small_us - _SMALL_BYTES * us_per_byte)
    latency_us = min(latency_us, large_us / 2, both_us / 2)
    return Link(
        latency_us=round(latency_us, 3),
        bandwidth_bytes_per_s=round(1e6 * _LARGE_BYTES / (both_us - latency_us)),
    )


def _times_us(world: World, channels: Channels, pair: tuple[int, int]) -> list[list[float]]:
    """One-way times by size, then that of a large message in both directions.

    Measurements alternate, so that other load on the machine slows all of them alike.
    """
    sizes = (_TINY_BYTES, _SMALL_BYTES, _LARGE_BYTES)
    buffers = [torch.zeros(size, dtype=torch.uint8, device=world.device) for size in sizes]
    incoming = torch.zeros_like(buffers[-1])
    times: list[list[float]] = [[] for _ in (*sizes, "both")]
    for turn in range(_WARMUP + _ROUNDS):
        found = [_timed_us(_ping_pong, world.rank, channels, pair, b) / 2 for b in buffers]
        found.append(_timed_us(_exchange, world.rank, channels, pair, buffers[-1], incoming))
        if turn >= _WARMUP:
            for of_kind, time_us in zip(times, found, strict=True):
                of_kind.append(time_us)
    return times


def _timed_us(action: Callable[..., None], *arguments: Any) -> float:
    start = time.perf_counter()
    action(*arguments)
    return (time.perf_counter() - start) * 1e6


def _ping_pong(rank: int, channels: Channels, pair: tuple[int, int], buffer: Tensor) -> None:
    there, back = _transfer(*pair), _transfer(pair[1], pair[0])
    if rank == pair[0]:
        channels.send((buffer,), there).wait()
        channels.receive((buffer,), back).wait()
    else:
        channels.receive((buffer,), there).wait()
        channels.send((buffer,), back).wait()
    _synchronize(buffer)


def _exchange(
    rank: int, channels: Channels, pair: tuple[int, int], outgoing: Tensor, incoming: Tensor
) -> None:
    """Send and receive at the same time; both are started before either is waited for."""
    there, back = _transfer(*pair), _transfer(pair[1], pair[0])
    mine, others = (there, back) if rank == pair[0] else (back, there)
    receiving = channels.receive((incoming,), others)
    sending = channels.send((outgoing,), mine)
    receiving.wait()
    sending.wait()
    _synchronize(incoming)


def _synchronize(buffer: Tensor) -> None:
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)


def _summarise(found: dict[tuple[int, int], Link]) -> Links:
    rates = [link.bandwidth_bytes_per_s or 0.0 for link in found.values()]
    default = Link(
        latency_us=round(statistics.median(link.latency_us for link in found.values()), 3),
        bandwidth_bytes_per_s=round(statistics.median(rates)),
    )
    usual = default.transfer_us(_LARGE_BYTES)
    pairs = []
    for (a, b), link in found.items():
        if abs(link.transfer_us(_LARGE_BYTES) - usual) > _SAME_LINK * usual:
            for source, target in ((a, b), (b, a)):
                pairs.append(PairLink(**link.model_dump(), source=source, target=target))
    return Links(default=default, pairs=tuple(pairs))


def main() -> None:
    """Entry point of a launched process, `python -m` this module with DEVICE FOLDER."""
    device, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    with join_world(device) as world:
        links = probe_links(world)
        if links is not None:
            (folder / "links.json").write_text(links.model_dump_json())


if __name__ == "__main__":
    main()
