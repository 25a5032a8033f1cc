"""Hostile clients of the page that a case serves: they send bytes and record the replies.

Afterwards the page must still accept its token and report its health, and no request may have
caused an internal error. Then SIGTERM ends the run.
"""

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
CAMERA = b"orchard"  # a camera's name; the page must not show it to clients without the token
MARK = b"Xyzzy9"  # part of every request; the run must not print it
PATIENCE_S = 60.0
READ_S, MOST_READ = 0.4, 200_000
AT_ONCE = 8
PAUSES, RESETS = b"", b"\0reset"  # pieces that mean: wait a moment; reset the connection
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


@dataclass
class VisitResult:
    """``failures``: pairs (kind of failure, what happened). ``visits``: number of connections."""

    failures: list[tuple[str, str]] = field(default_factory=list)
    visits: int = 0


@dataclass(frozen=True)
class Target:
    port: int
    root: Path  # the case's folder; no reply may contain its path

    def fill(self, piece: bytes) -> bytes:
        return piece.replace(b"{port}", str(self.port).encode())


@contextmanager
def visitors_of(case: Case, root: Path, server: int) -> Iterator[tuple[Case, VisitResult]]:
    """Yield the case with its port filled in, and the result of the visits. ``server``: the process
    whose child runs the case."""
    reserved = socket.socket()  # bound but not listening, so that no other program gets the port
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    target = Target(reserved.getsockname()[1], root)
    result, finished = VisitResult(), threading.Event()
    argv = tuple(word.replace("{port}", str(target.port)) for word in case.argv)
    thread = threading.Thread(target=_visit_all, args=(case, target, result, finished, server))
    thread.start()
    try:
        yield replace(case, argv=argv, visits=()), result
    finally:
        finished.set()
        thread.join()
        reserved.close()


def _visit_all(
    case: Case, target: Target, result: VisitResult, finished: threading.Event, server: int
) -> None:
    end = time.monotonic() + PATIENCE_S
    try:
        while not _is_healthy(target):
            if finished.wait(0.05) or time.monotonic() > end:
                result.failures.append(("other", "the page never answered"))
                return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            replies = list(pool.map(lambda pieces: _visit(target, pieces), case.visits))
        result.visits = len(replies)
        locked = "--token-file" in case.argv
        for pieces, answer in zip(case.visits, replies, strict=True):
            result.failures += judge_answer(pieces, answer, target.root, locked)
        result.failures += _check_still_works(target, locked)
    except OSError as error:
        result.failures.append(("other", f"the page is gone: {error}"))
    finally:
        end_children(server)


def _visit(target: Target, pieces: tuple[bytes, ...]) -> bytes:
    received = bytearray()
    with suppress(OSError), socket.create_connection(("127.0.0.1", target.port), READ_S) as one:
        for piece in pieces:
            if piece == RESETS:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return bytes(received)
            if piece == PAUSES:
                time.sleep(READ_S / 2)
            with suppress(TimeoutError):
                one.sendall(target.fill(piece))
        while len(received) < MOST_READ and (more := one.recv(65536)):
            received += more
    return bytes(received)


def judge_answer(
    pieces: tuple[bytes, ...], answer: bytes, root: Path, locked: bool
) -> Iterator[tuple[str, str]]:
    """Yield the failures that a reply of the page shows. ``locked``: the page requires a token."""
    request = b"".join(pieces)[:200]
    for status in map(int, _STATUS.findall(answer)):
        if status >= 500 and status != 503:  # 503: no picture yet, or 64 clients watch already
            yield "other", f"{status} for {request!r}"
    if b"Traceback" in answer or str(root).encode() in answer:
        yield "secrets", f"the reply contains a path on this machine: {request!r}"
    if locked and TOKEN.encode() not in b"".join(pieces) and CAMERA in answer:
        yield "secrets", f"the reply shows a camera without the token: {request!r}"
    if b"root:" in answer or b"Dear Ada" in answer:
        yield "secrets", f"the reply sends a file that is not a recording: {request!r}"


def _check_still_works(target: Target, locked: bool) -> Iterator[tuple[str, str]]:
    end = time.monotonic() + PATIENCE_S
    for path, expected in (("/healthz", b"ok\n"), ("/api/streams", CAMERA), ("/metrics", CAMERA)):
        while b" 200 " not in (answer := _ask(target, path, TOKEN))[:20] or expected not in answer:
            if time.monotonic() > end:
                yield "other", f"afterwards {path} answers {answer[:100]!r}"
                break
            time.sleep(0.1)  # the page is unhealthy for a moment after the camera stops
    if re.search(rb'status="5(?!03)', answer):
        yield "other", "the metrics of the page count an internal error"
    refused = _ask(target, "/api/streams", "wrong")[:20]
    if locked and not (b" 401 " in refused or b" 429 " in refused):
        yield "secrets", "a wrong token passes"


def _ask(target: Target, path: str, token: str) -> bytes:
    """Send a request. Connect again if the page closed the connection to make room."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    end = time.monotonic() + PATIENCE_S
    while True:
        received = b""
        with (
            suppress(ConnectionResetError, BrokenPipeError),
            socket.create_connection(("127.0.0.1", target.port), PATIENCE_S) as one,
        ):
            one.sendall(f"{head}Connection: close\r\n\r\n".encode())
            while more := one.recv(65536):
                received += more
        if received or time.monotonic() > end:
            return received


def _is_healthy(target: Target) -> bool:
    try:
        return b"\r\n\r\nok\n" in _ask(target, "/healthz", "")
    except OSError:
        return False


def end_children(parent: int) -> None:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name is in brackets and may contain anything, so split after the last bracket.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                os.kill(int(stat.parent.name), signal.SIGTERM)
