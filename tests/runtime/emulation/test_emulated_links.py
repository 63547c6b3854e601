"""Paced links of a rank that looks ahead: messages that come late, and messages that fail."""

import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from synth.run_options.emulation_options import Disturbance
from synth.runtime.emulation.emulated_clock import EmulatedClock, now_ns
from synth.runtime.emulation.emulated_stage import STAMP_BYTES
from synth.runtime.emulation.links import EmulatedLinks
from synth.runtime.emulation.pace import Pace
from synth.runtime.execution.base.boundary import Boundary, Leaf, Tensors
from synth.runtime.execution.base.channels import Pending
from synth.runtime.execution.transport.watched_channels import WatchedChannels, WatchedReceives
from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind

ACT = Transfer(Value(ValueKind.ACT, 0, 0, 0), 0, 1, STAMP_BYTES, duration_us=1000)
BOUNDARY = Boundary((Leaf((ACT.num_bytes,), torch.uint8, True),))


class Receiving(NamedTuple):
    buffers: Tensors
    come: Callable[[Tensors], None]

    def wait(self) -> Tensors:
        self.come(self.buffers)
        return self.buffers


class Channels:
    """Real channels of a receiver; `come` is called by the thread that waits for a message."""

    def __init__(self, come: Callable[[Tensors], None]) -> None:
        self._come = come

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        raise NotImplementedError

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        return Receiving(buffers, self._come)

    def abort(self) -> None:
        raise NotImplementedError


def looking_ahead(come: Callable[[Tensors], None], device: EmulatedClock) -> EmulatedLinks:
    watched = WatchedReceives()
    return EmulatedLinks(
        WatchedChannels(Channels(come), watched), device, Pace(Disturbance(), 1), watched
    )


def test_a_message_that_is_slower_than_the_plan_is_not_compensated() -> None:
    """Only the lateness of timers is; the device goes on when the message has really come."""
    came_ns = 0

    def come_after_20_ms(buffers: Tensors) -> None:
        nonlocal came_ns
        stamp = buffers[0].numpy().view("int64")
        stamp[:] = now_ns(), 0
        time.sleep(0.02)
        came_ns = now_ns()

    device = EmulatedClock()
    links = looking_ahead(come_after_20_ms, device)
    links.receive(BOUNDARY.activations("cpu"), ACT)
    links.wait_any([ACT])
    assert links.has_arrived(ACT)
    assert device.now_ns() >= came_ns > 0


@pytest.mark.parametrize("comes_after_s", [0.0, 0.005])
def test_a_late_device_catches_up_while_it_waits_for_a_message(comes_after_s: float) -> None:
    """It waited as long as it was late, and stayed late; so did all ranks that waited for it."""

    def come(buffers: Tensors) -> None:
        time.sleep(comes_after_s)
        buffers[0].numpy().view("int64")[:] = now_ns(), 0

    device = EmulatedClock()
    device.late_ns = 5_000_000_000
    links = looking_ahead(come, device)
    links.receive(BOUNDARY.activations("cpu"), ACT)
    links.wait_any([ACT])
    assert links.has_arrived(ACT)
    assert device.late_ns < 2_500_000_000


def test_a_receive_that_fails_ends_the_wait_and_raises_where_it_is_read() -> None:
    """There the executor knows the op; the wait for any of several receives does not."""

    def fail(buffers: Tensors) -> None:
        raise RuntimeError("Timed out waiting for rank 0")

    links = looking_ahead(fail, EmulatedClock())
    arriving = links.receive(BOUNDARY.activations("cpu"), ACT)
    links.wait_any([ACT])
    assert links.has_arrived(ACT)
    with pytest.raises(RuntimeError, match="waiting for rank 0"):
        arriving.wait()
