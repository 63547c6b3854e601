"""Eager sockets: small messages between processes of one machine, sent at once.

Gloo synchronises before it sends: each end tells the other that it is ready, and threads of both
wake up for each of these notes, which costs more than the op of a small tensor. MPI libraries
therefore send small messages eagerly, and so does this module. The bytes of a link arrive in the
order of sending. Both ends know the sizes, but each message still begins with its length: if the
ends ever disagreed, all later messages of the link would silently shift.

A send never blocks, and proceeds independently of its rank. Bytes that exceed the kernel's buffer
are sent by a thread, which ends when none are left.
"""

import ctypes
import os
import select
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from ...base.boundary import Tensors

# Larger messages go over gloo, whose threads move them while their ranks compute.
MOST_BYTES = 32 << 10

# The send buffer that is requested of the kernel, in bytes.
_WANTED_BYTES = 1 << 20

# Linux counts up to this many bytes of its buffer per byte of a message, and this many per message.
_SHARE_OF_MESSAGE = 2
_COST_OF_MESSAGE = 2 << 10

_LENGTH = struct.Struct("=q")

# The most pieces of memory that one system call takes (IOV_MAX on Linux).
_MOST_PIECES = 1024


def send_buffer_bytes(end: socket.socket) -> int:
    """Request a large send buffer for a socket, and return the size that the kernel grants."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WANTED_BYTES)
    return end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def most_bytes(buffer_bytes: int, most_posted: int) -> int:
    """The largest message for which a link's socket behaves as the verifier assumes.

    A send may wait for its receive to be posted, and for nothing else. Here it waits if the
    kernel's buffer is full of unread messages, so all messages that are posted and not yet waited
    for must fit in, each with its length. Linux counts at most two bytes per byte, and 2 KiB per
    message.
    """
    share = buffer_bytes // max(1, most_posted)
    return min(MOST_BYTES, (share - _COST_OF_MESSAGE) // _SHARE_OF_MESSAGE - _LENGTH.size)


class _Piece(NamedTuple):
    """Memory to send or to fill, and the tensor that it belongs to; a message's length has none."""

    memory: memoryview
    tensor: Tensor | None


class EagerSender:
    """The sending end of a link."""

    def __init__(
        self, end: socket.socket, target: int, timeout_s: float, most: int = MOST_BYTES
    ) -> None:
        """Take over a connected socket, for messages of at most `most` bytes."""
        self.most = most
        end.setblocking(False)
        weakref.finalize(self, end.close)
        _close_in_forks(end)
        self._end = end
        self._target = target
        self._timeout_s = timeout_s
        self._unsent: deque[_Piece] = deque()
        self._queued_bytes = 0
        self._sent_bytes = 0
        self._error: RuntimeError | None = None
        self._has_thread = False
        self._moved = threading.Condition()

    def send(self, tensors: Tensors) -> "_Sending":
        """Hand a message to the kernel.

        Raises:
            RuntimeError: the other end is closed, or the kernel refuses.
        """
        pieces = _pieces(tensors)
        num_bytes = sum([len(piece.memory) for piece in pieces])
        with self._moved:
            self._queued_bytes += _LENGTH.size + num_bytes
            self._unsent.append(_Piece(memoryview(_LENGTH.pack(num_bytes)), None))
            self._unsent += pieces
            if not self._has_thread and not self._push():
                self._has_thread = True
                threading.Thread(target=self._drain, daemon=True).start()
            return _Sending(self, tensors, self._queued_bytes)

    def finish(self, end_bytes: int) -> None:
        """Wait until `end_bytes` of the link's bytes are sent.

        Raises:
            RuntimeError: the other end is closed, or accepts nothing for too long; or the kernel
                refused a message.
        """
        with self._moved:
            if self._sent_bytes >= end_bytes:
                return
            over = self._moved.wait_for(
                lambda: self._sent_bytes >= end_bytes or self._error is not None, self._timeout_s
            )
        if self._error is not None:
            raise self._error
        if not over:
            raise RuntimeError(f"Timed out waiting for rank {self._target} to receive")

    def abort(self) -> None:
        """Stop sending; the other end is notified."""
        _shut(self._end)

    def _push(self) -> bool:
        """Send as much as the kernel accepts; return True if that was everything."""
        unsent = self._unsent
        while unsent:
            try:
                sent = self._end.sendmsg(_memories(unsent))
            except BlockingIOError:
                return False
            except ConnectionError as error:
                raise _closed(self._target) from error
            except OSError as error:  # such as ENOBUFS
                raise RuntimeError(f"Sending to rank {self._target} failed: {error}") from error
            self._sent_bytes += sent
            _advance(unsent, sent)
        return True

    def _drain(self) -> None:
        writable = select.poll()
        writable.register(self._end, select.POLLOUT)
        while self._has_thread:
            writable.poll()
            with self._moved:
                try:
                    self._has_thread = not self._push()
                except RuntimeError as error:
                    self._error, self._has_thread = error, False
                self._moved.notify_all()


