"""Checks every request, and adds headers to every response.

The checks, in this order: method, lengths, Host and Origin, size and time of the body, login. The
check of Host and Origin keeps out other sites, even a site whose name resolves to this address.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from detector.core.errors.secrets import redact
from detector.live.page.access import COOKIE, Access
from detector.live.page.binding import Binding, is_address, is_loopback
from detector.live.page.connections import HEAD_BYTES, Connections
from detector.live.page.documents import ErrorDocument

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

METHODS = ("GET", "HEAD", "POST")
# These paths need no login, because they reveal nothing about the run.
OPEN = frozenset(("/healthz", "/login", "/page.css", "/icon.svg"))
BODY_BYTES = 8 << 10
BODY_S = 5.0
TARGET_BYTES = 2048  # path and query
RANGE_BYTES = 128  # limit for a Range header, because long headers make some libraries slow
STALLED_S = 20.0  # a client that reads nothing for this long is cut off
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, forms would send Origin: null
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class HttpError(Exception):
    """A refused request. ``headers``: more headers for the response."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.headers = status, error, dict(headers or {})


class Gate:
    def __init__(
        self,
        app: App,
        binding: Binding,
        access: Access,
        connections: Connections,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._app, self._binding = app, binding
        self._access, self._connections = access, connections
        self._say, self._reported = say, False
        self.body_s, self.stalled_s = BODY_S, STALLED_S
        self.requests: dict[int, int] = {}  # status -> number of responses

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        peer = scope.get("client")
        self._connections.begin_request(peer)
        try:
            await self._answer(scope, receive, _Sender(self, peer, send))
        finally:
            self._connections.end_request(peer)

    async def _answer(
        self, scope: MutableMapping[str, Any], receive: Receive, send: _Sender
    ) -> None:
        try:
            headers = _headers(scope)
            self._check_request(scope, headers)
            if scope["method"] == "POST":
                receive = await self._read_body(headers, receive)
            self._check_login(scope, headers)
            await self._app(scope, receive, send)
        except HttpError as refusal:
            if not send.begun:
                await _refuse(refusal, send)
        except (TimeoutError, OSError):
            self._connections.cut_off(scope.get("client"))  # the client left or stalls
        except Exception as error:
            self._report(error)
            if not send.begun:
                await _refuse(HttpError(500, "internal error; see stderr of the run"), send)
            else:
                self._connections.cut_off(scope.get("client"))

    def count(self, status: int) -> None:
        self.requests[status] = self.requests.get(status, 0) + 1

    def _report(self, error: Exception) -> None:
        """Print only the first error."""
        if not self._reported:
            self._reported = True
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
            self._say(f"error in the page: {redact(text)}")

    def _check_request(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        if scope["method"] not in METHODS:
            raise HttpError(405, "use GET, HEAD or POST", {"allow": ", ".join(METHODS)})
        if len(scope["raw_path"]) + len(scope["query_string"]) > TARGET_BYTES:
            raise HttpError(414, "the address is too long")
        # uvicorn limits the length of headers only if they arrive in pieces.
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES:
            raise HttpError(431, f"the headers may have at most {HEAD_BYTES} bytes")
        if len(headers.get("range", "")) > RANGE_BYTES:
            raise HttpError(400, "the Range header is too long")
        host = headers.get("host", "")
        if not self._is_our_host(host):
            raise HttpError(
                421,
                "unknown Host; use the address that --serve printed, or allow this one with "
                "--page-hosts",
            )
        own = (f"http://{host}".lower(), f"https://{host}".lower())  # a proxy may add TLS
        if headers.get("origin", own[0]).lower() not in own:
            raise HttpError(403, "requests from other sites are refused (Origin)")
        # Other sites may only link to the page.
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            navigates = headers.get("sec-fetch-mode") == "navigate"
            if not (navigates and scope["method"] == "GET" and scope["path"] in ("/", "/login")):
                raise HttpError(403, "requests from other sites are refused (Sec-Fetch-Site)")

    def _is_our_host(self, host: str) -> bool:
        """Return whether Host is a known name, loopback or (with remote access) any IP."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if not name or "@" in host or "/" in host:
            return False
        if name.rstrip(".") in self._binding.names or is_loopback(name):
            return True
        return is_address(name) and not is_loopback(self._binding.host)

    def _check_login(self, scope: MutableMapping[str, Any], headers: Mapping[str, str]) -> None:
        """Raise HttpError if not logged in. Set ``scope["session"]`` to a session id or None."""
        scope["session"] = None
        if not self._access.needed:
            self._connections.mark_known(scope.get("client"))
            return
        session = cookie(headers.get("cookie", ""), COOKIE)
        if session is not None and self._access.has_session(session):
            scope["session"] = session
            self._connections.mark_known(scope.get("client"))
            return
        if scope["path"] in OPEN:
            return
        authorization = headers.get("authorization")
        if authorization is not None:
            word, _, token = authorization.partition(" ")
            if word.lower() == "bearer" and self.is_token(token.strip(), scope):
                return
        if scope["path"] == "/" and scope["method"] != "POST":
            raise HttpError(303, "log in first", {"location": "/login"})
        raise HttpError(
            401, "log in, or send Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"}
        )

    def is_token(self, given: str, scope: Mapping[str, Any]) -> bool:
        """Return whether this is the token. Raises HttpError after too many wrong tokens."""
        client = scope.get("client")
        address = str(client[0]) if client else ""
        wait_s = self._access.wait_s(address)
        if self._access.check_token(given, address):
            self._connections.mark_known(client)
            return True
        if wait_s > 0:
            seconds = str(max(1, round(wait_s)))
            text = f"too many attempts; wait {seconds} s"
            raise HttpError(429, text, {"retry-after": seconds})
        return False

    async def _read_body(self, headers: Mapping[str, str], receive: Receive) -> Receive:
        declared = headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > BODY_BYTES:
            raise HttpError(413, f"request body over {BODY_BYTES} bytes", {"connection": "close"})
        body = b""
        try:
            async with asyncio.timeout(self.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise OSError("the client has disconnected")
                    body += message.get("body", b"")
                    if len(body) > BODY_BYTES:
                        raise HttpError(
                            413, f"request body over {BODY_BYTES} bytes", {"connection": "close"}
                        )
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise HttpError(408, "the body is too slow", {"connection": "close"}) from None
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return replay


class _Sender:
    """Sends a response with ``HEADERS``. Raises TimeoutError if the client stops reading."""

    def __init__(self, gate: Gate, peer: Any, send: Send) -> None:
        self._gate, self._peer, self._send = gate, peer, send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self._gate.count(message["status"])
            headers = list(message.get("headers", ()))
            given = {name.lower() for name, _ in headers}
            headers += [
                (name.encode(), value.encode())
                for name, value in HEADERS.items()
                if name.encode() not in given
            ]
            message = {**message, "headers": headers}
        async with asyncio.timeout(self._gate.stalled_s):
            await self._send(message)


async def _refuse(refusal: HttpError, send: _Sender) -> None:
    body = msgspec.json.encode(ErrorDocument(1, refusal.error))
    headers = {"content-type": "application/json", **refusal.headers}
    headers["content-length"] = str(len(body))
    with suppress(OSError, TimeoutError):
        await send(
            {
                "type": "http.response.start",
                "status": refusal.status,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
        )
        await send({"type": "http.response.body", "body": body})


def _headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return headers by lower-case name. Raises HttpError if a critical one occurs twice."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name in headers and name in ("host", "origin", "authorization", "content-length"):
            raise HttpError(400, f"{name} is given more than once")
        headers[name] = f"{headers[name]}; {value}" if name in headers else value
    return headers


def cookie(header: str, name: str) -> str | None:
    for part in header.split(";"):
        key, equals, value = part.strip().partition("=")
        if equals and key == name:
            return value
    return None
