"""Sends each event as an HTTP POST with JSON, signed if a key is given.

The signature works like GitHub's and Stripe's: HMAC-SHA256 of the time of sending, a dot, and the
body. The time lets a receiver detect replayed messages.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from detector.core.errors import UsageError
from detector.core.errors.addresses import Address
from detector.core.errors.reading import read_text
from detector.core.errors.secrets import keep_secret, redact
from detector.live.base import Event
from detector.live.events.queued_target import QueuedTarget, RefusedError, TryAgainError, explain
from detector.live.events.request_template import Template, read_template
from detector.live.events.wording import as_json

DEADLINE_S = 5.0  # limit for the whole request, even if the receiver sends a few bytes at a time
RETRIED = (408, 425, 429)  # after these statuses and 5xx, the request is repeated
SIGNATURE, SENT = "X-Detect-Video-Signature", "X-Detect-Video-Time"


def find_address(option: str, environment: Mapping[str, str] = os.environ) -> str | Template:
    """Return the address or request of --webhook. ``@FILE`` and ``env:NAME`` say where the address
    is, to keep it out of process lists; ``@FILE.yaml`` holds a request. Raises UsageError."""
    if option.startswith("@") and option.lower().endswith((".yaml", ".yml")):
        return read_template(option[1:], environment)
    if option.startswith("@"):
        address = read_text(
            option[1:], "the address of a webhook", cure="check the path after --webhook @"
        ).strip()
        empty = f"--webhook {option}: the file is empty; write https://HOST/PATH into it"
    elif option.startswith("env:"):
        address = environment.get(option.removeprefix("env:"), "").strip()
        empty = f"--webhook {option}: this environment variable is not set; set it"
    else:
        return option
    if not address:
        raise UsageError(empty)
    Address(address, hide_path=True)
    return address


class Webhook(QueuedTarget):
    """Posts events. Follows no redirects, because they may lead to another receiver."""

    name = "webhook"

    def __init__(
        self,
        url: str | Template,
        key: str | None = None,
        *,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Raise UsageError if the address is not http or https."""
        self._template = url if isinstance(url, Template) else None
        url = url.url if isinstance(url, Template) else url
        self._address = Address(url, hide_path=True)
        self._key = None if key is None else key.encode()
        if key:
            keep_secret(key)

        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
            # For characters outside ASCII, http.client would raise its own error.
            url.encode("ascii")
        except ValueError as error:
            raise UsageError(
                f"--webhook: not an address ({redact(str(error))}); write "
                "https://HOST/PATH in ASCII, with %XX for other characters"
            ) from error
        if parts.scheme not in ("http", "https") or not self._host or "{" in parts.netloc:
            raise UsageError(
                f"--webhook {self._address}: only http and https addresses are supported; write "
                "https://HOST/PATH"
            )
        if any(ord(sign) <= 32 for sign in url):
            raise UsageError("--webhook: a space or control character in the address; write %20")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._login = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._login = base64.b64encode(pair.encode()).decode()
        super().__init__(notice=notice)

    def _headers(self, body: bytes) -> dict[str, str | bytes]:
        headers: dict[str, str | bytes] = {
            "Content-Type": "application/json",
            "User-Agent": "detect-video",
        }
        if self._login is not None:
            headers["Authorization"] = f"Basic {self._login}"
        if self._key is not None:
            sent = str(int(time.time()))
            digest = hmac.new(self._key, sent.encode() + b"." + body, hashlib.sha256).hexdigest()
            headers |= {SENT: sent, SIGNATURE: f"sha256={digest}"}
        return headers

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=DEADLINE_S)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=DEADLINE_S, context=self._tls
        )

    def deliver(self, event: Event) -> None:
        target, body = self._target, as_json(event).encode()
        own: dict[str, str | bytes] = {}
        if self._template is not None:
            target, own, body = self._template.fill(target, event)
        connection = self._connect()
        # A socket's timeout restarts with every byte, so a timer limits the whole request.
        late = threading.Event()
        alarm = threading.Timer(DEADLINE_S, _hang_up, (connection, late))
        alarm.daemon = True
        alarm.start()
        try:
            connection.request("POST", target, body, self._headers(body) | own)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            if late.is_set():
                raise TryAgainError(f"no response within {DEADLINE_S:g} s") from error
            raise TryAgainError(explain(error)) from error
        finally:
            alarm.cancel()
            connection.close()
        if status in RETRIED or status >= 500:
            raise TryAgainError(f"the server returned {status}")
        if 300 <= status < 400:
            raise RefusedError(f"the server returned {status}, a redirect, which we do not follow")
        if status >= 400:
            raise RefusedError(f"the server returned {status}")


def _hang_up(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    late.set()
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
