"""Hostile visitors of the page that a case serves: they send bytes and record the replies.

Afterwards the page must work as before: the right token passes, health is reported, and no request
caused an internal error. Then SIGTERM ends the run.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.attacks.case import Case

TOKEN = "correct-horse-battery-staple-0009"
CAMERA = b"orchard"  # never shown without the token
MARK = b"Xyzzy9"  # in every request; in no line of the run's
PATIENCE_S = 60.0
READ_S, MOST_READ = 0.4, 200_000
AT_ONCE = 8
LEAVES, RESETS = b"", b"\0reset"  # as a piece: wait a moment; end without a word
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


@dataclass
class Met:
    """``failures``: (one of FAILURES, what happened). ``visits``: connections that were made."""

    failures: list[tuple[str, str]] = field(default_factory=list)
    visits: int = 0


@dataclass(frozen=True)
class Place:
    port: int
    root: Path  # of the case: no answer may name it

    def fill(self, piece: bytes) -> bytes:
        return piece.replace(b"{port}", str(self.port).encode())


@contextmanager
def visited(case: Case, root: Path, server: int) -> Iterator[tuple[Case, Met]]:
    """Yield the case with its port filled in, and what the visitors met. ``server``: the process
    whose child runs the case."""
    held = socket.socket()  # bound but not listening: the system gives the port to no other program
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    place = Place(held.getsockname()[1], root)
    met, over = Met(), threading.Event()
    argv = tuple(word.replace("{port}", str(place.port)) for word in case.argv)
    thread = threading.Thread(target=_visit_all, args=(case, place, met, over, server))
    thread.start()
    try:
        yield replace(case, argv=argv, visits=()), met
    finally:
        over.set()
        thread.join()
        held.close()


def _visit_all(case: Case, place: Place, met: Met, over: threading.Event, server: int) -> None:
    end = time.monotonic() + PATIENCE_S
    try:
        while not _is_healthy(place):
            if over.wait(0.05) or time.monotonic() > end:
                met.failures.append(("other", "the page never answered"))
                return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            heard = list(pool.map(lambda pieces: _visit(place, pieces), case.visits))
        met.visits = len(heard)
        locked = "--token-file" in case.argv
        for pieces, answer in zip(case.visits, heard, strict=True):
            met.failures += judge_answer(pieces, answer, place.root, locked)
        met.failures += _as_ever(place, locked)
    except OSError as error:
        met.failures.append(("other", f"the page is gone: {error}"))
    finally:
        end_children(server)


def _visit(place: Place, pieces: tuple[bytes, ...]) -> bytes:
    got = bytearray()
    with suppress(OSError), socket.create_connection(("127.0.0.1", place.port), READ_S) as one:
        for piece in pieces:
            if piece == RESETS:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return bytes(got)
            if piece == LEAVES:
                time.sleep(READ_S / 2)
            with suppress(TimeoutError):
                one.sendall(place.fill(piece))
        while len(got) < MOST_READ and (more := one.recv(65536)):
            got += more
    return bytes(got)


def judge_answer(
    pieces: tuple[bytes, ...], answer: bytes, root: Path, locked: bool
) -> Iterator[tuple[str, str]]:
    """``locked``: the page has a token."""
    asked = b"".join(pieces)[:200]
    for status in map(int, _STATUS.findall(answer)):
        if status >= 500 and status != 503:  # no picture in time, or 64 watch already
            yield "other", f"{status} for {asked!r}"
    if b"Traceback" in answer or str(root).encode() in answer:
        yield "secrets", f"a place in our files was told to {asked!r}"
    if locked and TOKEN.encode() not in b"".join(pieces) and CAMERA in answer:
        yield "secrets", f"a camera was shown without the token to {asked!r}"
    if b"root:" in answer or b"Dear Ada" in answer:
        yield "secrets", f"a file other than a recording was sent to {asked!r}"


def _as_ever(place: Place, locked: bool) -> Iterator[tuple[str, str]]:
    end = time.monotonic() + PATIENCE_S
    for path, wanted in (("/healthz", b"ok\n"), ("/api/streams", CAMERA), ("/metrics", CAMERA)):
        while b" 200 " not in (answer := _ask(place, path, TOKEN))[:20] or wanted not in answer:
            if time.monotonic() > end:
                yield "other", f"afterwards {path} answers {answer[:100]!r}"
                break
            time.sleep(0.1)  # after a halt of the camera it is unhealthy for a moment
    if re.search(rb'status="5(?!03)', answer):
        yield "other", "the page counts answers with an error of its own"
    refused = _ask(place, "/api/streams", "wrong")[:20]
    if locked and not (b" 401 " in refused or b" 429 " in refused):
        yield "secrets", "a wrong token passes"


def _ask(place: Place, path: str, token: str) -> bytes:
    """Send a request, connecting again if the page closed the connection to make room."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    end = time.monotonic() + PATIENCE_S
    while True:
        got = b""
        with (
            suppress(ConnectionResetError, BrokenPipeError),
            socket.create_connection(("127.0.0.1", place.port), PATIENCE_S) as one,
        ):
            one.sendall(f"{head}Connection: close\r\n\r\n".encode())
            while more := one.recv(65536):
                got += more
        if got or time.monotonic() > end:
            return got


def _is_healthy(place: Place) -> bool:
    try:
        return b"\r\n\r\nok\n" in _ask(place, "/healthz", "")
    except OSError:
        return False


def end_children(parent: int) -> None:
    for found in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name is in brackets and may contain anything, so split after the last bracket.
            if int(found.read_text().rpartition(")")[2].split()[1]) == parent:
                os.kill(int(found.parent.name), signal.SIGTERM)
