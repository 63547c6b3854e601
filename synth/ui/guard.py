"""What every request must pass: host, token, origin, method and size; and what answers carry."""

import hmac
import json
from collections.abc import Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

# A request, as ASGI has it.
Scope = MutableMapping[str, Any]

# Nothing is loaded from elsewhere, nothing inline is run, and no other page may frame this one.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]

# The longest path and query.
_MOST_PATH = 2000


class RequestGuard:
    """An ASGI application that refuses what may not pass, before the one inside sees it.

    With a token all paths begin with it, so that each request of the page carries it.
    """

    def __init__(self, app: Any, *, hosts: Collection[str], token: str, most_bytes: int) -> None:
        """Guard an application.

        Args:
            app: the ASGI application inside; it gets paths without the token.
            hosts: the names in `Host` that are answered, without ports.
            token: the first part of all paths; empty: none.
            most_bytes: of the body of a request.
        """
        self._app, self._hosts, self._most_bytes = app, frozenset(hosts), most_bytes
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        refused = self._refused(scope)
        if refused is not None:
            await _answer(scope, send, *refused)
            return
        if self._token and scope["path"] == f"/{self._token.decode()}":
            await _redirect(scope["path"] + "/", send)
            return
        await self._app(self._inside(scope), _Counted(receive, self._most_bytes), _With(send))

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason, unless the request may pass."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        host = headers.get(b"host", b"").decode("latin-1")
        if _host_name(host) not in self._hosts:
            return 403, "this server is not of that host; open the address that `synth ui` prints"
        if len(scope["path"]) > _MOST_PATH or len(scope.get("query_string", b"")) > _MOST_PATH:
            return 414, "the address is too long"
        if self._token:
            first = scope["path"].split("/")[1:2]
            given = first[0].encode("utf-8", "replace") if first else b""
            if not hmac.compare_digest(given, self._token):
                return 403, "the token is missing or wrong; open the address `synth ui` prints"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "only GET and POST are answered"
        origin = headers.get(b"origin")
        if origin is not None and _site(origin.decode("latin-1")) != host:
            return 403, "the request is of another site"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._most_bytes:
            return 413, f"the request is too large; at most {self._most_bytes} bytes are read"
        return None

    def _inside(self, scope: Scope) -> Scope:
        """Return the request without the token in its path."""
        if not self._token:
            return scope
        path = scope["path"][1 + len(self._token) :]
        return {**scope, "path": path, "raw_path": path.encode("utf-8", "replace")}


class _Counted:
    """Receives a body up to a size; one that goes on is cut off, and then is not JSON."""

    def __init__(self, receive: Any, most_bytes: int) -> None:
        self._receive, self._left = receive, most_bytes

    async def __call__(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                return {"type": "http.request", "body": b"", "more_body": False}
        return message


class _With:
    """Sends answers with the headers that all have."""

    def __init__(self, send: Any) -> None:
        self._send = send

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *_HEADERS]}
        await self._send(message)


def _site(origin: str) -> str | None:
    """Return the host and the port of an `Origin`; None: it is not understood."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _host_name(host: str) -> str:
    """Return the name in a `Host`, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


async def _answer(scope: Scope, send: Any, status: int, error: str) -> None:
    body = b"" if scope["method"] == "HEAD" else json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    start = {"type": "http.response.start", "status": status, "headers": [*headers, *_HEADERS]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


async def _redirect(path: str, send: Any) -> None:
    """Answer with another path, below which the page finds its files."""
    headers = [(b"location", path.encode()), (b"content-length", b"0"), *_HEADERS]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
