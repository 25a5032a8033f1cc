"""Open the files that a playlist refers to, without sending one host's secrets to another host.

By itself, FFmpeg uses a playlist's options for every file that the playlist names (variants, keys,
``EXT-X-MAP``, segments), on any host, at every refresh. So we give PyAV a ``NestedOpener`` as
``io_open``, which PyAV calls for each of these addresses. The opener chooses options for the
address, and reads the bytes with FFmpeg's demuxer ``data``.

If ``io_open`` fails, PyAV raises the exception only in this thread's next call, which may be for
another container. So our ``io_open`` never fails: it returns an empty file instead. ``denied``,
``failure`` and ``given_up`` report why.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import av

from detector.core.errors import SourceError
from detector.core.errors.secrets import redact
from detector.core.sources._network.options import DEMUXER_OPTIONS, PERSONAL, SHARED

RAW = {
    "format_whitelist": "data",
    "raw_packet_size": "65536",
    "probesize": "32",
    "analyzeduration": "0",
}
SIGNATURE = b"#EXTM3U"
NAMES = (".m3u8", ".m3u")
RESOLVE_TIMEOUT_S = 5.0
# We give up after this many missing segments in a row. At 6 s per segment, that is ten minutes
# without a connection.
MOST_MISSING = 100
LONGEST_KEY = 16  # bytes; a file this short may be a key, which does not prove that segments arrive
# FFmpeg and Python parse unusual addresses differently, so the pattern matches none of these.
_ORIGIN = re.compile(
    r"(?:crypto[+:])?(?P<scheme>https?)://(?:[!$-.0->@-~]*@)?"
    r"(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?(?:[/?#][!-~]*)?",
    re.IGNORECASE | re.ASCII,
)
_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str, int]


def origin_of(url: str) -> Origin | None:
    """Return scheme, host and port; None for an ambiguous address."""
    if (match := _ORIGIN.fullmatch(url)) is None or "\\" in url:
        return None
    scheme = match["scheme"].lower()
    return scheme, match["host"].lower(), int(match["port"] or _PORTS[scheme])


def is_named_playlist(url: str) -> bool:
    return urlsplit(url).path.lower().endswith(NAMES)


def is_redirect(error: BaseException) -> bool:
    """Return whether a redirect may have caused the error (``max_redirects`` is 0)."""
    return getattr(error, "errno", None) == errno.EIO


def resolve(url: str) -> tuple[str, dict[str, str]]:
    """Follow the redirects of a playlist. Return its final address, with the login, and an option
    with its cookies."""
    from detector.core.sources._web import WebPlace, ask

    place = WebPlace(url)
    try:
        with contextlib.closing(ask(place, timeout_s=RESOLVE_TIMEOUT_S)) as answer:
            cookies = answer.headers.get_all("Set-Cookie")
            options = {"cookies": "\n".join(cookies)} if cookies else {}
            return place.link_to(answer.url).whole, options
    except (OSError, ValueError, SourceError):
        return url, {}


class NestedFile:
    """A file for PyAV with the bytes at an address. In playlists, non-ASCII bytes become %XX."""

    def __init__(self, container: Any, note_arrival: Callable[[bool], None]) -> None:
        """``note_arrival``: called when the first bytes arrive, with True for a segment."""
        self._container, self._note_arrival = container, note_arrival
        self._packets = container.demux()
        self._rest = b""
        self._is_list: bool | None = None

    def is_playlist(self) -> bool:
        """Read ahead to see whether it is a playlist. Raises FFmpegError if nothing arrives."""
        if self._is_list is None:
            while len(self._rest) < len(SIGNATURE) and (more := self._next()):
                self._rest += more
            self._is_list = self._rest.startswith(SIGNATURE)
            if self._rest:
                self._note_arrival(not self._is_list and len(self._rest) > LONGEST_KEY)
            self._rest = self._escape(self._rest)
        return self._is_list

    def _next(self) -> bytes:
        return next((bytes(packet) for packet in self._packets if packet.size), b"")

    def _escape(self, data: bytes) -> bytes:
        if not self._is_list or data.isascii():
            return data
        return b"".join(b"%%%02X" % byte if byte > 127 else bytes((byte,)) for byte in data)

    def read(self, length: int) -> bytes:
        """Return some of the next bytes; b"" at the end, or if the connection broke."""
        with contextlib.suppress(av.error.FFmpegError, OSError):
            self.is_playlist()
            self._rest = self._rest or self._escape(self._next())
        data, self._rest = self._rest[:length], self._rest[length:]
        return data

    def close(self) -> None:
        self._container.close()


class NestedOpener:
    """A callback for PyAV's ``io_open`` to read the playlist ``address``. PyAV calls it with an
    address, FFmpeg's flags and the demuxer's options.

    ``options``: options for the camera. ``follows``: whether ``resolve`` may follow redirects on
    the camera's host; False if an option is set that ``resolve`` does not send. ``denied``: another
    host that denied access, or None. ``failure``: the last request's error, or None. ``given_up``:
    why no more segments are requested, or "".
    """

    def __init__(
        self, address: str, options: Mapping[str, str], timeout_s: float, follows: bool = False
    ) -> None:
        self._address, self._options, self._timeout_s = address, options, timeout_s
        self._own, self._follows = origin_of(address), follows
        self._first: NestedFile | None = None
        self._containers: list[Any] = []
        self.denied: str | None = None
        self.failure: Exception | None = None
        self._is_secret = "@" in urlsplit(address).netloc or not PERSONAL.isdisjoint(options)
        self._missing, self.given_up = 0, ""

    def keep(self, container: Any) -> Any:
        """Keep a container open, as Python could free its files before the container (PyAV 18)."""
        self._containers.append(container)
        return container

    def __del__(self) -> None:
        for container in self._containers:
            container.close()

    def open_first(self) -> NestedFile:
        """Open the playlist, which the first call will return. Raises FFmpegError."""
        self._first = self._open(self._address, self._options)
        return self._first

    def __call__(self, url: str, flags: int, options: Mapping[str, str]) -> NestedFile | BytesIO:
        first, self._first = self._first, None
        if first is not None and url == self._address:
            return first
        if self._missing >= MOST_MISSING and not self.given_up:
            why = getattr(self.failure, "strerror", None) or "they are empty"
            self.given_up = redact(
                f"{self._missing} segments in a row did not come ({why}); check their server"
            )
        if self.given_up:
            return BytesIO()  # FFmpeg then goes quickly through the rest of the list
        self._missing += 1  # ``_note_arrival`` resets it
        try:
            return self._open(url, self.options_for(url, options))
        except (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError) as error:
            self.failure = error
            if not self._is_own(url):
                origin = origin_of(url)
                self.denied = "another host" if origin is None else f"{origin[1]}:{origin[2]}"
        except (av.error.FFmpegError, OSError, ValueError) as error:
            self.failure = error
            if self._follows and is_redirect(error) and self._is_own(url):
                return self._follow(url, options)
        return BytesIO()  # FFmpeg continues with the next segment

    def _note_arrival(self, is_segment: bool) -> None:
        self._missing, self.failure = 0 if is_segment else max(0, self._missing - 1), None

    def _follow(self, url: str, options: Mapping[str, str]) -> NestedFile | BytesIO:
        plain = re.sub(r"^crypto[+:]", "", url)
        target, _ = resolve(plain)
        with contextlib.suppress(av.error.FFmpegError, OSError, ValueError):
            target = url.removesuffix(plain) + target
            return self._open(target, self.options_for(target, options))
        return BytesIO()

    def options_for(self, url: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return FFmpeg's options for ``url``. ``options``: set for ``url`` by the demuxer."""
        is_own = self._is_own(url)
        personal = PERSONAL & self._options.keys() if is_own else frozenset()
        return {
            "protocol_whitelist": self._options["protocol_whitelist"],
            **{name: self._options[name] for name in SHARED & self._options.keys()},
            **{name: self._options[name] for name in personal},
            # A redirect would send the personal options to its target.
            **({"max_redirects": "0"} if is_own and self._is_secret else {}),
            **{name: options[name] for name in DEMUXER_OPTIONS & options.keys()},
        }

    def _is_own(self, url: str) -> bool:
        return url == self._address or (self._own is not None and origin_of(url) == self._own)

    def _open(self, url: str, options: Mapping[str, str]) -> NestedFile:
        limits = (self._timeout_s, self._timeout_s)
        container = av.open(url, format="data", options={**options, **RAW}, timeout=limits)
        return NestedFile(container, self._note_arrival)
