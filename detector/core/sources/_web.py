"""Files of web servers, read from one response for as long as the connection lasts.

If a server supports no ranges, the bytes are stored in a temporary file. User and password are only
sent to the host of the address, not to the target of a redirect. Certificates are checked.
"""

from __future__ import annotations

import errno
import netrc
import os
import re
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import IO
from urllib.parse import unquote, urlsplit

from detector.core.errors import SourceError
from detector.core.errors.addresses import Address
from detector.core.errors.secrets import HIDDEN, redact
from detector.core.http import Answer, Login, open_from
from detector.core.sources import _ranges
from detector.core.sources._ranges import PAUSES_S, RangedObject
from detector.core.sources._storage import ObjectInfo, explain

SILENT_S = 20.0  # timeout while no byte arrives
READ_BYTES = 1 << 16  # bytes per read of a connection
MOST_SKIPPED = 1 << 18  # bytes that we read and discard; to skip more, we make a new request
CHECK_S = 0.2  # between two checks of whether the run must stop
LONGEST_NAME = 200  # bytes

# ``stopped()`` returns whether the current run must stop. By default it returns False; ``cut_when``
# replaces it.
stopped: Callable[[], bool] = bool
_opening = threading.local()  # ``stopped`` of the run in this thread, if there is one


class CertificateError(SourceError):
    """The server's certificate could not be verified."""


class ChangedError(OSError):
    """The file at the address has changed."""


@dataclass(frozen=True, slots=True)
class WebPlace:
    """An address of a web server. Its ``str`` omits the query, which may contain secrets."""

    whole: str = field(repr=False)

    @property
    def scheme(self) -> str:
        return self.whole.partition(":")[0].lower()

    def __str__(self) -> str:
        shown = Address(self.whole).shown  # also registers its secrets
        scheme, _, rest = shown.partition("://")
        host, slash, path = re.split(r"[?#]", rest)[0].partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"

    @property
    def name(self) -> str:
        """The file's name: the path's last part, or the host."""
        host, _, path = str(self).partition("://")[2].partition("/")
        name = unquote(path.rstrip("/").rpartition("/")[2]) or host
        name = "".join(sign if sign.isprintable() and sign != "/" else "_" for sign in name)
        stem, suffix = os.path.splitext(name.replace(HIDDEN, ""))
        while len(os.fsencode(stem)) > LONGEST_NAME:
            stem = stem[:-1]
        return f"{stem}{suffix[:20]}"

    def link_to(self, url: str) -> WebPlace:
        """Return the place of a link in this file, with our login if it is on the same host."""
        info, at, host = urlsplit(self.whole).netloc.rpartition("@")
        parts = urlsplit(url)
        if at and parts.netloc == host and parts.scheme == self.scheme:
            return WebPlace(url.replace("://", f"://{info}@", 1))
        return WebPlace(url)


def ask(
    place: WebPlace, start: int = 0, *, timeout_s: float = SILENT_S, checked: bool = True
) -> Answer:
    """Request the file from byte ``start`` on. ``checked=False`` trusts any certificate, and sends
    no user, password or query. Raises CertificateError, and what ``open_from`` raises."""
    url = place.whole if checked else re.split(r"[?#]", place.whole)[0]
    login = _find_login(place.whole) if checked else None
    try:
        return open_from(url, start, timeout_s=timeout_s, login=login, checked=checked)
    except ssl.SSLCertVerificationError as error:
        raise CertificateError(
            f"{place}: its certificate is not trusted ({error.verify_message}); give "
            "the certificate of its authority: SSL_CERT_FILE=ca.pem"
        ) from error


def _find_login(whole: str) -> Login | None:
    """Return the login in the address, else the one in ~/.netrc."""
    info, at, _ = re.split(r"[/?#]", whole.partition("://")[2], maxsplit=1)[0].rpartition("@")
    if at:
        user, _, password = info.partition(":")
        return unquote(user), unquote(password)
    try:
        entry = netrc.netrc().authenticators(urlsplit(whole).hostname or "")
    except (OSError, netrc.NetrcParseError, ValueError):
        return None
    return None if entry is None or entry[2] is None else (entry[0], entry[2])


