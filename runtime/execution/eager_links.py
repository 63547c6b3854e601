"""Connecting the sockets for small messages, for those links whose two ends are on one machine."""

import os
import socket
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .eager import EagerReceiver, EagerSender
from .groups import Group

Link = tuple[int, int]

_ENDS = struct.Struct("<ii")


class EagerLinks:
    """This rank's ends of the links that have a socket, by link."""

    def __init__(self, group: Group, links: Sequence[Link], timeout_s: float) -> None:
        """Connect; every rank of the group calls this at the same time, with the same links.

        Whether two ranks are on one machine is found by trying: a socket's address is a name in a
        new folder that only its maker's user may enter.
        """
        self.senders: dict[Link, EagerSender] = {}
        self.receivers: dict[Link, EagerReceiver] = {}
        if not links or not hasattr(socket, "AF_UNIX"):
            return
        with (
            tempfile.TemporaryDirectory(prefix="synth-") as folder,
            socket.socket(socket.AF_UNIX) as listener,
        ):
            address = _listen(listener, Path(folder), len(links))
            addresses = group.gather(address)
            mine = {link: _connected(addresses[link[1]], link) for link in links
                    if link[0] == group.rank}  # fmt: skip
            made = {link for link, end in mine.items() if end is not None}
            coming = [link for found in group.gather(made) for link in found
                      if link[1] == group.rank]  # fmt: skip
            accepted = [listener.accept()[0] for _ in coming]
        for link, end in mine.items():
            if end is not None:
                self.senders[link] = EagerSender(end, link[1], timeout_s)
        for end in accepted:
            link = _ENDS.unpack(end.recv(_ENDS.size, socket.MSG_WAITALL))
            self.receivers[link] = EagerReceiver(end, link[0], timeout_s)


def _listen(listener: socket.socket, folder: Path, most: int) -> str | None:
    """The address, or none where this cannot be (a path too long for a socket's name)."""
    address = os.fspath(folder / "links")
    try:
        listener.bind(address)
    except OSError:
        return None
    listener.listen(most)
    return address


def _connected(address: str | None, link: Link) -> socket.socket | None:
    """A socket to whoever listens there, which was told which link it is; none: nobody does."""
    if address is None:
        return None
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(address)
        end.sendall(_ENDS.pack(*link))
    except OSError:
        end.close()
        return None
    return end
