"""Read FFmpeg's log for damage and redirects while cameras are open, and redact its secrets.

A decoder patches damage and returns the picture as intact; only its log shows it. PyAV puts the log
of each thread into the thread's own list, so cameras do not get each other's messages.

FFmpeg's RTSP client follows a redirect to another host and logs in there with the user and password
of the first one. No option prevents that, but it logs "Redirecting to" in the same thread before it
connects, so we can stop it in time.

Messages that nobody captures go to Python's ``logging`` as before, without secrets.
(``sources/video/_complaints.py`` catches the log of the whole process, for one file at a time.)
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
# Messages that mean damage, unlike stray references ("mmco: ...") in intact pictures.
_DAMAGE = re.compile(
    "error|conceal|missing|corrupt|truncat|damag|could not find ref|gap|overread|invalid",
    re.IGNORECASE,
)
PROBE = "is anybody listening"
_lock = threading.Lock()
_open = 0
_level: int | None = None  # the user's level, while we listen; None: no logging
_skips_repeated = True
_watchers: dict[int, Callable[[str], None]] = {}  # thread -> ``tell``


class Ears:
    """Collects FFmpeg's log of this thread, to detect damage."""

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
        """Restore the log level if other code has turned the log off. Cheap."""
        if av.logging.get_level() is None:
            with _lock:
                _listen()

    def heard_damage(self) -> bool:
        """Return whether the decoder reported damage since the last call. Cheap."""
        if not self._records:
            return False
        records = self._records[:]
        self._records.clear()
        for level, name, message in records:
            if _level is not None and level <= _level:
                logger = logging.getLogger(f"libav.{name or 'generic'}")
                logger.log(av.logging.adapt_level(level), message.strip())
        return any(level <= ERROR and _DAMAGE.search(message) for level, _, message in records)


class LogWatch:
    """Calls ``tell`` with FFmpeg's messages while this thread opens a stream; FFmpeg waits."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def __enter__(self) -> LogWatch:
        _begin()
        _watchers[threading.get_ident()] = self._tell
        return self

    def __exit__(self, *_: object) -> None:
        _watchers.pop(threading.get_ident(), None)
        _end()

    def receives_messages(self) -> bool:
        """Return whether messages arrive here: a reader of files may capture the whole log."""
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
            _add_redactor()
            _level = av.logging.get_level()
            _skips_repeated = av.logging.get_skip_repeated()
            _listen()
        _open += 1


def _listen() -> None:
    av.logging.set_level(INFO if _level is None else max(_level, INFO))
    av.logging.set_skip_repeated(False)  # a second redirect may have the same text


def _end() -> None:
    global _open
    with _lock:
        _open -= 1
        if not _open:
            av.logging.set_level(_level)
            av.logging.set_skip_repeated(_skips_repeated)


class _Redactor(logging.Handler):
    """Passes PyAV's log records, without secrets, to the program's handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if (tell := _watchers.get(threading.get_ident())) is not None:
            tell(message)
        record.msg, record.args = redact(message), None  # for later handlers, too
        root = logging.getLogger()
        level = _level if _open else av.logging.get_level()
        if level is None or record.levelno < av.logging.adapt_level(level) or not root.handlers:
            return
        root.callHandlers(record)


def _add_redactor() -> None:
    logger = logging.getLogger("libav")
    if not any(isinstance(handler, _Redactor) for handler in logger.handlers):
        logger.addHandler(_Redactor())
        logger.propagate = False
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