class EagerReceiver:
    """The receiving end of a link."""

    def __init__(
        self, end: socket.socket, link: tuple[int, int], timeout_s: float, most: int = MOST_BYTES
    ) -> None:
        """Take over a link's connected socket, for messages of at most `most` bytes."""
        self.most = most
        end.setblocking(True)
        # The kernel's time limit; Python's own would poll before each read.
        limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        weakref.finalize(self, end.close)
        _close_in_forks(end)
        self._end = end
        self._link = link
        self._source = link[0]
        self._posted: deque[_Receiving] = deque()
        self._filling = threading.Lock()

    def receive(self, buffers: Tensors) -> "_Receiving":
        """Post a receive; messages fill buffers in the order of posting."""
        posted = _Receiving(self, buffers)
        self._posted.append(posted)
        return posted

    def finish(self, wanted: "_Receiving") -> None:
        """Fill the buffers of a receive, and of those posted before it.

        Several threads may wait for messages of one link. Each fills one message at a time, so
        none waits for a later message than its own.

        Raises:
            RuntimeError: the other end is closed, sends nothing for too long, or sent a message of
                another size.
        """
        while True:
            with self._filling:
                if not wanted.unfilled:
                    return
                self._fill(self._posted[0])
                self._posted.popleft()

    def _fill(self, message: "_Receiving") -> None:
        while message.unfilled:
            try:
                came = self._end.recvmsg_into(_memories(message.unfilled))[0]
            except BlockingIOError as error:
                raise RuntimeError(f"Timed out waiting for rank {self._source}") from error
            except ConnectionError as error:
                raise _closed(self._source) from error
            if not came:
                raise _closed(self._source)
            _advance(message.unfilled, came)
            self._check_length(message)

    def abort(self) -> None:
        """Stop receiving; the other end is notified."""
        _shut(self._end)

    def _check_length(self, message: "_Receiving") -> None:
        """Check the length of a message that has begun; it is the message's first piece."""
        if message.is_checked or (message.unfilled and message.unfilled[0].tensor is None):
            return
        (came,) = _LENGTH.unpack(message.length)
        if came != message.num_bytes:
            source, target = self._link
            raise RuntimeError(
                f"the ends of the link from rank {source} to rank {target} disagree: a message of "
                f"{came} bytes came where one of {message.num_bytes} bytes was expected"
            )
        message.is_checked = True


class _Sending:
    """A message in flight, for its sender."""

    __slots__ = ("_end_bytes", "_sender", "_tensors")

    def __init__(self, sender: EagerSender, tensors: Tensors, end_bytes: int) -> None:
        self._sender = sender
        self._tensors = tensors
        self._end_bytes = end_bytes

    def wait(self) -> Tensors:
        """Return the tensors once they may be freed."""
        self._sender.finish(self._end_bytes)
        return self._tensors


class _Receiving:
    """A message in flight, for its receiver."""

    __slots__ = ("_buffers", "_receiver", "is_checked", "length", "num_bytes", "unfilled")

    def __init__(self, receiver: EagerReceiver, buffers: Tensors) -> None:
        self._receiver = receiver
        self._buffers = buffers
        self.length = bytearray(_LENGTH.size)
        self.is_checked = False
        pieces = _pieces(buffers)
        self.num_bytes = sum([len(piece.memory) for piece in pieces])
        self.unfilled = deque([_Piece(memoryview(self.length), None), *pieces])

    def wait(self) -> Tensors:
        """Return the buffers once they may be read."""
        if self.unfilled:
            self._receiver.finish(self)
        return self._buffers


def _pieces(tensors: Iterable[Tensor]) -> list[_Piece]:
    """The memory of contiguous tensors of any type; empty ones have none."""
    return [
        _Piece(memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B"), tensor)
        for tensor in tensors
        if (size := tensor.nbytes)
    ]


def _memories(pieces: Iterable[_Piece]) -> list[memoryview]:
    """The memory of as many pieces as one system call takes."""
    return [piece.memory for piece in islice(pieces, _MOST_PIECES)]


def _advance(pieces: deque[_Piece], num_bytes: int) -> None:
    """Remove the first `num_bytes` bytes of the pieces."""
    while num_bytes:
        memory, tensor = pieces[0]
        if num_bytes < len(memory):
            pieces[0] = _Piece(memory[num_bytes:], tensor)
            return
        pieces.popleft()
        num_bytes -= len(memory)


def _shut(end: socket.socket) -> None:
    """Shut a socket down; unlike closing it, this wakes a thread that waits for it."""
    with suppress(OSError):  # the other end is gone already
        end.shutdown(socket.SHUT_RDWR)


def _close_in_forks(end: socket.socket) -> None:
    """Close a socket in forked children, such as data loaders, which would keep the link open."""
    kept = weakref.ref(end)

    def close() -> None:
        if (mine := kept()) is not None:
            mine.close()

    os.register_at_fork(after_in_child=close)


def _closed(peer: int) -> RuntimeError:
    return RuntimeError(f"Connection closed by peer, rank {peer}")
