"""Find out whether an ``http://`` address is a finite file, a picture, a live stream or no video,
from the headers and first bytes of one response."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.parse import urljoin

from detector.core.errors import SourceError
from detector.core.errors.addresses import Address
from detector.core.errors.secrets import redact
from detector.core.http import Answer
from detector.core.sources._contents import PICTURES, VIDEO, VIDEOS, kind_of_bytes
from detector.core.sources._forms import is_web
from detector.core.sources._storage import explain
from detector.core.sources._web import SILENT_S, CertificateError, WebPlace, ask

FILE, PLAYLIST, PICTURE, LIVE, REFUSED = "file", "playlist", "picture", "live", "refused"

HEAD_BYTES = 4096
PLAYLIST_BYTES = 4 << 20
QUICK_S = 5.0  # timeout for a possible camera; its feed connects later, with a longer timeout
SLOW_S = 2.0  # time limit for the first bytes; after it, we judge by the bytes received so far
KEPT_S = 60.0  # how long a result is cached
REFUSED_S = 10.0  # how long a refusal is cached
AT_ONCE = 16
CAMERA_SUFFIXES = (".mjpg", ".mjpeg")  # usual suffixes of cameras' streams
CAMERA_HINT = "use --live latest if it is a camera"
# Some cameras state these lengths for endless streams.
ENDLESS = (*(2**bits - 1 for bits in (31, 32, 63)), 2**31, 2**32)
_NINES = re.compile(r"9{9,}")
_MAGIC_OF_PICTURES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
)
_MULTIPART = re.compile(rb"\s*--[^\r\n]{1,200}\r?\n(?:[!-~]+:[^\r\n]*\r?\n)*content-type:", re.I)
_PAGE = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_MPD = re.compile(rb"<(?:\w+:)?MPD\b[^>]*>", re.S)
_DYNAMIC = re.compile(rb"""type\s*=\s*["']dynamic""")


@dataclass(frozen=True, slots=True)
class WebKind:
    """The kind of content at an address. ``remark``: a hint for the user if the kind is a guess."""

    kind: str
    remark: str = ""
    codec: str = ""
    error: str = ""


# ``ffmpeg -listen 1`` sends only these headers. It serves one client, and then exits.
_LISTEN_HEADERS = frozenset(("content-type", "transfer-encoding"))
_open: dict[str, Answer] = {}
_known: dict[str, tuple[float, WebKind]] = {}
_lock = threading.Lock()


def identify(spec: str) -> WebKind:
    """Ask the server which kind of content is at an address, and cache the result."""
    with _lock:
        cached = _known.get(spec)
    if cached is not None and time.monotonic() < cached[0]:
        return cached[1]
    result = _ask(WebPlace(spec))
    with _lock:
        valid_s = REFUSED_S if result.kind == REFUSED else KEPT_S
        _known[spec] = time.monotonic() + valid_s, result
    return result


def identify_all(specs: Sequence[str]) -> None:
    """Identify all addresses concurrently, because each server may be silent for seconds."""
    if len(specs) > 1:
        with ThreadPoolExecutor(min(AT_ONCE, len(specs))) as threads:
            list(threads.map(identify, specs))


def remark_of(spec: str) -> str:
    """Return the remark on an identified address, or "". Makes no request."""
    with _lock:
        cached = _known.get(spec)
    return "" if cached is None else cached[1].remark


def is_file(spec: str) -> bool:
    """Return whether ``spec`` is a web address but no live stream. True for refused addresses."""
    return is_web(spec) and identify(spec).kind != LIVE


def _ask(place: WebPlace) -> WebKind:
    named = _is_named_as_file(place)
    try:
        answer = ask(place, timeout_s=SILENT_S if named else QUICK_S)
    except CertificateError as error:
        return _ask_unchecked(place, str(error), named)
    except (OSError, ValueError) as error:
        if not named:
            return WebKind(LIVE)  # the camera's feed reports the error and retries
        return WebKind(REFUSED, error=f"{place}: {redact(_explain(error, place))}")
    result = _identify_response(place, answer, named)
    names = {name.lower() for name in answer.headers}
    if result.kind == LIVE and answer.head and _LISTEN_HEADERS.issuperset(names):
        with _lock:
            _open[place.whole] = answer
    else:
        answer.close()
    return result


