"""Mini-batches on their way to the device: the pinned way, with a device that the test plays."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from synth.runtime.training.staging import PinnedStaging, PlainStaging

CPU = torch.device("cpu")


@dataclass
class Events:
    """Records the calls on two events, and the use of their buffers."""

    log: list[str] = field(default_factory=list)
    made: int = 0

    def make(self) -> "Event":
        self.made += 1
        return Event(self, "ab"[self.made - 1])


@dataclass
class Event:
    events: Events
    name: str

    def record(self) -> None:
        self.events.log.append(f"record {self.name}")

    def synchronize(self) -> None:
        self.events.log.append(f"wait {self.name}")


def plain(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.int64)


def rows(first: int) -> list[Tensor]:
    return [torch.arange(n, n + 4).view(2, 2) for n in (first, first + 10)]


def test_tensors_arrive_as_they_are_and_are_not_the_buffer() -> None:
    staging = PinnedStaging(CPU, (2, 2), 2, allocate=plain, make_event=Events().make)
    arrived = []
    for first in (0, 100, 200, 300):
        with staging.step() as copy:
            arrived.append([copy(x) for x in rows(first)])
    for first, found in zip((0, 100, 200, 300), arrived, strict=True):
        assert all(map(torch.equal, found, rows(first)))


def test_a_buffer_is_written_only_when_its_last_copies_are_over() -> None:
    events = Events()
    staging = PinnedStaging(CPU, (2, 2), 2, allocate=plain, make_event=events.make)
    for first in (0, 100, 200):
        with staging.step() as copy:
            copy(rows(first)[0])
            events.log.append("copy")
    assert events.log == [
        "wait a", "copy", "record a",
        "wait b", "copy", "record b",
        "wait a", "copy", "record a",
    ]  # fmt: skip


def test_copies_that_were_begun_are_waited_for_when_the_data_ends_in_a_step() -> None:
    events = Events()
    staging = PinnedStaging(CPU, (2, 2), 2, allocate=plain, make_event=events.make)
    with pytest.raises(ValueError, match="no more"), staging.step() as copy:
        copy(rows(0)[0])
        raise ValueError("no more")
    assert events.log == ["wait a", "record a"]


def test_on_a_cpu_nothing_is_copied() -> None:
    with PlainStaging(CPU).step() as copy:
        x = torch.arange(4)
        assert copy(x) is x


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gets_what_was_sent_however_fast_the_buffers_are_written() -> None:
    device = torch.device("cuda")
    staging = PinnedStaging(device, (64, 4096), 1)
    arrived = []
    for step in range(20):
        with staging.step() as copy:
            arrived.append(copy(torch.full((64, 4096), step)))
    assert all(bool((x == step).all()) for step, x in enumerate(arrived))
