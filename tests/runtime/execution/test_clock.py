"""The clock of ops on CUDA, with events that a fake device reaches later than the host."""

import time
from itertools import pairwise
from typing import Any

import pytest
import torch

from synth.op_kinds import OpKind
from synth.runtime.execution.base.clock import OpClock
from synth.schedule.ops import Op

BEHIND_MS = 40.0


class FakeDevice:
    """Runs work in order, and still has some of the step before when the clock begins."""

    def __init__(self) -> None:
        self.free_ms = time.perf_counter() * 1e3 + BEHIND_MS

    def reach(self) -> float:
        """The time at which an event recorded now is reached."""
        self.free_ms = max(self.free_ms, time.perf_counter() * 1e3)
        return self.free_ms

    def synchronize(self, device: object) -> None:
        while time.perf_counter() * 1e3 < self.free_ms:
            time.sleep(0.001)


def event_of(device: FakeDevice) -> type:
    class Event:
        def __init__(self, **_: Any) -> None:
            self.at_ms = 0.0

        def record(self, stream: object) -> None:
            self.at_ms = device.reach()

        def elapsed_time(self, other: "Event") -> float:
            return other.at_ms - self.at_ms

    return Event


def test_the_zero_of_a_log_is_when_the_device_reached_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setattr(torch.cuda, "Event", event_of(device))
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: None)
    clock = OpClock(torch.device("cuda"))
    began_ns = time.perf_counter_ns()
    clock.begin()
    for j in range(2):
        with clock.measure(Op(OpKind.F, 0, j)):
            device.free_ms += 5
    log = clock.log()
    assert abs((log.zero_ns - began_ns) / 1e6 - BEHIND_MS) < 5
    assert [span.end_us - span.start_us for span in log.ops] == [5000, 5000]
    assert all(a.end_us <= b.start_us for a, b in pairwise(log.ops))
