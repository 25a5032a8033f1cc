"""Options to open each kind of address, and which protocols may be opened from it: no file, no
``concat:``, no ``data:``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from detector.core.errors import SourceError
from detector.core.sources._addresses import STORES

# Never use fflags=nobuffer: it discards what was read meanwhile, which is the first key frame.
FAST = {"probesize": "32", "analyzeduration": "0"}
# For streams that do not announce their content: a second, or half a megabyte.
SHORT = {"probesize": "500000", "analyzeduration": "1000000"}
# FFmpeg's defaults, after that failed
SOUND = {"probesize": "5000000", "analyzeduration": "5000000"}

HTTP = "http,https,httpproxy,tcp,tls,crypto"
# Formats that we accept from the network. No sdp, concat, image2, lavfi...
FORMATS = "mpjpeg,mjpeg,jpeg_pipe,hls,mpegts,flv,live_flv,mov,matroska,webm,h264,hevc,mp3,aac,ogg"


@dataclass(frozen=True, slots=True)
class FFmpegOptions:
    protocols: str
    formats: str = ""
    options: dict[str, str] = field(default_factory=dict)
    probing: dict[str, str] = field(default_factory=lambda: SHORT)


RTSP = FFmpegOptions(
    "rtsp,rtsps,rtp,rtcp,srtp,udp,tcp,tls,http,https",
    "rtsp,rtp,sdp",
    # TCP first: lost UDP packets damage pictures, often without any sign.
    {"rtsp_flags": "prefer_tcp"},
    FAST,
)
RTMP = FFmpegOptions("rtmp,rtmps,rtmpt,rtmpts,rtmpe,rtmpte,tcp,tls,http,https", "flv,live_flv")
OPENINGS = {
    "rtsp": RTSP,
    "rtsps": RTSP,
    "http": FFmpegOptions(HTTP, FORMATS, {"http_persistent": "0"}),
    "https": FFmpegOptions(HTTP, FORMATS, {"http_persistent": "0"}),
    # The system's buffer, in bytes, and FFmpeg's, in packets of 188 bytes. A burst beyond them is a
    # loss, but does not end the stream.
    "udp": FFmpegOptions(
        "udp", "mpegts", {"overrun_nonfatal": "1", "fifo_size": "50000", "buffer_size": "1048576"}
    ),
    "tcp": FFmpegOptions("tcp", FORMATS),
    "rtmp": RTMP,
    "rtmps": RTMP,
}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def scheme_of(spec: str) -> str | None:
    """Return the scheme of an address, in lower case; None if ``spec`` is not an address."""
    match = _SCHEME.match(spec)
    return match[1].lower() if match else None


def opening_of(spec: str) -> FFmpegOptions:
    """Return how to open an address. Raises SourceError with a remedy if it cannot be read here."""
    scheme = scheme_of(spec)
    if scheme == "srt":
        raise SourceError(
            "SRT cannot be read: FFmpeg in PyAV's package is built without it; convert it to "
            "another stream (ffmpeg -i srt://... -c copy -f mpegts udp://127.0.0.1:P)"
        )
    if scheme in STORES:
        raise SourceError(f"only batch reads {scheme}://; use: detect-video batch ADDRESS -o OUT")
    if scheme not in OPENINGS:
        raise SourceError(
            f"{scheme}:// is not a supported kind of stream; use one of "
            f"{', '.join(sorted(OPENINGS))}"
        )
    check_host(spec)
    return OPENINGS[scheme]


def check_host(spec: str) -> None:
    try:
        parts = urlsplit(spec)
        parts.port  # noqa: B018  it raises ValueError where it is no number
    except ValueError as error:
        raise SourceError(f"the address is not valid: {error}; check host and port") from error
    if not parts.hostname and parts.scheme != "udp":
        raise SourceError("the address has no host; write it like rtsp://HOST/PATH")
