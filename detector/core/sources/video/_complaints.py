"""Catch the errors that FFmpeg logs while it reads: some damage shows only in its log.

If a packet is damaged, FFmpeg often guesses the rest of the picture, returns it and only logs an
error. PyAV can catch the log of its own FFmpeg. cv2 contains another copy of FFmpeg and has no such
function. So the log callback of cv2's copy becomes ``av_vlog`` of PyAV's library, which has the
right signature. PyAV's library needs no GIL to discard messages less severe than errors, so
catching the log of an intact file costs nothing.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import logging
import os
import threading
from typing import Any

import av
import av._core

from detector.core.sources._cv2 import cv2

ERROR: int = av.logging.ERROR
# Errors about metadata alone. FFmpeg refuses the long texts that GStreamer's flvmux writes to FLV.
HARMLESS = ("AMF_DATA_TYPE_STRING parsing failed",)


class Complaints:
    """Collects the errors that FFmpeg logs until ``close``. If ``names`` are given, it keeps only
    the errors of these decoders and demuxers."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)
        self._errors: list[tuple[str, str]] = []
        self.is_closed = False
        CAUGHT_LOG.add(self)

    def has_errors(self) -> bool:
        """Return whether errors were logged since ``take``. Fast, since it runs for every frame."""
        if CAUGHT_LOG.records:
            CAUGHT_LOG.deliver()
        return bool(self._errors)

    def take(self) -> list[tuple[str, str]]:
        """Return (name of decoder or demuxer, message) of each error since the last call."""
        if not self.has_errors():
            return []
        errors, self._errors = self._errors, []
        return errors

    def note(self, record: tuple[int, str, str]) -> None:
        """Keep a log record that has one of our names and is not harmless."""
        name, message = record[1], record[2].strip()
        if (not self._names or name in self._names) and message not in HARMLESS:
            self._errors.append((name, message))

    def close(self) -> None:
        """Stop listening. May be called twice, and by the garbage collector."""
        self.is_closed = True
        CAUGHT_LOG.remove_closed()

    def __enter__(self) -> Complaints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CaughtLog:
    """Catches PyAV's log while there are listeners, then restores it. The garbage collector may
    close a listener at any moment, so ``remove_closed`` never waits for the lock."""

    def __init__(self) -> None:
        self.records: list[tuple[int, str, str]] = []  # (level, name, message), not yet delivered
        self._listeners: list[Complaints] = []
        self._lock = threading.Lock()
        self._level: int | None = None  # the user's level, to restore; None: the log is off
        self._skipped_repeated = True
        self._capture: Any = None
        self._redirected: Any = None  # cv2's FFmpeg while it logs into PyAV's

    def add(self, listener: Complaints) -> None:
        with self._lock:
            if not self._listeners:
                self._open()
            self._set_level()  # again, because other code may have changed it
            self._deliver()  # earlier records are not for the new listener
            self._listeners.append(listener)
        self.remove_closed()

    def remove_closed(self) -> None:
        """Remove closed listeners, and restore the log after the last one."""
        while any(listener.is_closed for listener in list(self._listeners)):
            if not self._lock.acquire(blocking=False):
                return
            try:
                # Another thread or the garbage collector may already have restored the log.
                before = self._listeners
                self._listeners = [listener for listener in before if not listener.is_closed]
                if before and not self._listeners:
                    self._close()
            finally:
                self._lock.release()

    def _open(self) -> None:
        self._level = av.logging.get_level()
        self._skipped_repeated = av.logging.get_skip_repeated()
        self._capture = av.logging.Capture(local=False)
        self.records = self._capture.__enter__()

    def _set_level(self) -> None:
        level = av.logging.get_level()
        av.logging.set_level(ERROR if level is None else max(level, ERROR))
        av.logging.set_skip_repeated(False)  # two damaged packets may cause the same message

    def _close(self) -> None:
        if self._redirected is not None:
            self._redirected.av_log_set_callback(_address(self._redirected.av_log_default_callback))
            self._redirected = None
        self._capture.__exit__(None, None, None)
        self.records = []
        av.logging.set_skip_repeated(self._skipped_repeated)
        av.logging.set_level(self._level)

    def deliver(self) -> None:
        with self._lock:
            self._deliver()
        self.remove_closed()

    def _deliver(self) -> None:
        records = self.records[:]
        del self.records[: len(records)]
        for record in records:
            if record[0] <= ERROR:
                for listener in self._listeners:
                    listener.note(record)
            if self._level is not None and record[0] <= self._level:
                _print_record(*record)

    def redirect_cv2(self) -> None:
        """Send cv2's log to PyAV's. Do nothing if cv2's FFmpeg is not found or is of another major
        version, or if the user has requested its log. Call it after each new cv2.VideoCapture."""
        settings = os.environ.get("OPENCV_FFMPEG_LOGLEVEL"), os.environ.get("OPENCV_FFMPEG_DEBUG")
        libraries = _find_libraries() if settings == ("-8", None) else None  # as set in ``_cv2``
        if libraries is None:
            return
        cv2_library, av_library = libraries
        if _address(cv2_library.av_vlog).value == _address(av_library.av_vlog).value:
            av.logging.set_level(av.logging.get_level())  # same library: restore its callback
        else:
            cv2_library.av_log_set_callback(_address(av_library.av_vlog))
            self._redirected = cv2_library


CAUGHT_LOG = CaughtLog()


def _print_record(level: int, name: str, message: str) -> None:
    """Log a record as PyAV does for a user who has requested its log."""
    logger = logging.getLogger(f"libav.{name or 'generic'}")
    logger.log(av.logging.adapt_level(level), message.strip())


@functools.cache
def _find_libraries() -> tuple[Any, Any] | None:
    """Load the libraries with cv2's and PyAV's FFmpeg; None if cv2's cannot log into PyAV's."""
    paths = glob.glob(os.path.join(os.path.dirname(cv2.__file__), "cv2*.so"))
    try:
        cv2_library, av_library = ctypes.CDLL(paths[0]), ctypes.CDLL(av._core.__file__)
        # A message refers to a C struct that may change with the major version.
        same_version = cv2_library.avutil_version() >> 16 == av_library.avutil_version() >> 16
    except (IndexError, OSError, AttributeError):
        return None
    return (cv2_library, av_library) if same_version else None


def _address(function: Any) -> ctypes.c_void_p:
    return ctypes.cast(function, ctypes.c_void_p)
