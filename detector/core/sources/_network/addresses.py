"""FFmpeg's options for each kind of address, and the protocols that a stream may refer to. A stream
must never open a file, ``concat:`` or ``data:``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from detector.core.errors import SourceError
from detector.core.errors.addresses import Address
from detector.core.errors.secrets import HIDDEN
from detector.core.sources._addresses import STORES

# Never use fflags=nobuffer: it discards what probing has read, and with that the first key frame.
FAST = {"probesize": "32", "analyzeduration": "0"}
# For streams without a header: probe at most a second or half a megabyte.
SHORT = {"probesize": "500000", "analyzeduration": "1000000"}
# FFmpeg's defaults, used if probing with less fails
THOROUGH = {"probesize": "5000000", "analyzeduration": "5000000"}

HTTP = "http,https,httpproxy,tcp,tls,crypto"
# Formats that we accept from the network. sdp, concat, image2, lavfi... could open other files.
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
    # TCP first: lost UDP packets damage pictures, often without an error.
    {"rtsp_flags": "prefer_tcp"},
    FAST,
)
RTMP = FFmpegOptions("rtmp,rtmps,rtmpt,rtmpts,rtmpe,rtmpte,tcp,tls,http,https", "flv,live_flv")
OPENINGS = {
    "rtsp": RTSP,
    "rtsps": RTSP,
    "http": FFmpegOptions(HTTP, FORMATS, {"http_persistent": "0"}),
    "https": FFmpegOptions(HTTP, FORMATS, {"http_persistent": "0"}),
    # buffer_size (the system's) is in bytes, fifo_size (FFmpeg's) in packets of 188 bytes. A burst
    # that overflows them loses packets, but does not end the stream.
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
    """Return FFmpeg's options for an address. Raises SourceError with a remedy if unsupported."""
    scheme = scheme_of(spec)
    if scheme == "srt":
        raise SourceError(
            "SRT cannot be read: FFmpeg in PyAV's package is built without it; convert it to "
            "another stream (ffmpeg -i srt://... -c copy -f mpegts udp://127.0.0.1:P)"
        )
    if scheme in STORES:
        raise SourceError(f"{scheme}:// is for batch jobs; use: detect-video batch ADDRESS -o OUT")
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
        parts.port  # noqa: B018  raises ValueError if it is not a number
    except ValueError as error:
        raise SourceError(f"the address is not valid: {error}; check host and port") from error
    if not parts.hostname and parts.scheme != "udp":
        raise SourceError("the address has no host; write it like rtsp://HOST/PATH")


def last_part_of(address: Address) -> str:
    """Return the path's last part, which distinguishes cameras of one host; "" if it is secret."""
    last = urlsplit(address.shown).path.rpartition("/")[2]
    return "" if HIDDEN in last else re.sub(r"[^A-Za-z0-9_]+", "-", last)
