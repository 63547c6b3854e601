"""Threads of an emulated device: links that send beside the rank's program, and collectives."""

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroupGloo

from synth.run_options.emulation_options import Disturbance
from synth.runtime.emulation.collectives import PacedCollectives, reducible_bytes
from synth.runtime.emulation.emulated_clock import EmulatedClock, now_ns
from synth.runtime.emulation.links import EmulatedLinks
from synth.runtime.emulation.pace import Pace
from synth.runtime.emulation.thread_order import EmulatedOrder
from synth.runtime.execution.base.boundary import Tensors
from synth.runtime.execution.base.channels import Pending
from synth.runtime.execution.transport.direct_transfer import DirectTransfer
from synth.runtime.execution.weights import share_collectives
from synth.schedule.lowering.collectives import Collective, CollectiveKind
from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind

US = 1000
SECOND_NS = 1_000_000_000
LATE_NS = 5 * SECOND_NS
LONG_S = 60


def weights_of(number: int, source: int, target: int) -> Transfer:
    value = Value(ValueKind.WEIGHTS, 0, number, 0)
    return Transfer(value, source, target, num_bytes=64, duration_us=20_000)


def stamp_of(message: Tensors) -> tuple[int, int]:
    sent_ns, late_ns = message[0].numpy().view("int64").tolist()
    return sent_ns, late_ns


class Arriving:
    def __init__(self, message: Tensors, come: Callable[[], None]) -> None:
        self._message, self._come = message, come

    def wait(self) -> Tensors:
        self._come()
        message = self._message
        message[0].numpy().view("int64")[:] = now_ns(), 0
        return message


class Channels:
    """Real channels: `come` is called by the thread that waits for a message, with its number."""

    def __init__(self, come: Callable[[int], None]) -> None:
        self._come = come
        self.sent: list[Tensors] = []

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        self.sent.append(tensors)
        return DirectTransfer((), tensors)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        return Arriving(buffers, lambda: self._come(transfer.value.microbatch))

    def abort(self) -> None:
        raise NotImplementedError


def run_beside(work: Callable[[], object]) -> Callable[[], None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def join() -> None:
        thread.join(LONG_S)
        assert not thread.is_alive()

    return join


def links_on(come: Callable[[int], None], device: EmulatedClock) -> tuple[Channels, EmulatedLinks]:
    channels = Channels(come)
    return channels, EmulatedLinks(channels, device, Pace(Disturbance(), 1))


def test_a_relay_leaves_when_weights_have_arrived_however_late_the_rank_is() -> None:
    device = EmulatedClock()
    channels, links = links_on(lambda number: None, device)
    order, buffers = EmulatedOrder(device), (torch.zeros(64, dtype=torch.uint8),)
    begun_ns = now_ns()
    source, pending = order.shared(links.receive(buffers, weights_of(0, 0, 1)))
    device.late_ns = LATE_NS  # of the op that runs meanwhile
    run_beside(lambda: links.send(source(), weights_of(0, 1, 2)))()

    (message,) = channels.sent
    sent_ns, late_ns = stamp_of(message)
    assert len(message) == 2 and message[1] is buffers[0]
    assert sent_ns >= begun_ns + 20_000 * US  # by the link's time
    assert sent_ns + late_ns <= now_ns() and late_ns < LATE_NS
    assert device.late_ns == LATE_NS
    assert pending.wait() == buffers


def test_what_a_late_rank_has_made_leaves_at_the_moment_at_which_it_was_made() -> None:
    device = EmulatedClock()
    channels, links = links_on(lambda number: None, device)
    device.late_ns = LATE_NS
    source = EmulatedOrder(device).made((torch.zeros(64, dtype=torch.uint8),))
    run_beside(lambda: links.send(source(), weights_of(0, 1, 2)))()

    sent_ns, late_ns = stamp_of(channels.sent[0])
    assert late_ns >= LATE_NS and sent_ns <= now_ns() - LATE_NS


def test_a_thread_that_wants_an_earlier_message_does_not_wait_for_a_later_one() -> None:
    """The second one comes only when the first one has been relayed, as round a ring."""
    asked, relayed = threading.Event(), threading.Event()

    def come(number: int) -> None:
        if number == 1:
            asked.set()
            assert relayed.wait(LONG_S)

    device = EmulatedClock()
    _, links = links_on(come, device)
    first, second = (
        links.receive((torch.zeros(64, dtype=torch.uint8),), weights_of(number, 0, 1))
        for number in range(2)
    )

    def relay() -> None:
        assert asked.wait(LONG_S)
        first.wait()
        relayed.set()

    join = run_beside(relay)
    second.wait()
    join()


class Reducing:
    """A group of two ranks, the other of which starts `after_ns` later."""

    def __init__(self, after_ns: int) -> None:
        self._after_ns = after_ns
        self.num_bytes: list[int] = []

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        (words,) = tensors
        words[0] += self._after_ns
        self.num_bytes.append(words.nbytes)
        return DirectTransfer((), ())


def test_collectives_among_the_same_ranks_run_one_after_another() -> None:
    device, group = EmulatedClock(), Reducing(after_ns=3000 * US)
    collectives = PacedCollectives(device)
    kinds = (CollectiveKind.GATHER, CollectiveKind.SCATTER)
    begun_ns = device.now_ns()
    first, second = (
        collectives.start(
            Collective(0, (0, 1), 128, 2000, kind), group, torch.zeros(128, dtype=torch.uint8)
        )
        for kind in kinds
    )
    second.wait()
    # The other rank starts both 3 ms later, and each takes 2 ms.
    assert device.now_ns() >= begun_ns + 7000 * US
    ended_ns = device.now_ns()
    first.wait()
    assert device.now_ns() < ended_ns + SECOND_NS


def test_an_all_gather_moves_half_of_what_an_all_reduce_does() -> None:
    group, collectives = Reducing(after_ns=0), PacedCollectives(EmulatedClock())
    for kind in CollectiveKind:
        buffer = torch.zeros(reducible_bytes(160), dtype=torch.uint8)
        collectives.start(Collective(0, (0, 1), 160, 0, kind), group, buffer)
    assert group.num_bytes == [160, 80, 80]
    tiny = torch.zeros(reducible_bytes(3), dtype=torch.uint8)
    collectives.start(Collective(0, (0, 1), 3, 0, CollectiveKind.GATHER), group, tiny).wait()


@pytest.mark.parametrize("kind", CollectiveKind)
def test_nothing_keeps_the_buffer_of_a_collective_that_has_ended(
    kind: CollectiveKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_collectives, "_LONGEST_HOLD_S", LONG_S)
    timeout = datetime.timedelta(seconds=LONG_S)
    group = ProcessGroupGloo(HashStore(), 0, 1, timeout)
    buffer = torch.zeros(reducible_bytes(4096), dtype=torch.uint8)
    started = PacedCollectives(EmulatedClock()).start(
        Collective(0, (0,), 4096, 1000, kind), group, buffer
    )
    begun_s = time.monotonic()
    started.wait()
    assert time.monotonic() < begun_s + LONG_S / 2