def read_info(place: WebPlace) -> ObjectInfo:
    """Request a file's size and version without reading it. Raises SourceError."""
    try:
        with closing(ask(place)) as answer:
            if answer.size is None:
                raise SourceError(f"{place}: the server states no length; copy the file first")
            dated = answer.headers.get("Last-Modified")
            version = (answer.tag or dated or "").removeprefix("W/").strip('"')
            return ObjectInfo(answer.size, f"{answer.size}-{version}")
    except SourceError:
        raise
    except (OSError, ValueError) as error:
        raise SourceError(f"{place}: {explain(error, place.scheme).text}") from error


class WebFile:
    """A server's file with ``size``, ``seek`` and ``read``. Not thread-safe."""

    def __init__(self, place: WebPlace) -> None:
        self._place = place
        self._answer: Answer | None = ask(place)
        self._tag = self._answer.tag
        self._at = 0  # position of the next ``read``
        self._received_to = 0  # file position of the next byte in the open response
        self.broken: Exception | None = None  # the error that ended a file of unknown length
        self._kept: IO[bytes] | None = None  # a local copy, if the server supports no ranges
        if not self._answer.ranges or self._answer.size is None:
            self._kept = tempfile.TemporaryFile(prefix="detect-video-")  # noqa: SIM115
        self.size = self._download() if self._answer.size is None else self._answer.size

    def seek(self, position: int) -> None:
        self._at = position

    def read(self, length: int) -> bytes:
        """Return some bytes from the current position. Raises ``ask``'s errors; call again to
        retry."""
        if self._kept is None:
            data = self._receive(self._at, min(length, READ_BYTES))
        else:
            end = min(self._at + 1, self.size)
            while (have := self._kept.seek(0, os.SEEK_END)) < end:
                self._kept.write(self._receive(have, READ_BYTES))
            self._kept.seek(self._at)
            data = self._kept.read(length)
        self._at += len(data)
        return data

    def _receive(self, position: int, length: int) -> bytes:
        """Return some bytes from ``position``. Make a new request if the open response is past this
        position or far before it."""
        answer = self._answer
        if answer is None or not 0 <= position - self._received_to <= MOST_SKIPPED:
            answer = self._request_again(position)
        try:
            while self._received_to < position:
                self._take(answer, min(READ_BYTES, position - self._received_to))
            return self._take(answer, length)
        except BaseException:
            self._drop()
            raise

    def _take(self, answer: Answer, length: int) -> bytes:
        data = answer.read(length)
        if not data:
            raise ConnectionError(
                f"the connection ended at byte {self._received_to} of {self.size}"
            )
        self._received_to += len(data)
        return data

    def _request_again(self, position: int) -> Answer:
        self._drop()
        answer = ask(self._place, position)
        if answer.size != self.size or answer.tag != self._tag:
            answer.close()
            raise ChangedError("this address now has another file")
        self._answer, self._received_to = answer, answer.start
        return answer

    def _drop(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def _download(self) -> int:
        """Store the whole file, whose length the server does not state, and return its length."""
        assert self._kept is not None
        assert self._answer is not None
        try:
            while data := self._answer.read(READ_BYTES):
                self._kept.write(data)
        except OSError as error:
            self.broken = error
        self._drop()
        return self._kept.seek(0, os.SEEK_END)

    def cut(self) -> None:
        """Abort a read that blocks another thread."""
        if (answer := self._answer) is not None:
            answer.cut()

    def close(self) -> None:
        self._drop()
        if self._kept is not None:
            self._kept.close()


class WebObject(RangedObject):
    """A web server's file. If the connection breaks, the file ends early; ``error`` says why."""

    place: WebPlace
    most_at_once = 1  # a connection stays open, so further blocks need no request
    keeps_part = True

    def __init__(self, place: WebPlace) -> None:
        self._over = threading.Event()
        self.users = 1
        # Keep the function of the run that opens the file: other runs may begin or end meanwhile.
        self.stopped: Callable[[], bool] = getattr(_opening, "stopped", stopped)
        super().__init__(place)
        self._end_of_data = self.size  # less than ``size`` once the connection is lost
        if self._file.broken is not None:
            self._end(self._file.broken, self.size)
        threading.Thread(target=self._watch, name="detect-video web", daemon=True).start()

    @property
    def block(self) -> int:
        """Bytes per block, fewer than for stores, so that the first picture arrives sooner."""
        return min(_ranges.BLOCK, READ_BYTES)

    def _open(self) -> WebFile:
        return WebFile(self.place)

    def _watch(self) -> None:
        """Close the connection once the run must stop."""
        while not self._over.wait(CHECK_S):
            if self.stopped():
                self._file.cut()

    def _get_block(self, number: int) -> bytes:
        if number not in self._blocks and number * self.block < self._end_of_data:
            self._fetch_blocks(number)
        return self._blocks.get(number, b"")

    def _request(self, start: int, end: int) -> bytes:
        """Return the bytes that arrive. Every byte received resets the count of retries."""
        data, tries, end = bytearray(), 0, min(end, self._end_of_data)
        while len(data) < end - start:
            try:
                self._file.seek(start + len(data))
                part = self._file.read(end - start - len(data))
                self.received += len(part)
                data += part
                tries = 0
            except (OSError, ValueError) as error:
                is_transient = explain(error, self.place.scheme).is_transient
                if tries == len(PAUSES_S) or not is_transient or self._is_stopped(PAUSES_S[tries]):
                    self._end(error, start + len(data))
                    break
                tries += 1
        return bytes(data)

    def _is_stopped(self, pause_s: float) -> bool:
        """Wait ``pause_s``, or until the run must stop; return whether it must."""
        until = time.monotonic() + pause_s
        while time.monotonic() < until and not self.stopped():
            self._over.wait(CHECK_S)
        return self.stopped()

    def _end(self, error: Exception, position: int) -> None:
        self._end_of_data = position
        why = redact(explain(error, self.place.scheme).text)
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            why = f"no room for a copy in {tempfile.gettempdir()}; set TMPDIR to a folder with room"
        self.error = SourceError(f"{self.place}: cannot read beyond byte {position}: {why}")

    def close(self) -> None:
        with _lock:
            self.users -= 1
            if self.users > 0 or _kept is self:
                return
        self.end()

    def end(self) -> None:
        self._over.set()
        super().close()


# Inside ``keep_open``, the last object stays open, because a run opens a source twice: for its
# size, and to read it.
_lock = threading.Lock()
_keepers = 0  # number of active ``keep_open`` blocks
_kept: WebObject | None = None


def open_web(place: WebPlace) -> WebObject:
    """Open a file, or return the one that is still open. Raises SourceError."""
    with _lock:
        if _kept is not None and _kept.place == place:
            _kept.users += 1
            _kept.stopped = getattr(_opening, "stopped", stopped)
            return _kept
    opened = WebObject(place)
    _keep(opened)
    return opened


def _keep(opened: WebObject | None) -> None:
    global _kept
    with _lock:
        before, _kept = _kept, opened if _keepers else None
    if before is not None and before.users <= 0:
        before.end()


@contextmanager
def keep_open() -> Iterator[None]:
    """Keep the last opened file, and the bytes received so far, during the block."""
    global _keepers
    with _lock:
        _keepers += 1
    try:
        yield
    finally:
        with _lock:
            _keepers -= 1
        _keep(None)


@contextmanager
def cut_when(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Once ``is_stopped()`` returns True, abort reads of web files that the block has opened."""
    global stopped
    stopped = _opening.stopped = is_stopped
    try:
        yield
    finally:
        stopped = _opening.stopped = bool
