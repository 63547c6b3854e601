"""The host link returns what was sent unchanged and in order, and reuses its memory."""

import pytest
import torch
from torch import Tensor

from synth.costs.costs import HOST
from synth.runtime.execution.transport.host.host_link import HostLink
from synth.runtime.profiling.host_probe import probe_host
from synth.runtime.profiling.meter import measure
from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind

CPU = torch.device("cpu")


def out(microbatch: int) -> Transfer:
    return Transfer(Value(ValueKind.MOVED_OUT, 0, microbatch), 0, HOST, 0, 0)


def back(microbatch: int) -> Transfer:
    return Transfer(Value(ValueKind.MOVED_BACK, 0, microbatch), HOST, 0, 0, 0)


def row(seed: int, sizes: tuple[int, ...] = (3, 100_000, 1)) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(256, (n,), dtype=torch.uint8, generator=draw) for n in sizes)


def empty_like(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(part) for part in given)


def test_what_comes_back_is_what_was_sent_whatever_was_asked_for_first() -> None:
    link = HostLink(CPU)
    for first, second in ((0, 1), (1, 0)):
        sent = {j: row(10 * first + j) for j in (0, 1)}
        leaving = [link.send(sent[j], out(j)) for j in (0, 1)]
        came = {j: link.receive(empty_like(sent[j]), back(j)) for j in (first, second)}
        for pending in leaving:
            pending.wait()
        for j in (0, 1):
            assert all(map(torch.equal, came[j].wait(), sent[j]))


def test_the_sender_may_change_its_memory_once_it_has_waited() -> None:
    link, given = HostLink(CPU), row(3)
    kept = [part.clone() for part in given]
    for part in link.send(given, out(0)).wait():
        part.zero_()
    assert all(map(torch.equal, link.receive(empty_like(given), back(0)).wait(), kept))


def test_the_host_takes_nothing_of_what_torch_counts() -> None:
    link, given = HostLink(CPU), row(4)
    buffers = empty_like(given)
    with measure(CPU) as found:
        link.send(given, out(0)).wait()
        link.receive(buffers, back(0)).wait()
    assert (found.peak_bytes, found.net_bytes) == (0, 0)


def test_what_an_iteration_that_was_called_back_left_there_is_sent_anew() -> None:
    link, old, new = HostLink(CPU), row(5), row(6, (200_000, 7))
    link.send(old, out(0)).wait()
    link.send(new, out(0)).wait()
    assert all(map(torch.equal, link.receive(empty_like(new), back(0)).wait(), new))


def test_a_profile_of_the_link_has_both_its_numbers() -> None:
    found = probe_host(CPU)
    assert found.latency_us > 0
    assert found.bandwidth_bytes_per_s is not None and found.bandwidth_bytes_per_s > 1e6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_memory_may_be_used_again_once_the_device_has_waited() -> None:
    device = torch.device("cuda", 0)
    link = HostLink(device)
    kept, away = [], []
    for j in range(4):
        given = tuple(part.to(device) for part in row(20 + j, (3, 8 << 20, 1)))
        kept.append([part.cpu() for part in given])
        away.append(link.send(given, out(j)))
        if j:
            for part in away[j - 1].wait():
                part.zero_()  # behind the copy, on the device's own order of work
    away[3].wait()
    for j in reversed(range(4)):
        came = link.receive(tuple(torch.empty_like(p, device=device) for p in kept[j]), back(j))
        assert all(torch.equal(a.cpu(), b) for a, b in zip(came.wait(), kept[j], strict=True))