class OpenResponse:
    """A file for PyAV: an open response, including the beginning that was already read."""

    def __init__(self, answer: Answer) -> None:
        self._answer, self._head, self.cut = answer, answer.head, answer.cut

    def read(self, length: int) -> bytes:
        """Return some of the next bytes; b"" at the end, or if the connection broke."""
        data, self._head = self._head[:length], self._head[length:]
        with suppress(OSError, ValueError):
            return data or self._answer.read(length)
        return b""

    def close(self) -> None:
        self._answer.close()


def take_open_response(spec: str) -> OpenResponse | None:
    """Hand over the open response of a single-client server (``ffmpeg -listen 1``), or None."""
    with _lock:
        answer = _open.pop(spec, None)
    return None if answer is None else OpenResponse(answer)


def _explain(error: Exception, place: WebPlace) -> str:
    status = error.code if isinstance(error, HTTPError) else 0
    if status in (401, 403):
        return (
            f"the server rejects the user or password (HTTP {status}); put them into the address "
            "(http://USER:PASSWORD@HOST/...) or into ~/.netrc"
        )
    if status >= 500:
        return f"the server failed (HTTP {status}); try again later"
    if isinstance(error, ValueError):
        return f"the address is not valid ({error}); check host and port"
    return str(explain(error, place.scheme).text)


def _ask_unchecked(place: WebPlace, refusal: str, named: bool) -> WebKind:
    """Ask again without checking the certificate: cameras may have an invalid one."""
    try:
        with closing(ask(place, timeout_s=QUICK_S, checked=False)) as answer:
            named = _identify_response(place, answer, named).kind != LIVE
    except (OSError, ValueError, SourceError):
        pass
    return WebKind(REFUSED, error=refusal) if named else WebKind(LIVE)


def _is_named_as_file(place: WebPlace) -> bool:
    name = place.name.lower()
    return name.endswith((*VIDEOS, *PICTURES)) and not name.endswith(CAMERA_SUFFIXES)


def _identify_response(place: WebPlace, answer: Answer, named: bool) -> WebKind:
    if answer.kind.startswith("multipart/"):
        return WebKind(LIVE)
    try:
        head = _read(answer, HEAD_BYTES)
    except (OSError, ValueError):
        head = b""
    answer.head = head
    if answer.size == 0:
        return WebKind(REFUSED, error=f"{place}: the file is empty (0 bytes); check the address")
    if not head:
        return WebKind(FILE if named else LIVE)
    if _MULTIPART.match(head):
        return WebKind(LIVE)
    if head.removeprefix(b"\xef\xbb\xbf").startswith(b"#EXTM3U"):
        return _identify_playlist(place, answer, head)
    if (manifest := _MPD.search(head)) is not None:
        return _refuse_dash(place, is_live=_DYNAMIC.search(manifest[0]) is not None)
    is_page = "html" in answer.kind and head.lstrip()[:1] == b"<"
    if is_page or _PAGE.match(head) or _is_text(head):
        return _refuse_text(place, answer, head)
    length = _read_length(answer)
    if picture := _find_picture_codec(place, answer, head, length):
        remark = f"{place}: treated as one picture ({answer.kind}); {CAMERA_HINT}"
        return WebKind(PICTURE, "" if named else remark, picture)
    if length is not None:
        return WebKind(FILE)
    return _identify_endless(place, answer, head)


def _read(answer: Answer, length: int) -> bytes:
    parts, until = bytearray(), time.monotonic() + SLOW_S
    while len(parts) < length and time.monotonic() < until:
        try:
            data = answer.read(length - len(parts))
        except (OSError, ValueError):
            if not parts:
                raise
            break
        if not data:
            break
        parts += data
    return bytes(parts)


def _read_length(answer: Answer) -> int | None:
    size = answer.size
    stated = str(size)
    is_invented = size in ENDLESS or _NINES.fullmatch(stated) is not None
    return None if size is None or (is_invented and not answer.ranges) else size


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # the last character may be cut in half
            return False
        text = head[: error.start].decode()
    return not any(ord(sign) < 32 and sign not in "\t\r\n\f" for sign in text)


