"""Eager sockets: which messages arrive, in which order, and which calls may block."""

import errno
import os
import socket
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.runtime.execution.transport.gloo.eager_links import most_posted
from synth.runtime.execution.transport.gloo.eager_sockets import (
    MOST_BYTES,
    EagerReceiver,
    EagerSender,
    most_bytes,
    send_buffer_bytes,
)
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Buffering

Ends = tuple[EagerSender, EagerReceiver]

# Longer than any test waits, however busy the machine is.
PATIENT_S = 300.0


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = socket.socketpair(socket.AF_UNIX)
    yield EagerSender(one, 1, PATIENT_S), EagerReceiver(other, (0, 1), PATIENT_S)


def test_tensors_of_all_types_and_shapes_arrive_as_they_were(ends: Ends) -> None:
    sender, receiver = ends
    row = (
        torch.randn(3, 5),
        torch.randn(4, dtype=torch.bfloat16),
        torch.tensor(True),
        torch.empty(0, 7),
        torch.randn(2, dtype=torch.complex64),
    )
    buffers = tuple(torch.empty_like(t) for t in row)
    pending = receiver.receive(buffers)
    assert sender.send(row).wait() is row
    assert pending.wait() is buffers
    assert all(torch.equal(a, b) for a, b in zip(row, buffers, strict=True))


def test_messages_fill_buffers_in_the_order_of_posting_whichever_is_waited_for_first(
    ends: Ends,
) -> None:
    sender, receiver = ends
    buffers = [torch.empty(4) for _ in range(3)]
    pending = [receiver.receive((b,)) for b in buffers]
    for i in range(3):
        sender.send((torch.full((4,), float(i)),))
    pending[2].wait()
    assert [b[0].item() for b in buffers] == [0, 1, 2]
    for each in pending:
        each.wait()


