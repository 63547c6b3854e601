"""The calls that all ranks of a pipeline make together, such as `step`, and agree on.

A rank that evaluates would take the activations of one that steps for its own. So at the beginning
of a call each rank notes its kind to some others, and nothing that such a rank sends is used before
its note has been read:

    call     | begin: notes sent | first wait for data of rank s: read the note of s | end: read all
    links    those of transfers, and around each group of ranks that have a collective in common

Notes are sent and never waited for at the beginning, so no rank waits for one that is still in the
call before, unless the call begins with a collective anyway. In a collective each rank has read the
note of the one before it: wherever two ranks disagree, one of them fails instead of taking part.
"""

import threading
from collections.abc import Callable, Iterable
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from synth.errors import RunFailure
from synth.schedule.lowering.lower import Transfer
from synth.schedule.ops import Value, ValueKind

from ..base.boundary import Tensors
from ..base.channels import Channels, Pending
from ..base.failure import describe_failure, tells_of_a_closed_connection

Link = tuple[int, int]

# Numbers of a note: of the call, its kind, its argument.
_LENGTH = 3


class CallKind(IntEnum):
    """The kind of a call; its number is sent in notes, and is part of gloo's tags."""

    STEP = 1
    ACCUMULATE = 2
    EVALUATE = 3
    CLIP = 4
    OVERFLOW = 5

    def __str__(self) -> str:
        """Return the call as code."""
        return _CODE[self]


_CODE = {
    CallKind.STEP: "step()",
    CallKind.ACCUMULATE: "step(update=False)",
    CallKind.EVALUATE: "evaluate()",
    CallKind.CLIP: "clip_grad_norm_()",
    CallKind.OVERFLOW: "the overflow check of its GradScaler",
}


def note_links(links: Iterable[Link], together: Iterable[tuple[int, ...]]) -> list[Link]:
    """The links of notes, sorted.

    Args:
        together: groups of ranks that have a collective in common.
    """
    rings = {
        (source, target)
        for ranks in together
        for source, target in zip(ranks, (*ranks[1:], ranks[0]), strict=True)
        if source != target
    }
    return sorted(rings.union(links))


class CallNotes:
    """One rank's notes to the others, and theirs to it."""

    links: list[Link]
    """Of all ranks, see `note_links`."""

    def __init__(self, rank: int, links: Iterable[Link]) -> None:
        """Prepare a rank, which is to be connected."""
        self.links, self._rank = list(links), rank
        self._targets = [target for source, target in self.links if source == rank]
        self._locks = {s: threading.Lock() for s, target in self.links if target == rank}
        # Made once, outside of torch's memory, which runs measure.
        self._note = np.zeros(_LENGTH, np.int64)
        self._buffers = {s: torch.from_numpy(np.zeros(_LENGTH, np.int64)) for s in self._locks}
        self._unread: dict[int, Pending] = {}
        self._sent: list[Pending] = []
        self._number, self._kind, self._argument = 0, CallKind.STEP, 0.0

    def over(
        self,
        channels: Channels,
        carrier: Channels,
        *,
        on_begin: Callable[[int], None] | None = None,
        at_post: bool = False,
    ) -> "AgreedChannels":
        """Return channels whose messages belong to the calls of these notes.

        Args:
            channels: between ranks.
            carrier: carries the notes, which are tensors of the host; may be the same channels.
            on_begin: called with the kind of each call that begins, and with 0 ahead of its notes.
            at_post: see `AgreedChannels`.
        """
        self._channels, self._on_begin = carrier, on_begin or _ignore
        return AgreedChannels(channels, self, at_post=at_post)

    def begin(self, kind: CallKind, argument: float = 0.0) -> None:
        """Begin a call: send the notes of this rank, and expect those of others.

        Args:
            argument: a number that all ranks are to give.
        """
        self._number, self._kind, self._argument = self._number + 1, kind, argument
        self._on_begin(0)
        self._note[:] = self._number, kind, _bits(argument)
        note = torch.from_numpy(self._note)
        self._unread = {
            source: self._channels.receive((buffer,), _note(source, self._rank))
            for source, buffer in self._buffers.items()
        }
        self._sent = [self._channels.send((note,), _note(self._rank, t)) for t in self._targets]
        self._on_begin(kind)

    def end(self) -> None:
        """Read what has not been read yet; all notes of the call are then gone."""
        self.check_all()
        for sending in self._sent:
            sending.wait()
        self._sent = []

    def check_all(self) -> None:
        """Wait until all ranks that send notes to this one have begun the same call.

        Raises:
            RunFailure: see `check`.
        """
        for source in self._locks:
            self.check(source)

    def is_read(self, source: int) -> bool:
        """True if a rank is known to make the same call, or sends no notes to this one."""
        return source not in self._unread

    def check(self, source: int) -> None:
        """Wait until a rank has begun the same call.

        Raises:
            RunFailure: it makes another one, or none.
        """
        if self.is_read(source):
            return
        with self._locks[source]:
            if self.is_read(source):  # another thread has read it
                return
            try:
                (note,) = self._unread[source].wait()
            except RuntimeError as error:
                raise RunFailure(
                    f"rank {self._rank} failed in call {self._number} of its pipeline, "
                    f"{self._kind}, which rank {source} has not begun: {describe_failure(error)}"
                ) from error
            self._check_same(source, note)
            del self._unread[source]

    def _check_same(self, source: int, note: Tensor) -> None:
        number, kind, bits = note.tolist()
        if (number, kind) == (self._number, self._kind) and bits != _bits(self._argument):
            theirs = float(np.int64(bits).view(np.float64))
            raise RunFailure(
                f"rank {source} calls {self._kind} with {theirs} where rank {self._rank} gives "
                f"{self._argument}, in call {number} of its pipeline; every rank gives the same"
            )
        if (number, kind) != (self._number, self._kind):
            raise RunFailure(
                f"rank {source} calls {CallKind(kind)} as call {number} of its pipeline where rank "
                f"{self._rank} calls {self._kind} as call {self._number}; every rank makes the "
                f"same calls in the same order"
            )


