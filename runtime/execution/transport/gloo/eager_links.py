"""Connects the sockets for small messages, for links whose two ends are on one machine."""

import os
import socket
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from synth.errors import RunFailure
from synth.schedule.lowering.lower import Action, Lowered, Transfer

from ....run_folder import run_folder
from ..groups import Group
from .eager_sockets import EagerReceiver, EagerSender, most_bytes, send_buffer_bytes

Link = tuple[int, int]

_ENDS_AND_BUFFER = struct.Struct("<iiq")
_MOST = struct.Struct("<q")


def most_posted(transfers: Iterable[Transfer], lowered: Lowered | None, rank: int) -> Counter[Link]:
    """The most receives of each link to a rank that are posted and not yet waited for.

    Without a program, all of them may be. With one, the count also covers its forwards alone.
    """
    found = Counter((t.source, t.target) for t in transfers if t.target == rank)
    if lowered is None:
        return found
    ahead = lowered.schedule.buffering.receive_ahead + 1
    most = Counter({link: min(count, ahead) for link, count in found.items()})
    now: Counter[Link] = Counter()
    posted = {}
    for instruction in lowered.programs[rank]:
        if instruction.action == Action.RECV:
            link = instruction.moved.source, instruction.moved.target
            posted[instruction.moved.value] = link
            now[link] += 1
            most[link] = max(most[link], now[link])
        elif instruction.action == Action.COMPUTE:
            for value in lowered.effects.reads(instruction.compute):
                if value in posted:
                    now[posted.pop(value)] -= 1
    return most


class EagerLinks:
    """This rank's ends of the links that have a socket, by link."""

    def __init__(
        self, group: Group, links: Iterable[Link], posted: Mapping[Link, int], timeout_s: float
    ) -> None:
        """Connect; every rank of the group calls this at the same time, with the same links.

        Two ranks are on one machine if the connection succeeds: a socket's address is a name in a
        new folder that only its maker's user may enter.

        Args:
            posted: the most open receives of each link to this rank.
            timeout_s: the time limit of a read.
        """
        self._timeout_s = timeout_s
        self.senders: dict[Link, EagerSender] = {}
        self.receivers: dict[Link, EagerReceiver] = {}
        group.private.on_abort(self.abort)
        links = list(links)
        if not links or not hasattr(socket, "AF_UNIX"):
            return
        mine: dict[Link, socket.socket] = {}
        accepted: list[socket.socket] = []
        try:
            self._connect(group, links, mine, accepted)
            self._agree(mine, accepted, posted)
        except BaseException as error:
            group.announce(error)
            for end in (*mine.values(), *accepted):
                end.close()  # wakes the other end, even if this process continues
            raise

    def _connect(
        self,
        group: Group,
        links: list[Link],
        mine: dict[Link, socket.socket],
        accepted: list[socket.socket],
    ) -> None:
        """Add to `mine` the sending ends, and to `accepted` the receiving ones of any link."""
        with (
            # The launcher removes what a killed rank leaves in the folder of the run.
            tempfile.TemporaryDirectory(prefix="synth-", dir=run_folder()) as folder,
            socket.socket(socket.AF_UNIX) as listener,
        ):
            addresses = group.gather(_listen(listener, Path(folder), len(links)))
            for link in links:
                if link[0] == group.rank:
                    end = _connected(addresses[link[1]], link)
                    if end is not None:
                        mine[link] = end
            for link in chain.from_iterable(group.gather(list(mine))):
                if link[1] == group.rank:
                    accepted.append(listener.accept()[0])

    def _agree(
        self,
        mine: Mapping[Link, socket.socket],
        accepted: Iterable[socket.socket],
        posted: Mapping[Link, int],
    ) -> None:
        """Let the receiver of each link tell its sender the largest message."""
        for end in accepted:
            source, target, buffer_bytes = _ENDS_AND_BUFFER.unpack(
                self._read(end, _ENDS_AND_BUFFER.size)
            )
            most = most_bytes(buffer_bytes, posted[source, target])
            end.sendall(_MOST.pack(most))
            link = source, target
            self.receivers[link] = EagerReceiver(end, link, self._timeout_s, most)
        for link, end in mine.items():
            (most,) = _MOST.unpack(self._read(end, _MOST.size))
            self.senders[link] = EagerSender(end, link[1], self._timeout_s, most)

    def abort(self) -> None:
        """Disconnect from all other ranks."""
        for sender in self.senders.values():
            sender.abort()
        for receiver in self.receivers.values():
            receiver.abort()

    def _read(self, end: socket.socket, num_bytes: int) -> bytes:
        end.settimeout(self._timeout_s)
        try:
            came = end.recv(num_bytes, socket.MSG_WAITALL)
        except OSError as error:
            raise RunFailure(f"connecting the ranks of this machine failed: {error}") from error
        if len(came) < num_bytes:
            raise RunFailure("connecting the ranks of this machine failed: one of them is gone")
        return came


def _listen(listener: socket.socket, folder: Path, most: int) -> str | None:
    """Return the address; None if the path is too long for a socket's name."""
    address = os.fspath(folder / "links")
    try:
        listener.bind(address)
    except OSError:
        return None
    listener.listen(most)
    return address


def _connected(address: str | None, link: Link) -> socket.socket | None:
    """Return a socket to the listener, and send it link and buffer size; None: nobody listens."""
    if address is None:
        return None
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(address)
        end.sendall(_ENDS_AND_BUFFER.pack(*link, send_buffer_bytes(end)))
    except OSError:
        end.close()
        return None
    return end
