"""Serving the page: the socket, the address, and the end by Ctrl-C."""

import asyncio
import gc
import ipaddress
import logging
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import uvicorn

from synth.errors import SynthError
from synth.plan.explain.explanation import Explanation
from synth.records.safe_read import read_text
from synth.system.messages import silenced
from synth.ui.answers import FirstShown
from synth.ui.limits import Limits
from synth.ui.models import Models
from synth.ui.server import Service

LOOPBACK = "127.0.0.1"

# Seconds that open connections get at the end.
_GRACE_S = 2


class Address(NamedTuple):
    """Where a server listens, and to whom it answers.

    Attributes:
        listen: the address of the machine.
        port: 0: a free one.
        hosts: the names by which visitors call the server, besides the loopback's.
    """

    listen: str = LOOPBACK
    port: int = 0
    hosts: Sequence[str] = ()


class QuietEnd(logging.Filter):
    """Leaves out that requests are cancelled at the end."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is logged."""
        error = record.exc_info[1] if record.exc_info else None
        is_end = isinstance(error, asyncio.CancelledError)
        return not is_end and not str(record.msg).startswith("Cancel ")


class Page:
    """A server with its page, that listens already."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        explained: Callable[[Explanation], str],
        address: Address,
        given: str | None = None,
    ) -> None:
        """Bind the socket.

        Args:
            limits: of requests and searches.
            explained: returns an explanation as text.
            address: where it listens.
            given: the profile, config or plan that is shown first.

        Raises:
            SynthError: the address is not free, not of this machine, or not a loopback's though
                the server is not public; or there is no model or plan of the name.
        """
        _check_loopback(address.listen, limits)
        models = Models(folder, limits)
        opened = FirstShown() if given is None else _opened(models, folder, given)
        self._service = Service(models, explained, opened)
        self._socket = _bound(address)
        port = self._socket.getsockname()[1]
        token = "" if limits.is_public else secrets.token_urlsafe(24)
        own = f"[{address.listen}]" if ":" in address.listen else address.listen
        hosts = {LOOPBACK, "localhost", own.lower(), *map(str.lower, address.hosts)}
        self._app = self._service.application(token, hosts)
        shown = LOOPBACK if ipaddress.ip_address(address.listen).is_unspecified else own
        self.url = f"http://{shown}:{port}/{token}/" if token else f"http://{shown}:{port}/"

    def run(self, stop: threading.Event) -> None:
        """Answer until the event is set; searches are stopped then, too."""
        config = uvicorn.Config(
            self._app,
            log_level="warning",
            ws="none",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        logging.getLogger("uvicorn.error").addFilter(QuietEnd())
        server = uvicorn.Server(config)

        def end() -> None:
            stop.wait()
            self._service.close()
            server.should_exit = True

        threading.Thread(target=end, name="end of the page", daemon=True).start()
        try:
            # Silent is what the commands say of each profile and problem.
            with silenced(), seldom_collected():
                server.run(sockets=[self._socket])
        finally:
            stop.set()
            self._socket.close()


def open_in_browser(url: str) -> None:
    """Open an address in the user's browser, where there is a screen to show it on."""
    has_screen = sys.platform == "darwin" or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
    )
    if has_screen:
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _check_loopback(listen: str, limits: Limits) -> None:
    try:
        is_loopback = ipaddress.ip_address(listen).is_loopback
    except ValueError:
        raise SynthError(
            f"--listen {listen!r:.60} is no address; give one such as 0.0.0.0"
        ) from None
    if not is_loopback and not limits.is_public:
        raise SynthError(
            f"--listen {listen} can be reached from other machines, which only --public is made "
            f"for; add --public, or leave --listen out"
        )


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.listen else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address.listen, address.port))
        bound.listen()  # who opens the address at once waits for the first answer
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or error
        raise SynthError(
            f"cannot listen on {address.listen}:{address.port}: {reason}; give another --port"
        ) from None
    return bound


def _opened(models: Models, folder: Path, given: str) -> FirstShown:
    """Return what the command line names: a known model, or a file, which may be anywhere."""
    from synth.profiles import is_known

    if is_known(given):
        return FirstShown(name=given)
    path = Path(given)
    text = read_text(path, "a profile, a plan or a config.json")
    kind, name = models.open(text, given, is_pinned=True)
    place = path.resolve()
    if place.is_relative_to(folder.resolve()) and not models.limits.is_public:
        name = str(place.relative_to(folder.resolve()))
    return FirstShown(kind, name)


# Objects that are made between two searches of the youngest; Python's own number is 700 to 2,000.
_MADE = 50_000


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for cyclic garbage less often: a large schedule is 100,000 tuples, none of them in one.

    Python looks at all objects again and again as they become more.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MADE, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
