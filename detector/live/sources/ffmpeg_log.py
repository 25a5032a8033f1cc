"""FFmpeg's log while cameras are read: it tells of damage and of redirects, and no secrets.

A decoder patches damage and hands the picture out as a whole one; only its log says so. PyAV sends
the log of each thread to the thread's own list, so complaints of one camera are not another's.

FFmpeg's RTSP client follows a redirect to another host and logs in there, unasked, with user and
password of the first. There is no option against it, but it writes "Redirecting to" before it
connects, in the same thread, and so it can be stopped in time.

What nobody catches goes to Python's ``logging`` as before, without secrets.
(``sources/video/_complaints.py`` catches the log of a whole process, for one file at a time.)
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any

import av.logging

from detector.core.errors.secrets import redact

ERROR: int = av.logging.ERROR
INFO: int = av.logging.INFO
# Messages of damage, without stray references ("mmco: ..."), which whole pictures have too.
_DAMAGE = re.compile(
    "error|conceal|missing|corrupt|truncat|damag|could not find ref|gap|overread|invalid",
    re.IGNORECASE,
)
PROBE = "is anybody listening"
_lock = threading.Lock()
_open = 0
_level: int | None = None  # the user's own, while we listen; None: nothing is logged
_skips_repeated = True
_watchers: dict[int, Callable[[str], None]] = {}  # by thread


class Ears:
    def __init__(self) -> None:
        self._records: list[tuple[int, str, str]] = []

    def __enter__(self) -> Ears:
        _begin()
        self._capture: Any = av.logging.Capture(local=True)
        self._records = self._capture.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._capture.__exit__(None, None, None)
        _end()

    def listen(self) -> None:
        """Again, if somebody has closed the log of the process meanwhile. Cheap."""
        if av.logging.get_level() is None:
            with _lock:
                _listen()

    def heard_damage(self) -> bool:
        """Whether the decoder complained about damage since the last call. Cheap."""
        if not self._records:
            return False
        records = self._records[:]
        self._records.clear()
        for level, name, message in records:
            if _level is not None and level <= _level:
                logger = logging.getLogger(f"libav.{name or 'generic'}")
                logger.log(av.logging.adapt_level(level), message.strip())
        return any(level <= ERROR and _DAMAGE.search(message) for level, _, message in records)


class Watch:
    """Around a thread that opens streams: ``tell`` gets FFmpeg's messages, while FFmpeg waits."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def __enter__(self) -> Watch:
        _begin()
        _watchers[threading.get_ident()] = self._tell
        return self

    def __exit__(self, *_: object) -> None:
        _watchers.pop(threading.get_ident(), None)
        _end()

    def is_told(self) -> bool:
        """Whether this thread's messages reach it: a reader of files may take the whole log."""
        heard: list[str] = []
        mine = threading.get_ident()
        with _lock:
            _listen()
        _watchers[mine] = heard.append
        av.logging.log(INFO, "detect-video", PROBE)
        _watchers[mine] = self._tell
        return PROBE in heard


def _begin() -> None:
    global _open, _level, _skips_repeated
    with _lock:
        if not _open:
            _guard()
            _level = av.logging.get_level()
            _skips_repeated = av.logging.get_skip_repeated()
            _listen()
        _open += 1


def _listen() -> None:
    av.logging.set_level(INFO if _level is None else max(_level, INFO))
    av.logging.set_skip_repeated(False)  # a second redirect may be told in the same words


def _end() -> None:
    global _open
    with _lock:
        _open -= 1
        if not _open:
            av.logging.set_level(_level)
            av.logging.set_skip_repeated(_skips_repeated)


class _Redactor(logging.Handler):
    """Gets PyAV's log records and hands them on, without secrets, to the program's handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if (tell := _watchers.get(threading.get_ident())) is not None:
            tell(message)
        record.msg, record.args = redact(message), None  # for whoever is asked after us, too
        root = logging.getLogger()
        level = _level if _open else av.logging.get_level()
        if level is None or record.levelno < av.logging.adapt_level(level) or not root.handlers:
            return
        root.callHandlers(record)


def _guard() -> None:
    logger = logging.getLogger("libav")
    if not any(isinstance(handler, _Redactor) for handler in logger.handlers):
        logger.addHandler(_Redactor())
        logger.propagate = False
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