class AgreedChannels:
    """Channels from which nothing is used before the ranks agree on the call that it belongs to."""

    def __init__(self, channels: Channels, notes: CallNotes, *, at_post: bool) -> None:
        """Wrap channels.

        Args:
            channels: between ranks.
            at_post: True: receives are not even posted before, because a wait for them returns
                before they have arrived (NCCL).
        """
        self._channels, self._notes, self._at_post = channels, notes, at_post

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start sending."""
        pending = self._channels.send(tensors, transfer)
        if self._notes.is_read(transfer.target):
            return pending
        return _Explained(pending, self._notes, transfer.target)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive, whose wait also waits for the sender's note."""
        if self._at_post:
            self._notes.check(transfer.source)
        pending = self._channels.receive(buffers, transfer)
        if self._notes.is_read(transfer.source):
            return pending
        return _Agreed(pending, self._notes, transfer.source)

    def abort(self) -> None:
        """Disconnect from all other ranks."""
        self._channels.abort()


class _Agreed:
    """A receive that was posted before the sender's note was read."""

    __slots__ = ("_notes", "_pending", "_source")

    def __init__(self, pending: Pending, notes: CallNotes, source: int) -> None:
        self._pending, self._notes, self._source = pending, notes, source

    def wait(self) -> Tensors:
        self._notes.check(self._source)
        return self._pending.wait()


class _Explained:
    """A send to a rank whose note was not read yet: if that rank is gone, the call is named."""

    __slots__ = ("_notes", "_pending", "_target")

    def __init__(self, pending: Pending, notes: CallNotes, target: int) -> None:
        self._pending, self._notes, self._target = pending, notes, target

    def wait(self) -> Tensors:
        try:
            return self._pending.wait()
        except RuntimeError as error:
            if tells_of_a_closed_connection(error):
                self._notes.check(self._target)
            raise


def _bits(argument: float) -> int:
    return int(np.float64(argument).view(np.int64))


def _ignore(kind: int) -> None:
    """Do nothing."""


def _note(source: int, target: int) -> Transfer:
    return Transfer(Value(ValueKind.ACT, -1, -1, -1), source, target, 8 * _LENGTH, 0)
