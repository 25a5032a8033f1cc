"""Answers of web servers, by urllib3. What it leaves to its user is here: who may hear a login,
where a redirect may lead, how long a head may take, and what its errors mean."""

from __future__ import annotations

import base64
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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

from detector.core.errors.secrets import Address

MOST_REDIRECTS = 10
MOST_READS = 3  # the head of an answer may take as long as so many reads that are silent
LARGEST = 2**63 - 1  # bytes: what FFmpeg takes for a position
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)", re.ASCII)
_LENGTH = re.compile(r"\d{1,20}", re.ASCII)
# In an address, as it is sent: a letter outside of ASCII, or a space, becomes %XX.
_AS_SENT = "".join(chr(code) for code in range(33, 127))

Login = tuple[str, str]
HEADERS = {
    "User-Agent": "detect-video",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Connection": "close",
}


class How(TypedDict, total=False):
    timeout_s: Required[float]
    login: Login | None
    checked: bool


@contextmanager
def plain_errors() -> Iterator[None]:
    """What urllib3 raises in the block becomes an OSError, a ConnectionError or a ValueError."""
    try:
        yield
    except LibraryError as error:
        reason: BaseException = error
        while isinstance(reason, LibraryError):
            given = [each for each in reason.args if isinstance(each, Exception)]
            found = reason.__cause__ or next(iter(given), None)
            if found is None:
                break
            reason = found
        if isinstance(reason, OSError | ValueError):
            raise reason from None
        raise ConnectionError(str(reason)) from reason


class Answer:
    """``size``: bytes of the whole file, if told. ``ranges``: whether parts can be asked for."""

    def __init__(
        self, response: BaseHTTPResponse, start: int, size: int | None, ranges: bool
    ) -> None:
        self._response, self.start, self.size, self.ranges = response, start, size, ranges
        self.headers = response.headers
        self.url = response.url or ""  # after redirects
        stated = self.headers.get("Content-Type") or "of no stated type"
        self.kind: str = stated.partition(";")[0].strip().lower()
        self.head = b""  # what was read of it, where somebody keeps that
        self.tag: str = self.headers.get("ETag") or ""

    def told(self) -> set[str]:
        """The names of its headers."""
        return {name.lower() for name in self.headers}

    def read(self, length: int) -> bytes:
        """Some of the next bytes; b"" at the end. Raises OSError."""
        with plain_errors():
            return self._response.read1(length) or b""

    def cut(self) -> None:
        """Ends a read that waits, in another thread."""
        with suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def close(self) -> None:
        with suppress(OSError):
            self._response.close()


def open_from(url: str, start: int, **how: Unpack[How]) -> Answer:
    """Asks for a file from byte ``start`` on. Raises as ``open_url``."""
    try:
        response = open_url(url, {"Range": f"bytes={start}-"}, **how)
    except HTTPError as error:
        if error.code != 416:
            raise
        # The file has fewer bytes, or none; or its server takes a range for a mistake.
        response = open_url(url, {}, **how)
    try:
        return _read_head(response, start)
    except BaseException:
        response.close()
        raise


def _read_head(response: BaseHTTPResponse, start: int) -> Answer:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        if start and response.status == 206:
            raise ConnectionError("the server encodes a part of a file; it has to send it as it is")
        return Answer(response, 0, None, False)  # lengths and ranges are of the encoded bytes
    length = _length(response)
    where = response.headers.get("Content-Range", "")
    if response.status == 206 and (ranged := _RANGE.fullmatch(where)) is not None:
        size = None if ranged[2] == "*" else int(ranged[2][:20])  # more than LARGEST, or all of it
        if size is not None and size > LARGEST:
            raise ConnectionError(f"the server states a Content-Range that is none: {where[:60]}")
        if ranged[1].lstrip("0") != str(start or ""):
            raise ConnectionError(f"the server sent bytes from {ranged[1]} on, not from {start}")
        return Answer(response, start, size, True)
    ranges = response.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
    return Answer(response, 0, length, ranges and length is not None)


