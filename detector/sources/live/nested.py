"""What a playlist leads to, opened without what belongs to another host.

FFmpeg hands the options of a playlist on to everything that the playlist names: variants, keys,
``EXT-X-MAP``, segments, at whatever host, again at every refresh. So PyAV asks here for each of
these addresses (``io_open``). Its bytes are read by FFmpeg's demuxer ``data``, which gives out what
it gets, with options that are chosen for this one address.

An exception in a callback of PyAV is kept until the next call in this thread, which may be another
container's. So nothing is raised there: what cannot be opened is empty, and ``denied`` says why.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import av

# Options that tell who asks. They go to the host of the camera's own address.
PERSONAL = frozenset(
    ("headers", "cookies", "referer", "post_data", "cert_file", "cert", "key_file", "key")
)
# What may be handed on to each host. (FFmpeg itself forgets those of TLS.)
HANDED_ON = frozenset(
    ("http_proxy", "user_agent", "rw_timeout", "timeout", "icy")
    + ("tls_verify", "verify", "ca_file", "cafile", "verifyhost")
)
# What the demuxer of HLS says of one address: a range of bytes, and the key of a segment.
OF_DEMUXER = frozenset(("offset", "end_offset", "seekable", "key", "iv"))
RAW = {
    "format_whitelist": "data",
    "raw_packet_size": "65536",
    "probesize": "32",
    "analyzeduration": "0",
}
SIGN = b"#EXTM3U"
HEAD_BYTES = 16
# Strict: FFmpeg and Python read strange addresses differently, and what is strange has no origin.
_ORIGIN = re.compile(
    r"(?:crypto[+:])?(?P<scheme>https?)://(?:[!-.0-9:-~]*@)?"
    r"(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?(?:[/?#][!-~]*)?",
    re.IGNORECASE | re.ASCII,
)
_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str, int]


def origin_of(url: str) -> Origin | None:
    """Scheme, host and port; None for an address that may be read in two ways."""
    if (match := _ORIGIN.fullmatch(url)) is None or "\\" in url:
        return None
    scheme = match["scheme"].lower()
    return scheme, match["host"].lower(), int(match["port"] or _PORTS[scheme])


class Bytes:
    """A file that PyAV reads: what lies at an address, or nothing."""

    def __init__(self, container: Any = None) -> None:
        self._container = container
        self._packets = iter(()) if container is None else container.demux()
        self._rest = b""

    def starts_with(self, sign: bytes) -> bool:
        """Looks ahead. Raises FFmpegError where nothing comes."""
        while len(self._rest) < len(sign) and (more := self._next()):
            self._rest += more
        return self._rest.startswith(sign)

    def _next(self) -> bytes:
        return next((bytes(packet) for packet in self._packets if packet.size), b"")

    def read(self, length: int) -> bytes:
        """Some of the next bytes; b"" at the end, also where the connection broke."""
        if not self._rest:
            with contextlib.suppress(av.error.FFmpegError, OSError):
                self._rest = self._next()
        data, self._rest = self._rest[:length], self._rest[length:]
        return data

    def close(self) -> None:
        if self._container is not None:
            self._container.close()


class NestedOpener:
    """PyAV's ``io_open`` for the playlist ``address``: call it with an address, flags of FFmpeg,
    and the options of its demuxer.

    ``options``: of the whole camera. ``denied``: the host, not the camera's own, that refused to
    let us in; None for none.
    """

    def __init__(self, address: str, options: Mapping[str, str], timeout_s: float) -> None:
        self._address, self._options, self._timeout_s = address, options, timeout_s
        self._own = origin_of(address)
        self._first: Bytes | None = None
        self.denied: str | None = None

    def open_first(self) -> Bytes:
        """The address itself, which is then given out for the first call. Raises FFmpegError."""
        self._first = self._open(self._address, self._options)
        return self._first

    def __call__(self, url: str, flags: int, options: Mapping[str, str]) -> Bytes:
        first, self._first = self._first, None
        if first is not None and url == self._address:
            return first
        chosen = self.options_for(url, options)
        try:
            return self._open(url, chosen)
        except (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError):
            if not self._is_own(url):
                origin = origin_of(url)
                self.denied = "another host" if origin is None else f"{origin[1]}:{origin[2]}"
        except (av.error.FFmpegError, OSError, ValueError):
            pass  # FFmpeg goes on with the next segment, as without us
        return Bytes()

    def options_for(self, url: str, options: Mapping[str, str]) -> dict[str, str]:
        """What FFmpeg is given for ``url``. ``options``: of the demuxer that asks for it."""
        allowed = HANDED_ON | PERSONAL if self._is_own(url) else HANDED_ON
        return {
            "protocol_whitelist": self._options["protocol_whitelist"],
            **{name: self._options[name] for name in allowed & self._options.keys()},
            **({"max_redirects": "0"} if self._is_own(url) else {}),
            **{name: options[name] for name in OF_DEMUXER & options.keys()},
        }

    def _is_own(self, url: str) -> bool:
        return url == self._address or (self._own is not None and origin_of(url) == self._own)

    def _open(self, url: str, options: Mapping[str, str]) -> Bytes:
        limits = (self._timeout_s, self._timeout_s)
        return Bytes(av.open(url, format="data", options={**options, **RAW}, timeout=limits))
