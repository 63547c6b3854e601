"""The checker of traces, on traces of a few entries, and what the fake device answers."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runtime.cuda_fake.checker import check
from tests.runtime.cuda_fake.device import CudaFake
from tests.runtime.cuda_fake.trace import (
    Allocated,
    Awaited,
    Entry,
    Freed,
    HostUse,
    HostWait,
    Recorded,
    Span,
    StepBegun,
    StepEnded,
    UsedOn,
    Work,
)

HOST, COMPUTE, OTHER, EVENT = 1, 2, 3, 4
WHOLE, LEFT, RIGHT = Span(9, 0, 8), Span(9, 0, 4), Span(9, 4, 8)


def makes(span: Span = WHOLE, stream: int = COMPUTE) -> Work:
    return Work(HOST, stream, "make", (), (span,))


def reads(span: Span = WHOLE, stream: int = OTHER) -> Work:
    return Work(HOST, stream, "read", (span,), ())


@pytest.mark.parametrize(
    ("trace", "faults"),
    [
        ([makes(), reads(stream=COMPUTE)], 0),
        ([makes(), reads()], 1),
        ([makes(), Recorded(EVENT, COMPUTE), Awaited(OTHER, EVENT), reads()], 0),
        ([Recorded(EVENT, COMPUTE), makes(), Awaited(OTHER, EVENT), reads()], 1),
        ([makes(), Recorded(EVENT, COMPUTE), reads(), Awaited(OTHER, EVENT)], 1),
        ([makes(LEFT), reads(RIGHT)], 0),
        ([reads(), reads(stream=COMPUTE)], 0),
        ([reads(), makes()], 1),
        ([makes(), HostWait(HOST, "", (COMPUTE,)), reads()], 0),
        ([makes(), HostWait(5, "", (COMPUTE,)), reads()], 1),
        ([makes(), HostUse(HOST, "", (WHOLE,))], 1),
        ([makes(), Recorded(EVENT, COMPUTE), HostWait(HOST, "", event=EVENT)], 0),
    ],
)
def test_two_uses_may_not_meet_unless_one_waits_for_the_other(
    trace: list[Entry], faults: int
) -> None:
    assert len(check(trace)) == faults


def test_new_memory_may_be_what_its_stream_still_uses() -> None:
    """Another stream waits for the allocation, before which the block was used."""
    other = Span(8, 0, 8)
    born: list[Entry] = [makes(other), Allocated(9, COMPUTE)]
    waits: list[Entry] = [Recorded(EVENT, COMPUTE), Awaited(OTHER, EVENT)]
    assert len(check([*born, makes(stream=OTHER)])) == 1
    assert check([*born, *waits, makes(stream=OTHER)]) == []
    assert check([*born, makes()]) == []


def test_a_wait_reaches_through_a_third_stream() -> None:
    first, second, third = (Recorded(n, n) for n in (COMPUTE, OTHER, 7))
    trace: list[Entry] = [makes(), first, Awaited(OTHER, COMPUTE), second, Awaited(7, OTHER)]
    assert check([*trace, reads(stream=7)]) == []
    assert len(check([*trace[:-1], third, reads(stream=7)])) == 1


@pytest.mark.parametrize(
    ("before", "faults"),
    [
        ([], 1),
        ([UsedOn(9, OTHER)], 0),
        ([Recorded(EVENT, OTHER), Awaited(COMPUTE, EVENT)], 0),
        ([HostWait(HOST, "", (OTHER,))], 0),
    ],
)
def test_memory_is_freed_after_its_uses_on_other_streams(before: list[Entry], faults: int) -> None:
    trace: list[Entry] = [Allocated(9, COMPUTE), reads(), *before, Freed(HOST, 9)]
    assert check(trace) == []  # nobody has it again
    assert len(check([*trace, Allocated(8, COMPUTE)])) == faults


def test_freed_memory_may_still_be_used_until_its_stream_gets_it_again() -> None:
    trace: list[Entry] = [Allocated(9, COMPUTE), reads(), Recorded(EVENT, OTHER), Freed(HOST, 9)]
    assert len(check([*trace, Allocated(8, COMPUTE), Awaited(COMPUTE, EVENT)])) == 1
    assert (
        check([*trace, Allocated(8, OTHER), Awaited(COMPUTE, EVENT), Allocated(7, COMPUTE)]) == []
    )


def test_the_host_may_wait_outside_of_steps() -> None:
    wait = HostWait(HOST, "synchronize")
    assert check([wait, StepBegun(HOST), StepEnded(HOST), wait]) == []
    assert check([StepBegun(HOST), wait]) == ["the host waits in a step: synchronize"]


def on_fake(function: Callable[[torch.device], Any]) -> list[str]:
    """The faults of a function within a step on the fake device."""
    fake = CudaFake(1)
    with fake.active(), fake.recorder.step():
        function(fake.device)
    return check(fake.recorder.trace)


def test_tensors_are_where_they_were_asked_for() -> None:
    fake = CudaFake(1)
    with fake.active():
        x = torch.ones(3, device=fake.device)
        host, pinned = torch.ones(3), torch.empty(3, pin_memory=True)
        assert (x + 1).device == x.view(3, 1).device == fake.device
        assert x.is_cuda and not host.is_cuda and not pinned.is_cuda
        assert pinned.is_pinned() and not host.is_pinned()
        assert host.to("cuda").device == host.cuda().device == fake.device
        assert x.cpu().device == host.to(x).cpu().device == torch.device("cpu")
        assert torch.nn.Linear(2, 2).to(fake.device).weight.device == fake.device
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda device: torch.ones((), device=device).item(), "_local_scalar_dense"),
        (lambda device: torch.ones(4, device=device).cpu(), "_to_copy"),
        (lambda device: torch.ones(4, device=device).tolist(), "_to_copy"),
        (lambda device: torch.ones(4).to(device), "_to_copy"),
        (lambda device: torch.ones(4, pin_memory=True).to(device), "_to_copy"),
        (lambda device: torch.tensor([1.0], device=device), "tensor copies to the device"),
        (lambda device: torch.ones(4, device=device).nonzero(), "nonzero"),
        (lambda device: torch.ones(4, device=device) + torch.ones(4), "of the host"),
    ],
)
def test_what_waits_or_fails_on_cuda_is_found(
    function: Callable[[torch.device], Any], found: str
) -> None:
    (fault,) = on_fake(function)
    assert found in fault


def test_copies_of_pinned_memory_and_scalars_do_not_wait() -> None:
    def run(device: torch.device) -> None:
        x = torch.empty(4, pin_memory=True).to(device, non_blocking=True)
        torch.empty(4, pin_memory=True).copy_(x * 2 + torch.tensor(1.0), non_blocking=True)

    assert on_fake(run) == []


def test_a_thread_begins_on_the_first_device_and_its_calls_are_recorded() -> None:
    def run(device: torch.device) -> None:
        held, found = [torch.ones(4, device=device)], list[int]()
        side = torch.cuda.Stream(device)

        def work() -> None:
            found.append(torch.cuda.current_device())
            with torch.cuda.stream(side):
                held[0].add_(1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [0]
        held.clear()
        torch.ones(4, device=device)  # which may get its memory

    meets, frees = on_fake(run)
    assert meets.startswith("aten::add_ on stream")
    assert frees.startswith("memory is freed on stream")


def test_backwards_of_autograd_are_recorded() -> None:
    def run(device: torch.device) -> None:
        weight = torch.ones(4, device=device, requires_grad=True)
        loss = (weight * weight).sum()
        with torch.cuda.stream(torch.cuda.Stream()):
            loss.backward()

    assert any("aten::mul on stream" in fault for fault in on_fake(run))