def test_sending_more_than_the_kernel_holds_blocks_neither_rank(ends: Ends) -> None:
    sender, receiver = ends
    count = 200  # of 32 KiB: some megabytes, with nobody receiving yet
    messages = [torch.full((MOST_BYTES // 4,), float(i)) for i in range(count)]
    sent = [sender.send((m,)) for m in messages]
    sent[0].wait()  # in the kernel; that the last one is not yet does not matter to it
    for i in range(count):
        buffer = torch.empty(MOST_BYTES // 4)
        receiver.receive((buffer,)).wait()
        assert buffer.eq(i).all()
    sent[-1].wait()


@pytest.mark.parametrize("count", [1, 2, 4, 8, 30, 150])
def test_so_many_messages_of_the_largest_size_fit_in_the_kernel(count: int) -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with other:
        size = most_bytes(send_buffer_bytes(one), count)
        sender = EagerSender(one, 1, 0.2)
        for _ in range(count):
            sender.send((torch.zeros(size, dtype=torch.uint8),)).wait()  # which nobody reads


def test_as_many_receives_are_taken_to_be_open_as_the_program_posts() -> None:
    costs = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
    schedule = generate("1f1b", 2, 9)
    for ahead in (1, 3, 100):
        buffered = replace(schedule, buffering=Buffering(receive_ahead=ahead))
        lowered = lower(buffered, costs)
        # F alternates with BW on rank 1; with its forwards alone, all of them may be.
        assert most_posted(lowered.transfers, lowered, 1) == {(0, 1): min(9, ahead + 1)}
    assert most_posted(lowered.transfers, None, 1) == {(0, 1): 9}


def test_a_send_that_nobody_receives_ends_in_a_clear_error() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    sender = EagerSender(one, 1, 0.1)
    sent = [sender.send((torch.zeros(MOST_BYTES // 4),)) for _ in range(100)]
    with pytest.raises(RuntimeError, match="Timed out waiting for rank 1"):
        sent[-1].wait()
    other.close()  # a thread learns of that, in its own time
    closed = "closed by peer, rank 1"
    assert any(closed in refused(sent[-1].wait) for _ in range(round(PATIENT_S / 0.1)))


def refused(wait: Callable[[], object]) -> str:
    """Return the error of a wait."""
    with pytest.raises(RuntimeError) as caught:
        wait()
    return str(caught.value)


def test_a_rank_that_sends_nothing_for_too_long_is_named() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    receiver = EagerReceiver(other, (0, 1), 0.1)
    with one, pytest.raises(RuntimeError, match="Timed out waiting for rank 0"):
        receiver.receive((torch.empty(4),)).wait()


@pytest.mark.parametrize(("sent", "expected"), [(6, 4), (3, 4), (0, 4), (4, 0)])
def test_ends_that_disagree_on_a_size_are_told_at_once_and_nothing_shifts(
    ends: Ends, sent: int, expected: int
) -> None:
    sender, receiver = ends
    first = torch.empty(5)
    pending = [receiver.receive((t,)) for t in (first, torch.empty(expected), torch.empty(4))]
    for message in (torch.ones(5), torch.ones(sent), torch.ones(4)):
        sender.send((message,))
    pending[0].wait()
    assert first.eq(1).all()
    said = f"from rank 0 to rank 1 disagree: a message of {4 * sent} bytes came where one of "
    with pytest.raises(RuntimeError, match=said + f"{4 * expected} bytes was expected"):
        pending[2].wait()


def test_messages_of_many_tensors_arrive_whole_whatever_the_kernel_takes_at_once(
    ends: Ends,
) -> None:
    sender, receiver = ends
    rows = [tuple(torch.full((3,), float(i)) for i in range(k, k + 1500)) for k in range(40)]
    sent = [sender.send(row) for row in rows]
    for row in rows:
        buffers = tuple(torch.empty(3) for _ in row)
        receiver.receive(buffers).wait()
        assert all(torch.equal(a, b) for a, b in zip(row, buffers, strict=True))
    sent[-1].wait()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # with threads of other tests
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_forked_child_does_not_hold_the_link_of_a_rank_that_is_gone() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    sender, receiver = EagerSender(one, 1, PATIENT_S), EagerReceiver(other, (0, 1), PATIENT_S)
    until, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(until, 1)
        os._exit(0)
    try:
        del sender
        with pytest.raises(RuntimeError, match="closed by peer, rank 0"):
            receiver.receive((torch.empty(4),)).wait()
    finally:
        os.close(end)
        os.close(until)
        os.waitpid(child, 0)


def test_a_closed_connection_ends_a_receive_at_once() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    receiver = EagerReceiver(other, (0, 1), 60.0)
    one.close()
    with pytest.raises(RuntimeError, match="closed by peer, rank 0"):
        receiver.receive((torch.empty(4),)).wait()


def test_nothing_of_a_message_is_held_once_it_is_over(ends: Ends) -> None:
    sender, receiver = ends
    tensor, buffer = torch.randn(4), torch.empty(4)
    kept = [weakref.ref(tensor), weakref.ref(buffer)]
    pending = receiver.receive((buffer,))
    sender.send((tensor,)).wait()
    pending.wait()
    del tensor, buffer, pending
    assert [each() for each in kept] == [None, None]


class ShortOfBuffers(socket.socket):
    """A socket that first is full and then gets no memory of the kernel."""

    is_full = True

    def sendmsg(self, *_: Any) -> int:
        if self.is_full:
            self.is_full = False
            raise BlockingIOError
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))


def test_an_error_of_the_thread_that_sends_the_rest_is_told_at_once() -> None:
    """The thread died of it, and all ranks waited until their time limit."""
    one, other = socket.socketpair(socket.AF_UNIX)
    end = ShortOfBuffers(socket.AF_UNIX, fileno=one.detach())
    with other, pytest.raises(RuntimeError, match=r"Sending to rank 1 failed: .*buffer space"):
        EagerSender(end, 1, 5.0).send((torch.empty(4),)).wait()
