"""Finds damage and redirects in FFmpeg's log while cameras are open, and redacts its secrets.

A decoder patches damage and returns the picture as intact; only its log mentions the damage. PyAV
puts the log of each thread into its own list, so cameras do not get each other's messages.

FFmpeg's RTSP client follows a redirect to another host and logs in there with the user and password
for the first host. No option prevents that. But FFmpeg logs "Redirecting to" in the same thread
before it connects, so we can stop it in time.

Other messages still go to Python's ``logging``, without secrets. (``sources/video/_complaints.py``
captures the log of the whole process, for one file at a time.)
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
# Messages that report damage. Others, such as "mmco: ...", also occur with intact pictures.
_DAMAGE = re.compile(
    "error|conceal|missing|corrupt|truncat|damag|could not find ref|gap|overread|invalid",
    re.IGNORECASE,
)
PROBE = "test message of detect-video"
_lock = threading.Lock()
_open = 0  # number of threads that need the log
_level: int | None = None  # the user's level, saved while ours is set; None: FFmpeg's log was off
_skips_repeated = True
_watchers: dict[int, Callable[[str], None]] = {}  # thread -> ``handle``


class DamageLog:
    """Collects FFmpeg's log of this thread, to detect damage."""

    def __init__(self) -> None:
        self._records: list[tuple[int, str, str]] = []

    def __enter__(self) -> DamageLog:
        _begin()
        self._capture: Any = av.logging.Capture(local=True)
        self._records = self._capture.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._capture.__exit__(None, None, None)
        _end()

    def restore_level(self) -> None:
        """Set our log level again if other code turned the log off."""
        if av.logging.get_level() is None:
            with _lock:
                _set_level()

    def take_damage(self) -> bool:
        """Return whether the decoder reported damage since the last call."""
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
    """Calls ``handle`` with FFmpeg's log messages in this thread. FFmpeg waits for ``handle``."""

    def __init__(self, handle: Callable[[str], None]) -> None:
        self._handle = handle

    def __enter__(self) -> LogWatch:
        _begin()
        _watchers[threading.get_ident()] = self._handle
        return self

    def __exit__(self, *_: object) -> None:
        _watchers.pop(threading.get_ident(), None)
        _end()

    def receives_messages(self) -> bool:
        """Return whether we get FFmpeg's messages. While a file reader gets them, we do not."""
        messages: list[str] = []
        thread = threading.get_ident()
        with _lock:
            _set_level()
        _watchers[thread] = messages.append
        av.logging.log(INFO, "detect-video", PROBE)
        _watchers[thread] = self._handle
        return PROBE in messages


def _begin() -> None:
    global _open, _level, _skips_repeated
    with _lock:
        if not _open:
            _add_redactor()
            _level = av.logging.get_level()
            _skips_repeated = av.logging.get_skip_repeated()
            _set_level()
        _open += 1


def _set_level() -> None:
    av.logging.set_level(INFO if _level is None else max(_level, INFO))
    av.logging.set_skip_repeated(False)  # redirects may repeat the same text


def _end() -> None:
    global _open
    with _lock:
        _open -= 1
        if not _open:
            av.logging.set_level(_level)
            av.logging.set_skip_repeated(_skips_repeated)


class _Redactor(logging.Handler):
    """Passes PyAV's log records to the program's handlers, without secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if (handle := _watchers.get(threading.get_ident())) is not None:
            handle(message)
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
