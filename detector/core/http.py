"""HTTP requests with urllib3.

This module decides what urllib3 leaves to its caller: which hosts receive a login, where a redirect
may lead, how long the headers may take, and what errors mean.
"""

from __future__ import annotations

import base64
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any, Required, TypedDict, Unpack
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urljoin
from urllib.request import (
    AbstractDigestAuthHandler,
    HTTPPasswordMgrWithDefaultRealm,
    Request,
    getproxies,
    parse_http_list,
    parse_keqv_list,
    proxy_bypass,
)

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError as LibraryError
from urllib3.response import BaseHTTPResponse
from urllib3.util import parse_url

from detector.core.errors.addresses import Address

MOST_REDIRECTS = 10
MOST_READS = 3  # all headers together must arrive within this many read timeouts
LARGEST = 2**63 - 1  # bytes: the largest position that FFmpeg accepts
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)", re.ASCII)
_LENGTH = re.compile(r"\d{1,20}", re.ASCII)
# Characters that stay unchanged in an address; spaces and non-ASCII letters become %XX.
_AS_SENT = "".join(chr(code) for code in range(33, 127))

Login = tuple[str, str]
HEADERS = {
    "User-Agent": "detect-video",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Connection": "close",
}


class RequestOptions(TypedDict, total=False):
    timeout_s: Required[float]
    login: Login | None
    checked: bool


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn urllib3's errors in the block into OSError, ConnectionError or ValueError."""
    try:
        yield
    except LibraryError as error:
        reason: BaseException = error
        while isinstance(reason, LibraryError):
            nested = (each for each in reason.args if isinstance(each, Exception))
            cause = reason.__cause__ or next(nested, None)
            if cause is None:
                break
            reason = cause
        if isinstance(reason, OSError | ValueError):
            raise reason from None
        raise ConnectionError(str(reason)) from reason


class Answer:
    """A response that contains a file or part of one. ``size``: bytes of the whole file, if known.
    ``ranges``: whether parts can be requested."""

    def __init__(
        self, response: BaseHTTPResponse, start: int, size: int | None, ranges: bool
    ) -> None:
        self._response, self.start, self.size, self.ranges = response, start, size, ranges
        self.headers = response.headers
        self.url = response.url or ""  # after redirects
        stated = self.headers.get("Content-Type") or "of no stated type"
        self.kind: str = stated.partition(";")[0].strip().lower()
        self.head = b""  # the first bytes, if the caller stores them here
        self.tag: str = self.headers.get("ETag") or ""

    def read(self, length: int) -> bytes:
        """Return at most ``length`` of the next bytes; b"" at the end. Raises OSError."""
        with plain_errors():
            return self._response.read1(length) or b""

    def cut(self) -> None:
        """Abort a read that blocks another thread."""
        with suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def close(self) -> None:
        with suppress(OSError):
            self._response.close()


def open_from(url: str, start: int, **how: Unpack[RequestOptions]) -> Answer:
    """Request a file from byte ``start`` on. Raises what ``open_url`` raises."""
    try:
        response = open_url(url, {"Range": f"bytes={start}-"}, **how)
    except HTTPError as error:
        if error.code != 416:
            raise
        # The file is shorter than ``start``, or the server rejects ranges.
        response = open_url(url, {}, **how)
    try:
        return _read_head(response, start)
    except BaseException:
        response.close()
        raise


def _read_head(response: BaseHTTPResponse, start: int) -> Answer:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        if start and response.status == 206:
            raise ConnectionError(
                "the server compressed a part of a file; it must send parts as stored"
            )
        return Answer(response, 0, None, False)  # the stated lengths count compressed bytes
    length = _read_length(response)
    stated = response.headers.get("Content-Range", "")
    if response.status == 206 and (match := _RANGE.fullmatch(stated)) is not None:
        # 20 digits are enough to recognize a size above LARGEST
        size = None if match[2] == "*" else int(match[2][:20])
        if size is not None and size > LARGEST:
            raise ConnectionError(f"the server sent an invalid Content-Range: {stated[:60]}")
        if match[1].lstrip("0") != str(start or ""):
            raise ConnectionError(f"the server sent bytes from {match[1]} on, not from {start}")
        return Answer(response, start, size, True)
    ranges = response.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
    return Answer(response, 0, length, ranges and length is not None)


def _read_length(response: BaseHTTPResponse) -> int | None:
    """Return the stated length; None if it is absent or above LARGEST (an endless stream)."""
    # at most one value: urllib3 rejects responses with two different ones
    stated = set(response.headers.getlist("Content-Length"))
    if not stated or response.chunked:
        return None
    (text,) = stated
    if _LENGTH.fullmatch(text) is None or int(text) >= 2**64:
        raise ConnectionError(f"the server sent an invalid Content-Length: {text[:40]}")
    return int(text) if int(text) <= LARGEST else None