def _length(response: BaseHTTPResponse) -> int | None:
    """None where none is stated, and for what cameras state that never end: 2**64 - 1."""
    stated = set(response.headers.getlist("Content-Length"))  # urllib3 refuses two that differ
    if not stated or response.chunked:
        return None
    (text,) = stated
    if _LENGTH.fullmatch(text) is None or int(text) >= 2**64:
        raise ConnectionError(f"the server states a Content-Length that is none: {text[:40]}")
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
    """The answer behind redirects; its ``url`` is where they led. ``login`` is told to scheme, host
    and port of ``url`` alone, once they ask for it. ``checked``: False trusts every certificate.

    Raises urllib's HTTPError for a refusal, and as ``plain_errors``.
    """
    headers = {**HEADERS, **headers}
    url = address_to_send(url)
    own = urllib3.connection_from_url(url)
    for _ in range(MOST_REDIRECTS + 1):
        answer = _send(url, headers, timeout_s, checked)
        if answer.status == 401 and login is not None and own.is_same_host(url):
            answer.close()
            told = _authorize(url, login, answer.headers.getlist("WWW-Authenticate"))
            answer = _send(url, {**headers, **told}, timeout_s, checked)
        if not (target := answer.get_redirect_location()):
            break
        answer.close()
        url = urljoin(url, target)
        Address(url)  # registers what is secret in it, such as a signature
        if not url.lower().startswith(("http://", "https://")):
            raise _refusal(url, answer, f" - Redirection to url '{url}' is not allowed")
        url = address_to_send(url)
    else:
        raise _refusal(url, answer, f": more than {MOST_REDIRECTS} redirects")
    if not 200 <= answer.status < 300:
        answer.close()
        raise _refusal(url, answer)
    answer.url = url
    return answer


def address_to_send(whole: str) -> str:
    """Without a login, and in ASCII."""
    scheme, _, rest = whole.partition("://")
    place, slash, path = rest.partition("/")
    if not slash and (cut := re.search(r"[?#]", place)):
        place, path = place[: cut.start()], place[cut.start() :]
    host = place.rpartition("@")[2]
    host = host if host.isascii() else host.encode("idna").decode()
    return f"{scheme.lower()}://{host}/{quote(path.partition('#')[0], safe=_AS_SENT)}"


def _refusal(url: str, answer: BaseHTTPResponse, more: str = "") -> HTTPError:
    return HTTPError(url, answer.status, f"{answer.reason}{more}", answer.headers, None)  # type: ignore[arg-type]


def _send(url: str, headers: dict[str, str], timeout_s: float, checked: bool) -> BaseHTTPResponse:
    """One answer of the server, or of the proxy that the environment names for it."""
    parts = parse_url(url)
    how: dict[str, Any] = {"timeout": timeout_s, "retries": False}
    if parts.scheme == "https":
        how["ssl_context"] = context = ssl.create_default_context()
        if not checked:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    pools = urllib3.PoolManager(**how)
    proxy = getproxies().get(parts.scheme or "")
    if proxy and not proxy_bypass(parts.netloc or ""):
        scheme, _, place = proxy.rpartition("://")
        info, _, place = place.rpartition("@")
        told = {"Proxy-Authorization": _basic(*_login_in(info))} if info else {}
        pools = urllib3.ProxyManager(f"{scheme or 'http'}://{place}", proxy_headers=told, **how)
    pool = pools.connection_from_url(url)
    pool.ConnectionCls = _Timely if pool.scheme == "http" else _TimelyTls
    return pools.urlopen(
        "GET",
        url,
        headers=headers,
        redirect=False,
        preload_content=False,
        enforce_content_length=False,  # we count, and ask again from where it ended
    )


def _login_in(info: str) -> Login:
    user, _, password = info.partition(":")
    return unquote(user), unquote(password)


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _authorize(url: str, login: Login, challenges: Sequence[str]) -> dict[str, str]:
    """The header that answers one of a server's challenges, Digest before Basic."""
    kinds = {kind.lower(): rest for kind, _, rest in (text.partition(" ") for text in challenges)}
    if "digest" in kinds:
        passwords = HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, url, *login)
        challenge = parse_keqv_list(list(filter(None, parse_http_list(kinds["digest"]))))
        answer = AbstractDigestAuthHandler(passwords).get_authorization(Request(url), challenge)
        return {"Authorization": f"Digest {answer}"}
    return {"Authorization": _basic(*login)} if "basic" in kinds else {}


class _Timely(HTTPConnection):
    """Gives up an answer whose head does not end: a read's time begins anew with each byte."""

    def getresponse(self) -> Any:
        late, limit_s = threading.Event(), MOST_READS * (self.timeout or 0)
        alarm = threading.Timer(limit_s, self._hang_up, (late,))
        alarm.daemon = True
        alarm.start()
        try:
            return super().getresponse()
        finally:
            alarm.cancel()
            if late.is_set():  # a head that is cut off looks like one that has ended
                raise TimeoutError(f"the head of its answer took more than {limit_s:g} s")

    def _hang_up(self, late: threading.Event) -> None:
        late.set()
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class _TimelyTls(_Timely, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        self.is_verified = True  # or urllib3 warns of each that is unchecked on purpose