def _refuse_text(place: WebPlace, answer: Answer, head: bytes) -> WebKind:
    if _PAGE.match(head) or "html" in answer.kind:
        what = "a web page, not a video"
        remedy = ", or download the video first: yt-dlp ADDRESS"
    else:
        what = f"text ({answer.kind}), not a video"
        remedy = ""
    return WebKind(
        REFUSED,
        error=f"{place}: is {what}; give the address of the video file or camera stream itself"
        f"{remedy}",
    )


def _refuse_dash(place: WebPlace, *, is_live: bool) -> WebKind:
    to = "-f matroska - | detect-video -" if is_live else "clip.mkv"
    return WebKind(
        REFUSED,
        error=f"{place}: is a DASH manifest, which PyAV's FFmpeg cannot read; use a full FFmpeg: "
        f"ffmpeg -i ADDRESS -c copy {to}",
    )


def _find_picture_codec(place: WebPlace, answer: Answer, head: bytes, length: int | None) -> str:
    codec = next((codec for magic, codec in _MAGIC_OF_PICTURES if head.startswith(magic)), "")
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        codec = "webp"
    name = place.name.lower()
    is_named = length is not None and name.endswith(PICTURES)
    if not codec and is_named and kind_of_bytes(head) != VIDEO:
        codec = name.rpartition(".")[2]  # a picture without a signature in the table above
    if not codec.startswith("jp"):
        return codec
    if answer.kind.startswith("video/") or name.endswith(CAMERA_SUFFIXES):
        return ""  # a stream of pictures, not a single one
    is_picture = answer.kind.startswith("image/") or name.endswith(PICTURES)
    return codec if is_picture or length is not None else ""


def _identify_endless(place: WebPlace, answer: Answer, head: bytes) -> WebKind:
    if _has_an_end(head):
        return WebKind(
            FILE, f"{place}: treated as a file, although its server states no length; {CAMERA_HINT}"
        )
    return WebKind(
        LIVE,
        f"{place}: treated as a live stream ({answer.kind}), because its server states no length; "
        "to read it as a file: ffmpeg -i ADDRESS -c copy -f matroska - | detect-video -",
    )


def _has_an_end(head: bytes) -> bool:
    """Return whether the file states where it ends, by an index or a size."""
    if head[4:8] == b"ftyp":
        return _has_index(head)
    if head.startswith(b"RIFF"):
        return True
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        segment = head.find(b"\x18\x53\x80\x67")
        size = head[segment + 4 : segment + 12]
        return segment > 0 and size[:1] not in (b"\xff", b"") and size != b"\x01" + b"\xff" * 7
    return head.startswith(b"GIF8")


def _has_index(head: bytes) -> bool:
    """Return whether an MP4 is not fragmented. A fragmented MP4 may be a live stream."""
    at = 0
    while at + 8 <= len(head):
        size, kind = int.from_bytes(head[at : at + 4], "big"), head[at + 4 : at + 8]
        if kind in (b"moov", b"mdat"):
            return kind == b"mdat" or b"mvex" not in head[at : at + size]
        if kind in (b"moof", b"styp", b"sidx") or size < 8:
            return False
        at += size
    return False


def _identify_playlist(place: WebPlace, answer: Answer, head: bytes) -> WebKind:
    """Identify an HLS playlist: a file if it states that it has ended, else a live stream."""
    try:
        rest = _read(answer, PLAYLIST_BYTES)
        text = (head + rest).decode("utf-8", "replace")
        if "#EXT-X-" not in text and "#EXTINF" not in text:
            return _refuse_text(place, answer, head)
        if "#EXT-X-STREAM-INF" in text:
            text = _read_variant(place, answer.url, text)
    except (OSError, ValueError, SourceError):
        return WebKind(LIVE)
    return WebKind(PLAYLIST if "#EXT-X-ENDLIST" in text else LIVE)


def _read_variant(place: WebPlace, base: str, master: str) -> str:
    """Return the text of the first playlist that ``master`` lists. ``base``: the address of
    ``master``. The login of ``place`` is only sent to the host of ``place``."""
    lines = [line.strip() for line in master.splitlines()]
    name = next((line for line in lines if line and not line.startswith("#")), "")
    url = urljoin(base, name)
    Address(url)  # registers its secrets
    if not name or not is_web(url):
        return ""
    with closing(ask(place.link_to(url), timeout_s=QUICK_S)) as answer:
        return _read(answer, PLAYLIST_BYTES).decode("utf-8", "replace")