@plain_errors()
def open_url(
    url: str,
    headers: dict[str, str],
    *,
    timeout_s: float,
    login: Login | None = None,
    checked: bool = True,
) -> BaseHTTPResponse:
    """Return the response after redirects; its ``url`` is the final address. ``login`` is sent only
    to a server that asks for it and has the scheme, host and port of ``url``. ``checked=False``
    accepts every certificate. Raises HTTPError unless the status is 2xx; see ``plain_errors``."""
    headers = {**HEADERS, **headers}
    url = address_to_send(url)
    origin = urllib3.connection_from_url(url)
    for _ in range(MOST_REDIRECTS + 1):
        answer = _send(url, headers, timeout_s, checked)
        if answer.status == 401 and login is not None and origin.is_same_host(url):
            answer.close()
            credentials = _authorize(url, login, answer.headers.getlist("WWW-Authenticate"))
            answer = _send(url, {**headers, **credentials}, timeout_s, checked)
        if not (target := answer.get_redirect_location()):
            break
        answer.close()
        url = urljoin(url, target)
        Address(url)  # registers secrets in it, such as a signature
        if not url.lower().startswith(("http://", "https://")):
            raise _make_error(url, answer, f" - Redirection to url '{url}' is not allowed")
        url = address_to_send(url)
    else:
        raise _make_error(url, answer, f": more than {MOST_REDIRECTS} redirects")
    if not 200 <= answer.status < 300:
        answer.close()
        raise _make_error(url, answer)
    answer.url = url
    return answer


def address_to_send(address: str) -> str:
    """Return the address to put into a request: without a login, in ASCII."""
    scheme, _, rest = address.partition("://")
    authority, slash, path = rest.partition("/")
    if not slash and (query := re.search(r"[?#]", authority)):
        authority, path = authority[: query.start()], authority[query.start() :]
    host = authority.rpartition("@")[2]
    host = host if host.isascii() else host.encode("idna").decode()
    return f"{scheme.lower()}://{host}/{quote(path.partition('#')[0], safe=_AS_SENT)}"


def _make_error(url: str, answer: BaseHTTPResponse, more: str = "") -> HTTPError:
    error = HTTPError(url, answer.status, f"{answer.reason}{more}", answer.headers, BytesIO())  # type: ignore[arg-type]
    error.close()  # otherwise Python 3.14 warns that it was not closed
    return error


def _send(url: str, headers: dict[str, str], timeout_s: float, checked: bool) -> BaseHTTPResponse:
    """Send one request, through the proxy that the environment names for ``url``, if any."""
    parts = parse_url(url)
    options: dict[str, Any] = {"timeout": timeout_s, "retries": False}
    if parts.scheme == "https":
        options["ssl_context"] = context = ssl.create_default_context()
        if not checked:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    pools = urllib3.PoolManager(**options)
    proxy = getproxies().get(parts.scheme or "")
    if proxy and not proxy_bypass(parts.netloc or ""):
        scheme, _, authority = proxy.rpartition("://")
        info, _, host = authority.rpartition("@")
        user, _, password = info.partition(":")
        login = unquote(user), unquote(password)
        sent = {"Proxy-Authorization": _encode_basic(*login)} if info else {}
        pools = urllib3.ProxyManager(f"{scheme or 'http'}://{host}", proxy_headers=sent, **options)
    pool = pools.connection_from_url(url)
    pool.ConnectionCls = _TimeLimited if pool.scheme == "http" else _TimeLimitedTls
    return pools.urlopen(
        "GET",
        url,
        headers=headers,
        redirect=False,
        preload_content=False,
        # a short response is no error: the caller requests the rest
        enforce_content_length=False,
    )


def _encode_basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _authorize(url: str, login: Login, challenges: Sequence[str]) -> dict[str, str]:
    """Return the header that answers one of the server's challenges; prefer Digest to Basic."""
    kinds = {kind.lower(): rest for kind, _, rest in (text.partition(" ") for text in challenges)}
    if "digest" in kinds:
        passwords = HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, url, *login)
        challenge = parse_keqv_list(list(filter(None, parse_http_list(kinds["digest"]))))
        answer = AbstractDigestAuthHandler(passwords).get_authorization(Request(url), challenge)
        return {"Authorization": f"Digest {answer}"}
    return {"Authorization": _encode_basic(*login)} if "basic" in kinds else {}


class _TimeLimited(HTTPConnection):
    """Limits the time for all headers together. (A read timeout restarts at each byte.)"""

    def getresponse(self) -> Any:
        late, limit_s = threading.Event(), MOST_READS * (self.timeout or 0)
        timer = threading.Timer(limit_s, self._hang_up, (late,))
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if late.is_set():  # otherwise the headers received so far would look complete
                raise TimeoutError(f"the response headers took more than {limit_s:g} s")

    def _hang_up(self, late: threading.Event) -> None:
        late.set()
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class _TimeLimitedTls(_TimeLimited, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        # otherwise urllib3 warns about certificates that we deliberately do not check
        self.is_verified = True
